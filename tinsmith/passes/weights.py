"""Large constant weights as numbers of a few bits, in one form: DequantizeLinear, or a Cast of a
half, between the small constant and what reads it. Files keep weights so, and kernels take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.errors import OptionError, PassChoiceError
from tinsmith.graph import Array, Graph, Node, Value, dtype_of
from tinsmith.graph.copy import with_nested
from tinsmith.ops import OPS
from tinsmith.ops._weights import is_matrix_product, weights_of
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass

PASS = "small-weights"
KINDS = {"fp16": "float16", "bf16": "bfloat16"}
"""Other names of element types."""
BITS = {"int8": 8, "int4": 4}
HALVES = ("float16", "bfloat16")
BLOCKS = {"int8": 0, "int4": 64}
"""Consecutive weights that share a scale, if nothing is said; 0: all of an output."""
LEAST, LEAST_HALVES = 1 << 12, 64
"""Elements of the smallest constant that becomes small: smaller ones save less than scales and node
take. Estimated."""
PIECE = 1 << 18
"""Weights that are rounded at a time, instead of copying all. Estimated."""
NO_WEIGHTS = 1e-30
"""The scale of what is all zeros: small enough for the rounding of sums to vanish in it, and no
denormal number."""
NOISE = 0.1
"""The greatest share of noise, in squares, that rounding may add to weights: 10 dB, as the least
that `quantize` does not mark."""


def parse(text: object) -> tuple[str, int]:
    """(element type, block size) that a `weights=` text names: ("int4", 32) for "int4/32", a scale
    for each 32 weights; ("float16", 0) for "fp16". 0: a scale for all of an output, or none.
    "float32" leaves weights as they are. Raises OptionError for other texts."""
    known = ("float32", "fp32", *HALVES, *KINDS, *BITS)
    kind, slash, size = text.partition("/") if isinstance(text, str) else ("", "", "")
    if kind not in known or (slash and (kind not in BITS or not size.isdecimal())):
        raise OptionError(
            f"weights must be one of {', '.join(known)}, or int8/64, int4/32 and so on for a scale "
            f"for each 64 or 32, not {text!r}"
        )
    kind = {"fp32": "float32", **KINDS}.get(kind, kind)
    block = int(size) if size else BLOCKS.get(kind, 0)
    if block % 8 or (kind == "int4" and not block):
        raise OptionError(f"blocks of weights are multiples of 8, not {block}")
    return kind, block


def spec_of(text: object) -> str:
    """The `passes=` text that does what a `weights=` text asks for; "" if weights stay."""
    kind, block = parse(text)
    return "" if kind == "float32" else f"+{PASS}{{kind={kind},block={block}}}"


def shrunk(graph: Graph, kind: str, block: int) -> Graph:
    """A copy of a graph whose large weights have the element type `kind`, and blocks of so many
    weights share a scale, also in nested graphs; see `SmallWeights`."""
    copy = graph.clone()
    for node in copy.nodes:
        node.attrs = with_nested(node.attrs, lambda nested: shrunk(nested, kind, block))
    SmallWeights(kind, block).run(copy, Context())
    return copy


@register("precision", default=False, devices=("cpu",))
@dataclass(frozen=True)
class SmallWeights:
    """Large constant weights become numbers of 16, 8 or 4 bits, which are dequantised when read.

    kind: int8, int4, float16 or bfloat16.
    block: how many weights of a matrix share a scale; 0: all of an output.

    With int8 and int4, weights of convolutions and recurrent layers become int8, with a scale for
    each output. Weights stay float32 if rounding would add more than NOISE, or overflow a half.
    """

    kind: str = "int8"
    block: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*HALVES, *BITS):
            known = ", ".join((*HALVES, *BITS))
            raise PassChoiceError(f"{PASS} takes kind={known}, not {self.kind!r}")
        if self.block < 0 or self.block % 8:
            raise PassChoiceError(f"{PASS} takes blocks of multiples of 8, not {self.block}")

    def run(self, graph: Graph, context: Context) -> int:
        if self.kind in HALVES:
            return sum([self._half(graph, v) for v in graph.constants()])
        return sum([self._visit(graph, node, context) for node in list(graph.nodes)])

    def _half(self, graph: Graph, v: Value) -> bool:
        w = v.const
        if w is None or w.dtype != np.float32 or w.ndim < 2 or w.size < LEAST_HALVES:
            return False
        with np.errstate(over="ignore"):
            small = w.astype(dtype_of(self.kind))
        if not np.isfinite(small.astype(np.float32)).all():
            return False
        const = graph.const(small, graph.unique(f"{v.name}/{self.kind}"))
        before = next((n for n in graph.nodes if v in n.inputs), None)
        made = graph.add(OPS["Cast"], const, name=f"{v.name}/float32", to="float32", before=before)
        graph.replace(v, made.output, keep_name=False)
        return True

    def _visit(self, graph: Graph, node: Node, context: Context) -> int:
        found = 0
        plain = is_matrix_product(node)
        for i, axis, along in _weights(node):
            v = node.inputs[i] if i < len(node.inputs) else None
            turned = plain and v is not None and _is_turned(v)
            if turned and v is not None and v.producer is not None:
                v = v.producer.inputs[0]
            if v is None or v.const is None or v.const.dtype != np.float32:
                continue
            w = v.const.T if turned else v.const
            if w.size < LEAST or w.ndim < 2 or (plain and w.ndim != 2):
                continue
            bits = BITS[self.kind] if plain else 8
            block = self.block if plain else w.shape[along] if along == 2 else 0
            small, scale, noise = quantised(w, bits, axis, along, block)
            if not noise <= NOISE:
                context.refuse(PASS, node.name, f"{v.name} would lose {noise:.0%} of its power")
                continue
            new = _dequantised(graph, v, small, scale, {"axis": along if block else axis,
                               "block_size": block}, node)  # fmt: skip
            old = node.inputs[i]
            graph.set_input(node, i, new)
            if old is not None and old.producer is not None:
                graph.sweep([old.producer])
            found += 1
        return found


def _dequantised(
    graph: Graph, v: Value, small: Array, scale: Array, attrs: dict[str, Any], before: Node
) -> Value:
    """Add a DequantizeLinear of the numbers `small` and their scales, before the node `before`, and
    return its float32 result. `attrs`: its axis and block size. Names are made from that of v, for
    which the result stands."""
    const = graph.const(small, graph.unique(f"{v.name}/{small.dtype.name}"))
    scales = graph.const(scale, graph.unique(f"{v.name}/scale"))
    name = graph.unique(f"{v.name}/float32")
    op = OPS["DequantizeLinear"]
    return graph.add(op, const, scales, name=name, before=before, **attrs).output


def _is_turned(v: Value) -> bool:
    node = v.producer
    return node is not None and node.op.name == "Transpose" and node.perm in (None, (), (1, 0))


def _weights(node: Node) -> list[tuple[int, int, int]]:
    """(index of the input, its axis of outputs, its axis that is summed) for each weights operand
    of a node; [] if the node has none, or is a transposed convolution of groups."""
    found = weights_of(node)
    if found is None or (not found.scaled and found.axis == 1 and node.attrs["group"] > 1):
        return []
    axis = found.axis % 2
    return [(i, axis, 2 if found.scaled else 1 - axis) for i in found.inputs]


def quantised(w: Array, bits: int, axis: int, along: int, block: int) -> tuple[Array, Array, float]:
    """(numbers, scales, noise): w rounded to signed whole numbers of `bits` bits (-127 to 127, or
    -8 to 7) times scales. With `block` there is a scale for each `block` consecutive weights along
    the axis `along`, as an array [..., blocks, ...]; without (0), for each index on `axis`, as a
    vector. `noise` is the sum of squares of the errors over that of w; NaN or infinite if w is not
    finite."""
    most = 2 ** (bits - 1) - 1
    low = most + (bits < 8)
    at, size = (along, block) if block else (axis, max(1, PIECE * w.shape[axis] // w.size))
    others = along if block else tuple(i for i in range(w.ndim) if i != axis)
    small, scales = np.empty(w.shape, np.int8), []
    noise = power = 0.0
    for first in range(0, w.shape[at], size):
        cut = (*(slice(None),) * at, slice(first, first + size))
        part = w[cut]
        largest = np.maximum(
            part.max(axis=others, keepdims=True) / np.float32(most),
            -part.min(axis=others, keepdims=True) / np.float32(low),
        )
        scale = np.where(largest > 0, largest, NO_WEIGHTS).astype(np.float32)
        rounded = np.clip(np.rint(part / scale), -low, most)
        with np.errstate(invalid="ignore"):  # NaN, which the noise tells
            small[cut] = rounded
        scales.append(scale)
        noise += float(np.square(rounded * scale - part).sum(dtype=np.float64))
        power += float(np.square(part).sum(dtype=np.float64))
    scale = np.concatenate(scales, axis=at)
    kind = dtype_of(f"int{bits}")
    lost = noise / power if power else 0.0 if noise == 0 else np.inf
    return small.astype(kind, copy=False), scale if block else scale.reshape(-1), lost
