"""Quantisation between operators: computed early, only once, and by one factor and one term.

Where operators compute in floats, `dequantise(quantise(x))` rounds x: elementwise arithmetic that
can be the epilogue of the operator that makes x. So both nodes move up to it, before nodes that
only move data; and floats already rounded to the same steps are not rounded again. Sums of bytes
become bytes again by one factor and one term.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops.quant import divided_in
from tinsmith.ops.rescale import ENTRIES
from tinsmith.passes.facts import Array, bounds
from tinsmith.passes.integers import (
    PRODUCTS,
    dequantised,
    flat,
    float32,
    joined,
    need_bytes,
    need_one,
)
from tinsmith.passes.lower_quant import FLOAT32, given, narrowed
from tinsmith.passes.manager import Context, has_fast_bytes, register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_


def need_float32(q: Node) -> None:
    """Raise Skip if a QuantizeLinear with a scale of float32 divides in another type."""
    if q.precision not in (None, "float32"):
        raise Skip(f"it divides in {q.precision}")


early = RuleSet("quantise-early", "Quantising moves up, before nodes that only move data.")
register("machine", when=lambda context: not has_fast_bytes(context))(early)


def _moved(of: Any, x: Any = "x") -> Any:
    """The pattern `of(move)`, where `move` is a Reshape, Transpose, Squeeze or Unsqueeze of x."""
    return (
        of(p.Reshape(x, "shape").named("move"))
        | of(p.Transpose(x).named("move"))
        | of(p.Squeeze(x, opt("axes")).named("move"))
        | of(p.Unsqueeze(x, "axes").named("move"))
    )


_moves: dict[str, Any] = {"shape": np.array([6, 4]), "axes": np.array([1])}
_bytes: dict[str, Any] = {"scale": float32(0.017), "zero": np.array(7, np.uint8)}


def _before(x: Value, move: Node, scale: Array, change: Node) -> Value:
    need_one(scale)
    if x.producer is None:
        raise Skip("nothing is computed with it")
    return with_(move, x=with_(change, x=x))


@early.rule(
    _moved(lambda of: p.QuantizeLinear(of, const("scale"), opt("zero")).named("q")),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (2, 1, 3, 4)))),
    **_moves,
    **_bytes,
)
def quantised_before(x: Value, move: Node, scale: Array, q: Node) -> Value:
    """quantise(move(x)) -> move(quantise(x)), with one scale, if a node makes x."""
    return _before(x, move, scale, q)


@early.rule(
    _moved(lambda of: p.DequantizeLinear(of, const("scale"), opt("zero")).named("d")),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 1, 3, 4)))),
    **_moves,
    **_bytes,
)
def dequantised_before(x: Value, move: Node, scale: Array, d: Node) -> Value:
    """dequantise(move(x)) -> move(dequantise(x)), with one scale, if a node makes x."""
    return _before(x, move, scale, d)


@early.rule(
    p.QuantizeLinear(p.Concat("x", "y", ...).named("join"), const("scale"), opt("zero")).named("q"),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (1, 3, 4)))),
    y=lambda graph, _: OPS["Relu"](graph.input("y", Type(FLOAT32, (1, 2, 4)))),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
    join={"axis": 1},
)
def joined_before(join: Node, scale: Array, q: Node) -> Value:
    """quantise(concat(x, ...)) -> concat(quantise(x), ...), of one scale, if nodes make all x."""
    if any(v is None or v.producer is None for v in join.inputs):
        raise Skip("nothing is computed with a part")
    return joined.build(join, scale, q)


@early.rule(
    p.DequantizeLinear(
        p.Concat(p.QuantizeLinear("x", const("s"), opt("z")), "y", ...).named("join"),
        const("scale"),
        opt("zero"),
    ).named("d"),
    x=(1, 3, 4),
    y=lambda graph, _: OPS["QuantizeLinear"](graph.input("y", Type(FLOAT32, (1, 2, 4))),
                                             np.float32(0.017), np.array(7, np.uint8)),
    s=float32(0.017),
    z=np.array(7, np.uint8),
    **_bytes,
    join={"axis": 1},
)  # fmt: skip
def dequantised_parts(join: Node, scale: Array, d: Node) -> Value:
    """dequantise(concat(x, ...)) -> concat(dequantise(x), ...) with one scale, where a
    QuantizeLinear makes each part."""
    need_one(scale)
    parts = [v for v in join.inputs if v is not None]
    if any(v.producer is None or "quantise" not in v.producer.op.traits for v in parts):
        raise Skip("a part is not quantised here")
    return OPS["Concat"](*(with_(d, x=v) for v in parts), axis=join.axis)


undo = RuleSet("undo-quantised", "Bytes that are dequantised, and quantised again alike, stay.")
register("machine")(undo)


_again = p.DequantizeLinear("x", const("s"), opt(const("z"))).shared().named("before")
_alike: dict[str, Any] = {
    "s": float32(0.017),
    "t": float32(0.017),
    "z": np.zeros(1, np.uint8),
    "u": np.zeros(1, np.uint8),
}


@undo.rule(
    p.QuantizeLinear(_again, const("t"), opt(const("u"))).named("q"),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 3)))),
    **_alike,
)
def undone(before: Node, q: Node) -> Value:
    """quantise(deq(x, s, z), s, z) -> x, with one positive scale, if the byte type stays."""
    (x, s, z), (_, t, u) = dequantised(before), dequantised(q)
    need_bytes(x, s)
    zeros = [0 if v is None or v.const is None else int(v.const.reshape(-1)[0]) for v in (z, u)]
    if s.size != 1 or t.size != 1 or s.item() != t.item() or zeros[0] != zeros[1]:
        raise Skip("the scales or the zero points differ")
    need_float32(q)
    if x.dtype != q.output.dtype or before.output.dtype != FLOAT32:
        raise Skip("the element types differ")
    return x


def _saturates(bound: float | None, q: Node, top: bool) -> bool:
    """Whether the quantisation q, of one positive scale, gives the largest (`top`) or smallest
    number of its type from a bound on, as it does without the bound; True if the bound is None."""
    if bound is None:
        return True
    _, scale, zero = dequantised(q)
    need_bytes(q.output, scale)
    need_one(scale)
    ends = np.iinfo(q.output.dtype)
    numbers = [np.asarray(bound, q.operand(0).dtype).reshape(1), scale.reshape(1)]
    if zero is not None:
        numbers.append(np.asarray(zero.const).reshape(1))
    op: Any = q.op
    return bool(op.reference(*numbers, **q.attrs)[0] == (ends.max if top else ends.min))


@undo.rule(
    p.QuantizeLinear(
        p.Relu("x").named("act") | p.Clip("x").named("act"), const("scale"), opt(const("zero"))
    ).named("q"),
    scale=float32(0.017),
    zero=np.zeros(1, np.uint8),
)
def unbounded(x: Value, act: Node, q: Node) -> Value:
    """quantise(Relu(x)) -> quantise(x), if what the bound cuts off saturates anyway; the same for
    both bounds of a Clip."""
    low, high = bounds(act)
    if not (_saturates(low, q, top=False) and _saturates(high, q, top=True)):
        raise Skip("bytes have numbers beyond the bounds")
    return with_(q, x=x)


move = RuleSet("move-bytes", "Bytes are moved as they are, not as floats.")
register("machine")(move)


@move.rule(
    _moved(lambda of: p.QuantizeLinear(of, const("t"), opt(const("u"))).named("q"), _again),
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(np.dtype(np.uint8), (2, 1, 3, 4)))),
    **_moves,
    **_alike,
)
def moved_alike(before: Node, move: Node, q: Node) -> Value:
    """quantise(move(deq(x, s, z)), s, z) -> move(x), where `undone` allows it: with one positive
    scale, if the byte type stays."""
    return with_(move, x=undone.build(before, q))


Steps = tuple[float, int, np.dtype[Any]]
"""The numbers that bytes stand for, (byte - zero point) * scale: (scale, zero point, dtype of the
bytes)."""


@register("machine")
@dataclass(frozen=True)
class DropRounded:
    """Floats that were rounded to the same steps before, and only moved since, are not rounded.

    A QuantizeLinear and the DequantizeLinear after it are dropped if a DequantizeLinear of the same
    scale, zero point and type made what they read, and only moves, views and MaxPool lie between;
    but not where the machine multiplies bytes much faster than floats.
    """

    def run(self, graph: Graph, context: Context) -> int:
        if has_fast_bytes(context):
            return 0
        found = 0
        for node in list(graph.nodes):
            q = node.operand(0).producer if "dequantise" in node.op.traits else None
            if q is None or "quantise" not in q.op.traits:
                continue
            steps = _steps(node)
            if steps is None or steps != _steps(q) or node.output in graph.outputs:
                continue
            x = q.operand(0)
            if x.dtype == FLOAT32 and _is_on(x, steps):
                graph.replace(node.output, x)
                found += 1
        if found:
            graph.sweep()
        return found


def _steps(node: Node) -> Steps | None:
    """The `Steps` of a QuantizeLinear or DequantizeLinear. None unless it has one positive scale of
    float32, by which it divides in float32, and at most one zero point, all constant."""
    source, scale, zero, *_ = (*node.inputs, None, None, None)
    low = node.output if "quantise" in node.op.traits else source
    if scale is None or low is None or scale.const is None or scale.const.size != 1:
        return None
    places = np.zeros(1) if zero is None else zero.const
    real = FLOAT32 if source is low else divided_in(scale, node.precision)
    if scale.dtype != FLOAT32 or real != FLOAT32 or places is None or places.size != 1:
        return None
    step, place = float(scale.const.item()), int(places.item())
    return (step, place, low.dtype) if step > 0 and np.isfinite(step) else None


def _is_on(x: Value, steps: Steps) -> bool:
    """Whether x holds only numbers that bytes of these steps stand for: a DequantizeLinear of the
    same steps made them, and only moves, views and MaxPool lie between."""
    node = x.producer
    if node is None:
        return False
    if "dequantise" in node.op.traits:
        return _steps(node) == steps
    if not node.op.traits & {"view", "move"} and node.op.name != "MaxPool":
        return False
    sources = [v for v in node.inputs if v is not None and v.dtype == FLOAT32]
    return bool(sources) and all(_is_on(v, steps) for v in sources)


requantise = RuleSet(
    "requantise", "Sums of bytes become bytes again by one factor and one term.", tolerance=1e-5
)
register("machine", when=lambda context: context.byte_rate > 1)(requantise)

_sums = p.Rescale("sums", const("factor")) | p.Mul(p.Cast("sums").named("cast"), const("factor"))


@requantise.rule(
    p.QuantizeLinear(
        p.Rescale("sums", const("factor"), const("bias")) | p.Add(_sums, const("bias")) | _sums,
        const("scale"),
        opt("zero"),
    ).named("q"),
    sums=np.arange(-10, 10, dtype=np.int32).reshape(4, 5),
    factor=float32(0.1, 0.2, 0.3, 0.01, 1),
    bias=float32(0.1, 0.2, 0.3, 0.01, 1),
    **_bytes,
    cast={"to": "float32"},
)
def requantised(
    sums: Value, factor: Array, scale: Array, zero: Value | None, q: Node,
    bias: Array | None = None,
) -> Value:  # fmt: skip
    """quantise(sums * f + b, s, z) -> saturate(round(sums * (f / s) + b / s) + z); int32 sums."""
    need_bytes(q.output, scale)
    need_float32(q)
    if scale.size != 1 or sums.dtype != np.int32:
        raise Skip("it has a scale for each place, or is no sum")
    step = scale.astype(np.float64).reshape(())
    term = None if bias is None else _finite(bias / step)
    return narrowed(sums, flat(zero), q.output.dtype, _finite(factor / step), term)


def _finite(numbers: Any) -> Array:
    """`numbers` as float32. Raises Skip if one is no finite float32, as 1 / 1e-40."""
    with np.errstate(over="ignore"):
        found = np.asarray(numbers).astype(FLOAT32)
    if not np.isfinite(found).all():
        raise Skip("a scale is too small to divide by")
    return found


@requantise.rule(
    p.QuantizeLinear(
        p.Add(
            p.DequantizeLinear("a", const("sa"), opt(const("za"))).named("left"),
            p.DequantizeLinear("b", const("sb"), opt(const("zb"))).named("right"),
        ),
        const("scale"),
        opt("zero"),
    ).named("q"),
    a=given("uint8", 3, 4),
    sa=float32(0.5),
    za=np.array([3], np.uint8),
    b=np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
    sb=float32(0.3),
    zb=np.array([-3], np.int8),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
)
def requantised_sum(left: Node, right: Node, scale: Array, zero: Value | None, q: Node) -> Value:
    """quantise(deq(a) + deq(b), s, z) -> saturate(round(a * (sa / s) + (b * (sb / s) + c)) + z),
    with c = -(za * sa + zb * sb) / s, one scale each. Not if a node dequantises the result and no
    product of bytes reads a, b or the result."""
    (a, sa, za), (b, sb, zb) = dequantised(left), dequantised(right)
    need_bytes(a, sa)
    need_bytes(b, sb)
    need_bytes(q.output, scale)
    need_float32(q)
    if max(sa.size, sb.size, scale.size) > 1:
        raise Skip("a scale is not one number")
    readers = {user.op.name for v in (q.output, a, b) for user in v.uses}
    back = any("dequantise" in u.op.traits for u in q.output.uses)
    if back and readers.isdisjoint(PRODUCTS):
        raise Skip("nothing multiplies these bytes")
    step, shift = float(scale.item()), 0.0
    factors = []
    for s, z in ((sa, za), (sb, zb)):
        factor = float(s.item()) / step
        if factor > ENTRIES:
            raise Skip("one step of a term is beyond all steps of the sum")
        shift -= factor * (0 if z is None or z.const is None else int(z.const.item()))
        factors.append(np.float32(factor))
    last = OPS["Rescale"](b, factors[1], np.float32(shift) if shift else None)
    total = OPS["Add"](OPS["Rescale"](a, factors[0]), last)
    return narrowed(total, flat(zero), q.output.dtype)


@requantise.rule(
    p.GlobalPool(p.DequantizeLinear("x", const("xs"), opt(const("xz"))).shared()).named("pool"),
    x=given("uint8", 1, 3, 5, 6),
    xs=float32(0.5),
    xz=np.array([3], np.uint8),
)
def mean(x: Value, xs: Array, xz: Array | None, pool: Node) -> Value:
    """global_mean(deq(x)) -> (global_mean(x) - z) * s, x of one scale: sums of bytes are exact."""
    need_bytes(x, xs)
    if xs.size != 1 or pool.kind != "mean":
        raise Skip("it has a scale for each place, or is no mean")
    y = OPS["GlobalPool"](x, dtype="float32")
    zero = None if xz is None or not xz.any() else xz.astype(FLOAT32).reshape(())
    return OPS["Rescale"](y, xs.reshape(()), None, zero)


factors = RuleSet("quantise-by-factor", "Values are quantised by a product, not by a division.")
register("machine")(factors)


@factors.rule(
    p.QuantizeLinear("x", const("scale"), opt("zero")).named("q"),
    tolerance=1e-5,
    x=lambda graph, _: OPS["Relu"](graph.input("x", Type(FLOAT32, (2, 3, 4)))),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
)
def quantised_by_factor(x: Value, scale: Array, zero: Value | None, q: Node) -> Value:
    """quantise(x, s, z) -> saturate(round(x * (1 / s)) + z), as division is slow; results may
    differ by 1 where x / s is near k + 1/2. For a scalar s, and x of float32 that a node computes.
    """
    need_bytes(q.output, scale)
    if x.producer is None:
        raise Skip("nothing is computed with it")
    need_float32(q)
    if scale.size != 1 or x.dtype != FLOAT32:
        raise Skip("it has a scale for each place, or is not float32")
    inverse = _finite(1 / float(scale.item()))
    return narrowed(x, flat(zero), q.output.dtype, inverse)
