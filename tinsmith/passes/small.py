"""Products and recurrent layers read constant weights of few bits as they are.

Weights of few bits have one form, whatever a file's spelling: DequantizeLinear, or a Cast from a
half, stands between the constant and the operator that reads it. The rules here give the constant
itself to an operator whose kernel decodes it in registers.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.precision import is_half
from tinsmith.ops.quant import spread
from tinsmith.passes.facts import BYTES, LARGE, LARGE_LAYER, shape_of
from tinsmith.passes.integers import float32
from tinsmith.passes.lower_quant import FLOAT32, given
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, copy_with, opt, p

rules = RuleSet(
    "small-products", "Products read constant weights of few bits as they are.", tolerance=1e-5
)
register("machine")(rules)

SMALL = ("int8", "uint8", "int4", "uint4")
FEW = 4
"""The most rows for which products read weights of 16 bits, or weights of few bits where the left
factor is dequantised, too. With more rows arithmetic counts, in which other kernels are faster.
`FEW_ROWS` of the kernels is the same."""


def _whole(graph: Graph, _: Any) -> Value:
    return graph.const(np.resize(np.arange(-128, 128, dtype=np.int8), (128, LARGE // 128)))


def _halves(graph: Graph, _: Any) -> Value:
    return graph.const(np.resize(np.arange(-8, 8, dtype=np.float16), (128, LARGE // 128)))


def _turned(v: Array, perm: tuple[int, ...] | None) -> Array:
    return v if perm is None else np.ascontiguousarray(v.transpose(perm))


def _need_product(x: Value, w: Array, product: Node) -> None:
    if w.ndim != 2 or w.size < LARGE:
        raise Skip(f"weights {list(w.shape)} are no large matrix")
    if x.dtype != FLOAT32 or product.output.dtype != FLOAT32:
        raise Skip(f"the left factor is {x.dtype}")
    if product.precise:
        raise Skip("the product is to be precise")
    if not shape_of(x):
        raise Skip("the left factor has no axes")


def _need_few(x: Value) -> None:
    """Raise Skip if a DequantizeLinear makes x, and x may have more than FEW rows: products of
    bytes by bytes have kernels of their own."""
    before = x.producer.op.name if x.producer is not None else ""
    if before == "DequantizeLinear" and not _has_few_rows(x):
        raise Skip("both factors are dequantised")


def _has_few_rows(x: Value) -> bool:
    rows = shape_of(x)[:-1]
    return all(isinstance(d, int) for d in rows) and prod(map(int, rows)) <= FEW


_right = p.DequantizeLinear(const("w"), const("s"), opt(const("z"))).named("right")


@rules.rule(
    p.MatMul("x", p.Transpose(_right.shared()).named("t")).named("product")
    | p.MatMul("x", _right.shared()).named("product"),
    x=given("float32", 2, 128),
    w=_whole,
    s=float32(0.5),
    z=lambda graph, _: graph.const(np.array(3, np.int8)),
    product={},
)
def whole(
    x: Value, w: Array, s: Array, right: Node, product: Node, z: Array | None = None,
    t: Node | None = None,
) -> Value:  # fmt: skip
    """x @ dequantise(w, s, z) -> SmallMatMul(x, w, s, z), w a constant matrix of 4 or 8 bits, of at
    least LARGE elements, perhaps transposed before. If x is dequantised too, it must have at most
    FEW rows."""
    if w.dtype.name not in SMALL or s.dtype != FLOAT32 or right.output.dtype != FLOAT32:
        raise Skip(f"weights of {w.dtype} with scales of {s.dtype} have no kernel")
    _need_product(x, w, product)
    _need_few(x)
    if not np.isfinite(s).all():
        raise Skip("a scale is not finite")
    perm = None if t is None else (t.perm or (1, 0))
    axis = 0 if s.size == 1 else right.axis % 2 if perm is None else perm.index(right.axis % 2)
    block = right.block_size if s.ndim == 2 and axis == 0 else 0
    if s.ndim == 2 and axis == 1 and right.block_size != 1:
        raise Skip("blocks lie along the columns")
    if s.ndim < 2 and s.size > 1 and axis == 0:
        raise Skip("each row has a scale")
    turned = _turned(w, perm)
    scale, zero = (_row(v, perm, turned.shape[1]) for v in (s, z))
    return OPS["SmallMatMul"](x, turned, scale, zero, block_size=block)


def _row(v: Array | None, perm: tuple[int, ...] | None, n: int) -> Array | None:
    """Scales or zero points as [blocks, n]: those of rank 2 transposed by `perm`; others, one or n,
    as one row. None for None."""
    if v is None or v.ndim == 2:
        return None if v is None else _turned(v, perm)
    return np.ascontiguousarray(np.broadcast_to(v.reshape(1, -1), (1, n)))


_half = p.Cast(const("w")).named("cast")


@rules.rule(
    p.MatMul("x", p.Transpose(_half.shared()).named("t")).named("product")
    | p.MatMul("x", _half.shared()).named("product"),
    x=given("float32", 2, 128),
    w=_halves,
    cast={"to": "float32"},
)
def halves(x: Value, w: Array, cast: Node, product: Node, t: Node | None = None) -> Value:
    """x @ float32(w) -> SmallMatMul(x, w), w a constant matrix of at least LARGE halves, perhaps
    transposed after the cast, x of at most FEW rows."""
    if not is_half(w.dtype) or cast.output.dtype != FLOAT32:
        raise Skip(f"weights are {w.dtype}")
    _need_product(x, w, product)
    if not _has_few_rows(x):
        raise Skip("many rows are multiplied by them as float32")
    return OPS["SmallMatMul"](x, w if t is None else _turned(w, t.perm or (1, 0)))


def _small_layer(name: str, gates: int) -> None:
    """Register the rule that lets the recurrent operator `name` read weights of few bits (which:
    `_outputs`). `gates`: how many it has, for the sample's shapes."""

    def small(x: Value, w: Value, r: Value, cell: Node) -> tuple[Value, ...]:
        if x.dtype != FLOAT32:
            raise Skip(f"the input is {x.dtype}")
        found = [_outputs(v, bool(cell.attrs.get("rounded"))) for v in (w, r)]
        if found == [None, None]:
            raise Skip("no weights are dequantised, or cast from halves")
        changes = {}
        for label, pair in zip("wr", found, strict=True):
            if pair is not None:
                changes[label], changes[f"{label}_scale"] = pair
        return copy_with(cell, **changes).outputs

    small.__name__ = f"small_{name.lower()}"
    small.__doc__ = f"{name.lower()}(x, dequantise(w, s), r) -> {name.lower()}(x, w, r, w_scale=s)."
    hidden = 128
    rules.rule(
        getattr(p, name)("x", "w", "r", ...).named("cell"),
        tolerance=1e-5,
        x=given("float32", 3, 2, 512),
        w=lambda graph, _: OPS["DequantizeLinear"](
            graph.const(np.resize(np.arange(-9, 9, dtype=np.int8), (1, gates * hidden, 512))),
            np.full((1, gates * hidden, 1), 0.01, FLOAT32), axis=2, block_size=512,
        ),
        r=lambda graph, _: graph.const(np.full((1, gates * hidden, hidden), 0.01, FLOAT32)),
    )(small)  # fmt: skip


for _name, _gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    _small_layer(_name, _gates)


def _outputs(v: Value, rounded: bool) -> tuple[Array, Array] | None:
    """(numbers, scales) of the weights v [directions, outputs, inputs] of a recurrent layer, if a
    Cast or a DequantizeLinear makes them from a constant of halves or bytes: the constant, less
    zero points, and a scale [directions, outputs] for each output (1 for halves). None for other
    values; also for fewer than LARGE_LAYER elements, unless `rounded`: layers that round their
    inputs and states to bytes have no kernels for float32 weights."""
    node = v.producer
    if node is None or (v.type.size < LARGE_LAYER and not rounded):
        return None
    w = node.inputs[0]
    if w is None or w.const is None or v.dtype != FLOAT32:
        return None
    if "conversion" in node.op.traits and is_half(w.dtype):
        return w.const, np.ones(w.const.shape[:1] + w.const.shape[1:2], FLOAT32)
    return _by_outputs(node, w.const) if "dequantise" in node.op.traits else None


def _by_outputs(node: Node, w: Array) -> tuple[Array, Array] | None:
    """`_outputs` for a DequantizeLinear `node` of w [directions, outputs, inputs]: w less its zero
    points, as int8 if all numbers fit, else int16, and its scales. None if w is not of 8 bits, if
    scales differ along the inputs or are not finite float32, or if scales or zero points are
    computed."""
    s, z = (None if v is None else v.const for v in (*node.inputs, None)[1:3])
    if w.dtype.name not in BYTES or s is None or s.dtype != FLOAT32:
        return None
    if not np.isfinite(s).all() or (z is None and len(node.inputs) > 2 and node.inputs[2]):
        return None
    block, axis = node.block_size, node.axis % 3
    if s.size > 1 and (block < w.shape[2] if axis == 2 else block):
        return None
    zero, scale = (
        np.broadcast_to(spread(v, w.shape, axis, block), w.shape)[..., 0]
        for v in (np.zeros(s.shape, w.dtype) if z is None else z, s)
    )
    whole = w.astype(np.int16) - zero.astype(np.int16)[..., None]
    low = np.iinfo(np.int8)
    fits = not whole.size or (whole.min() >= low.min and whole.max() <= low.max)
    return whole.astype(np.int8) if fits else whole, np.ascontiguousarray(scale)
