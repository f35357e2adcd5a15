"""Convolutions and products of dequantised bytes become exact sums of bytes, and arithmetic.

A quantised operator is DequantizeLinear -> float operator -> elementwise nodes -> QuantizeLinear.
Here the dequantising of both factors moves behind the sums, where it is a factor for each output:

    conv(s (x - z), t (w - u)) + b = st conv_integer(x, w, z, u) + b

The float operator would round each of its sums; these are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.graph.types import name_of
from tinsmith.ops import OPS
from tinsmith.passes.facts import BYTES, filled_dims, shape_of, static_dims
from tinsmith.passes.lower_integers import is_depthwise, most_of, window_of
from tinsmith.passes.lower_quant import FLOAT32, given, known, nonzero
from tinsmith.passes.manager import Context, has_fast_bytes, has_pairs, register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_

PRODUCTS = ("ConvInteger", "MatMulInteger")

WIDE = 8
"""Convolutions in groups are computed in bytes if each group has a multiple of this many channels.
Then at most two share one of the kernels' blocks of 16 channels, so that at most half of the
products are by padding zeros, while four of bytes take the time of one of floats. Estimated."""

HUGE = 1e18
"""Scales from here on may make numbers that overflow float32, to infinities that sums of bytes do
not have."""

rules = RuleSet("integer-products", "Products of dequantised bytes become exact sums of bytes.")
register("machine", when=has_fast_bytes)(rules)


@register("machine")
@dataclass(frozen=True)
class SplitDequantised:
    """Each reader of dequantised bytes gets its own DequantizeLinear.

    Floats with several readers would lie in memory; with one reader, the DequantizeLinear is fused
    into it. Constants and graph outputs stay. Only for machines that multiply bytes much faster
    than floats.
    """

    def run(self, graph: Graph, context: Context) -> int:
        if not has_fast_bytes(context):
            return 0
        found = 0
        for node in list(graph.nodes):
            if "dequantise" not in node.op.traits or node.inputs[0] is None:
                continue
            if node.inputs[0].const is not None or node.output in graph.outputs:
                continue
            for user in list(dict.fromkeys(node.output.uses))[1:]:
                own = graph.adopt(node, node.inputs)
                own.seq = node.seq
                for i, v in enumerate(user.inputs):
                    if v is node.output:
                        graph.set_input(user, i, own.output)
                found += 1
        return found


def float32(*numbers: float) -> Callable[[Graph, Any], Value]:
    """An entry for the sample of a rule: a constant of these numbers that stays float32 when the
    rule is tested with another element type."""
    return lambda graph, _: graph.const(np.array(numbers, FLOAT32))


TO_BYTES: dict[str, Any] = {"scale": float32(0.017), "zero": np.array(7, np.uint8)}
"""The constants of a QuantizeLinear or DequantizeLinear, for the sample of a rule."""


def dequantised(node: Node) -> tuple[Value, Array, Value | None]:
    """(x, scales, zero points or None): the inputs of a DequantizeLinear or QuantizeLinear, whose
    scales must be constant (asserted)."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None and scale is not None and scale.const is not None
    return x, scale.const, zero


def need_float32(q: Node) -> None:
    """Raise Skip if a QuantizeLinear with a scale of float32 divides in another type."""
    if q.precision not in (None, "float32"):
        raise Skip(f"it divides in {q.precision}")


def need_left(x: Value, scale: Array, zero: Value | None) -> None:
    """Raise Skip unless x, the left factor of a product, dequantised by `scale` and `zero`, is of
    bytes, with one positive scale of float32 and a constant zero point or none."""
    need_bytes(x, scale)
    if scale.size != 1:
        raise Skip("the left factor has a scale for each place")
    if zero is not None and zero.const is None:
        raise Skip("the zero point of the left factor is computed")


def need_bytes(x: Value, scale: Array) -> None:
    if name_of(x.dtype) not in BYTES:
        raise Skip(f"{x.name!r} is {x.dtype}, not bytes")
    if scale.dtype != FLOAT32:
        raise Skip(f"a scale is {scale.dtype}")
    one = scale.item() if scale.size == 1 else None
    if not (np.all((scale > 0) & (scale < HUGE)) if one is None else 0 < one < HUGE):
        raise Skip(f"a scale is not positive, or not below {HUGE:g}")


def need_one(*scales: Array) -> None:
    if any(s.size != 1 for s in scales):
        raise Skip("it has a scale for each place")


def need_room(summed: tuple[int, ...]) -> None:
    if most_of(summed) >= 1 << 31:
        raise Skip(f"sums of {prod(summed)} products may exceed int32")


def flat(zero: Value | None) -> Any:
    """Zero points as an input for a new node: a constant as its array, of rank 0 if it has one
    element; a computed value, and None, as they are."""
    given = known(zero)
    return given.reshape(()) if isinstance(given, np.ndarray) and given.size == 1 else given


def of_dequantised(window: Any) -> Any:
    """The pattern of a convolution `window` (p.Conv or p.ConvTranspose) of dequantised operands. It
    binds the nodes "conv", "left" (of x, xs, xz) and "right" (of w, ws, wz), and the bias b. Scales
    xs, ws and the bias are constant; zero points xz, wz and the bias may be absent."""
    return window(
        p.DequantizeLinear("x", const("xs"), opt("xz")).shared().named("left"),
        p.DequantizeLinear("w", const("ws"), opt("wz")).shared().named("right"),
        opt(const("b")),
    ).named("conv")


_conv = of_dequantised(p.Conv)
_sample: dict[str, Any] = {
    "tolerance": 1e-5,
    "x": given("uint8", 1, 8, 5, 5),
    "xs": np.array(0.5, np.float32),
    "xz": np.array(3, np.uint8),
    "w": np.arange(-144, 144, dtype=np.int32).astype(np.int8).reshape(4, 8, 3, 3),
    "ws": np.array([0.1, 0.2, 0.3, 0.01], np.float32),
    "wz": np.array([1, 0, -2, 5], np.int8),
    "b": (4,),
    "right": {"axis": 0},
}


@rules.rule(_conv, **_sample, conv={"pad": (1, 1, 1, 1)})
def convolution(left: Node, right: Node, b: Array | None, conv: Node) -> Value:
    """conv(deq(x), deq(w), b) -> float(conv_integer(x, w)) * xs * ws + b, sums exact. w is
    constant, with one scale or one for each output channel, x has one scale. In groups only if
    these are wide (`_need_wide_groups`) or a kernel for bytes takes them (`is_depthwise`)."""
    (x, xs, xz), (w, ws, wz) = dequantised(left), dequantised(right)
    need_left(x, xs, xz)
    need_bytes(w, ws)
    rank = len(shape_of(x))
    if w.const is None:
        raise Skip("the weights are computed")
    need_room(filled_dims(w)[1:])
    if (ws.size > 1 and right.axis % rank) or right.block_size:
        raise Skip("the weights do not have a scale for each output")
    if conv.group > 1 and not is_depthwise(x, w, nonzero(xz), nonzero(wz), conv):
        _need_wide_groups(w, conv)
    tail = (1,) * (rank - 2)
    sums = OPS["ConvInteger"](x, w, flat(nonzero(xz)), flat(nonzero(wz)), **window_of(conv))
    factor = (xs.reshape(()) * ws).reshape(-1, *tail) if ws.size > 1 else (xs * ws).reshape(())
    return OPS["Rescale"](sums, factor, None if b is None else b.reshape(-1, *tail))


def _need_wide_groups(w: Value, conv: Node) -> None:
    """Raise Skip unless the groups of a convolution by weights `w` have multiples of WIDE input and
    output channels; of 2 * WIDE (or exactly WIDE both) if the number of groups is odd. Else too
    many products of zeros are added where kernels merge groups into whole blocks."""
    inputs, outputs = filled_dims(w)[1], filled_dims(w)[0] // conv.group
    if inputs % WIDE or outputs % WIDE:
        raise Skip(f"its {conv.group} groups have {inputs} to {outputs} channels, "
                   f"not multiples of {WIDE}")  # fmt: skip
    uneven = inputs % (2 * WIDE) or outputs % (2 * WIDE)
    if conv.group % 2 and uneven and not inputs == outputs == WIDE:
        raise Skip(f"its {conv.group} groups of {inputs} to {outputs} channels are no pairs")


pairs = RuleSet("integer-pairs", "Products of bytes, in pairs, where floats are not faster.")
register("machine", when=has_pairs)(pairs)

LEAST = 32
"""Channels on either side from which products take less time as bytes, packed as 16 bits, than as
floats. Measured on Zen 3."""
_pointwise = {
    "x": given("uint8", 1, LEAST, 5, 5),
    "w": np.arange(LEAST * LEAST).astype(np.int8).reshape(LEAST, LEAST, 1, 1),
    "ws": np.linspace(0.1, 1, LEAST, dtype=np.float32),
    "wz": np.zeros(LEAST, np.int8),
    "b": (LEAST,),
}


@pairs.rule(_conv, **_sample | _pointwise)
def convolution_of_pairs(
    left: Node, right: Node, x: Value, w: Value, b: Array | None, conv: Node
) -> Value:
    """conv(deq(x), deq(w), b) -> the result of the rule `convolution`, where products of pairs of
    bytes are faster than those of floats. A convolution of one group needs at least LEAST input and
    LEAST output channels, and one tap, a stride above 1, or `_has_winograd`; one of several groups
    must be depthwise, with no 1x1 convolution of floats before (`_is_widened`) or after it
    (`_is_narrowed`)."""
    dims = filled_dims(w)
    unit = all(s == 1 for s in conv.stride or (1,))
    if conv.group == 1 and prod(dims[2:]) > 1 and unit and not _has_winograd(dims, conv):
        raise Skip(f"floats need fewer products for its {prod(dims[2:])} taps")
    if conv.group == 1 and min(dims[:2]) < LEAST:
        raise Skip(f"it has {dims[1]} to {dims[0]} channels: too few")
    if conv.group > 1 and not is_depthwise(x, w, None, None, conv):
        raise Skip(f"floats take less time for its {conv.group} groups")
    if conv.group > 1 and (_is_widened(x) or _is_narrowed(conv)):
        raise Skip("floats are one block with a convolution of one tap beside it")
    return convolution.build(left, right, b, conv)


def _has_winograd(dims: tuple[int, ...], conv: Node) -> bool:
    """Whether Winograd's method computes a convolution by weights of these `dims` in bytes, in less
    time than in floats: by 3x3 weights, input channels a multiple of LEAST, no dilation. Timed in
    turns on Zen 4 with AVX2, one thread: vgg16 0.78 of the time, resnet18 0.92, unet 0.95."""
    dilated = any(d > 1 for d in conv.dilation or (1,))
    return dims[2:] == (3, 3) and not dims[1] % LEAST and not dilated


def _is_widened(x: Value) -> bool:
    """Whether x comes from a 1x1 convolution of floats (`_has_one_tap`), directly or along
    the first inputs of elementwise, QuantizeLinear and DequantizeLinear nodes. A depthwise
    convolution that reads x can then be in one block with it, in floats."""
    node = x.producer
    while node is not None and node.op.traits & {"elementwise", "steps"}:
        node = None if node.inputs[0] is None else node.inputs[0].producer
    return node is not None and _has_one_tap(node) is not None


def _is_narrowed(conv: Node) -> bool:
    """Whether the only reader of the result of `conv`, after elementwise and quantising nodes, is a
    1x1 convolution with fewer than LEAST channels, so in floats."""
    users = list(dict.fromkeys(conv.output.uses))
    while len(users) == 1 and users[0].op.traits & {"elementwise", "steps"}:
        users = list(dict.fromkeys(users[0].output.uses))
    channels = _has_one_tap(users[0]) if len(users) == 1 else None
    return channels is not None and channels < LEAST


def _has_one_tap(node: Node) -> int | None:
    """The smaller of the first two dims of a node's weights (channels: inputs, outputs), if it is a
    float32 convolution of one group and they have one tap; else None. Raises Skip if their dims are
    not known."""
    if "anchor" not in node.op.traits or node.output.dtype != FLOAT32 or len(node.inputs) < 2:
        return None
    if node.attrs.get("group", 1) > 1:
        return None
    w = node.inputs[1]
    dims = () if w is None else filled_dims(w)
    return min(dims[:2]) if len(dims) > 2 and set(dims[2:]) == {1} else None


_transpose = p.Transpose(
    p.DequantizeLinear("w", const("ws"), opt("wz")).shared().named("right")
).named("t")
_weights: dict[str, Any] = {
    "w": np.arange(-10, 10, dtype=np.int8).reshape(5, 4),
    "ws": np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    "wz": np.array([1, 0, -2, 5, 7], np.int8),
    "right": {"axis": 0},
    "t": {"perm": (1, 0)},
}


@rules.rule(_transpose, **_weights)
def transposed(w: Value, right: Node, t: Node) -> Value:
    """transpose(deq(w)) -> deq(transpose(w))."""
    if right.block_size:
        raise Skip("it is quantised in blocks")
    rank = len(shape_of(w))
    perm = t.perm or tuple(reversed(range(rank)))
    axis = perm.index(right.axis % rank)
    return with_(right, x=OPS["Transpose"](known(w), perm=perm), axis=axis)


@pairs.rule(_transpose, **_weights)
def transposed_weights(w: Value, right: Node, t: Node) -> Value:
    """transpose(deq(w)) -> deq(transpose(w)), of constant weights."""
    if w.const is None:
        raise Skip("it is computed")
    return transposed.build(w, right, t)


@rules.rule(
    p.Reshape(p.DequantizeLinear("x", const("xs"), opt("xz")).named("left"), "shape"),
    x=given("uint8", 2, 3, 4),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    shape=np.array([6, 4]),
)
def reshaped(x: Value, xs: Array, shape: Value, left: Node) -> Value:
    """reshape(deq(x)) -> deq(reshape(x)), where x has one scale."""
    need_one(xs)
    return with_(left, x=OPS["Reshape"](x, known(shape)))


@rules.rule(
    p.MaxPool(p.DequantizeLinear("x", const("xs"), opt("xz")).named("left")).named("pool"),
    x=given("uint8", 1, 3, 5, 6),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    pool={"kernel": (2, 3), "pad": (1, 0, 0, 1)},
)
def maximum(x: Value, xs: Array, left: Node, pool: Node) -> Value:
    """max_pool(deq(x)) -> deq(max_pool(x)), where x has one scale."""
    need_bytes(x, xs)
    if xs.size != 1 or pool.with_indices:
        raise Skip("it has a scale for each place, or the places of the maxima are wanted")
    return with_(left, x=with_(pool, x=x))


@rules.rule(
    p.QuantizeLinear(p.Concat("x", "y", ...).named("join"), const("scale"), opt("zero")).named("q"),
    x=(1, 3, 4),
    y=(1, 2, 4),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
    join={"axis": 1},
)
def joined(join: Node, scale: Array, q: Node) -> Value:
    """quantise(concat(x, ...)) -> concat(quantise(x), ...), with one scale."""
    need_one(scale)
    parts = [with_(q, x=v) for v in join.inputs]
    return OPS["Concat"](*parts, axis=join.axis)


_product = p.MatMul(
    p.DequantizeLinear("a", const("sa"), opt("za")).shared().named("left"),
    p.DequantizeLinear("b", const("sb"), opt("zb")).shared().named("right"),
)
_factors: dict[str, Any] = {
    "tolerance": 1e-5,
    "a": given("uint8", 3, 4),
    "sa": np.array(0.5, np.float32),
    "za": np.array(3, np.uint8),
    "b": np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    "sb": np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    "zb": np.array([1, 0, 0, 2, 5], np.int8),
    "right": {"axis": 1},
}


@rules.rule(_product, **_factors)
def product(left: Node, right: Node) -> Value:
    """deq(a) @ deq(b) -> float(matmul_integer(a, b)) * sa * sb, sums exact. a has one scale, b one
    or one for each column."""
    (a, sa, za), (b, sb, zb) = dequantised(left), dequantised(right)
    need_left(a, sa, za)
    need_bytes(b, sb)
    rank = len(shape_of(b))
    if len(shape_of(a)) < 2 or rank < 2:
        raise Skip("a factor is a vector")
    need_room(static_dims(b)[-2:-1])
    if (sb.size > 1 and right.axis % rank != rank - 1) or right.block_size:
        raise Skip("the right factor does not have a scale for each column")
    if zb is not None and zb.const is None:
        raise Skip("the zero point of the right factor is computed")
    sums = OPS["MatMulInteger"](a, b, flat(nonzero(za)), flat(nonzero(zb)))
    factor = sa.reshape(()) * (sb if sb.size > 1 else sb.reshape(()))
    return OPS["Rescale"](sums, factor)


_large: dict[str, Any] = {
    "a": given("uint8", 3, LEAST),
    "b": np.arange(LEAST * LEAST).astype(np.int8).reshape(LEAST, LEAST),
    "sb": np.linspace(0.1, 1, LEAST, dtype=np.float32),
    "zb": np.zeros(LEAST, np.int8),
}


@pairs.rule(_product, **_factors | _large)
def product_of_pairs(left: Node, right: Node, b: Value) -> Value:
    """deq(a) @ deq(b) -> float(matmul_integer(a, b)) * sa * sb, for a constant b of at least LEAST
    rows and columns."""
    if b.const is None:
        raise Skip("both factors are computed")
    if b.const.ndim != 2 or min(b.const.shape) < LEAST:
        raise Skip(f"its weights {b.const.shape} are too few")
    return product.build(left, right)
