"""Sums of bytes become bytes again by one factor and one term."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops.rescale import ENTRIES
from tinsmith.passes.integers import (
    PRODUCTS,
    TO_BYTES,
    dequantised,
    flat,
    float32,
    need_bytes,
    need_float32,
)
from tinsmith.passes.lower_quant import FLOAT32, given, narrowed
from tinsmith.passes.manager import has_bytes, register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

requantise = RuleSet(
    "requantise", "Sums of bytes become bytes again by one factor and one term.", tolerance=1e-5
)
register("machine", when=has_bytes)(requantise)

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
    **TO_BYTES,
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
