"""Convolutions and products of bytes as exact ones of floats: sums are cut before they round."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import shape_of
from tinsmith.passes.lower_quant import EXACT, FLOAT32, Array, clipped, given, largest
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p

rules = RuleSet("lower-integers", "Convolutions of bytes become exact ones of floats.")
register("machine")(rules)

BLOCK = 16  # channels: parts of a sum are whole blocks where they can be


def _sums(x: Value, x_zero: Array, w: Array, conv: Node, begin: Array) -> Value:
    """begin + Conv(x - x_zero, w): float32 where all of it is exact, else int32."""
    group, (_, per_group, *kernel) = conv.group, w.shape
    each = largest(x, None if not x_zero.any() else x_zero) * int(np.abs(w).max(initial=1))
    part = EXACT // (each * prod(kernel))
    part = part // BLOCK * BLOCK if part > BLOCK else part
    if not part or (part < per_group and group > 1):
        raise Skip(f"sums of {per_group} channels are not exact in float32")
    real = OPS["Cast"](x, to="float32")
    real = OPS["Sub"](real, x_zero.astype(FLOAT32)) if x_zero.any() else real
    attrs = {n: getattr(conv, n) for n in ("stride", "pad", "dilation", "group", "auto_pad")}

    def product(start: int, stop: int) -> Value:
        these = real
        if stop - start < per_group:
            these = OPS["Slice"](real, *(np.array([v], np.int64) for v in (start, stop, 1)))
        return OPS["Conv"](these, w[:, start:stop].astype(FLOAT32), **attrs)

    return _added(product, per_group, part, begin, each * prod(kernel) * per_group)


def _added(
    product: Callable[[int, int], Value], inner: int, part: int, begin: Array, most: int
) -> Value:
    """The sum of the products of all parts of the inner dimension, and of `begin`."""
    bound = most + int(np.abs(begin.astype(np.int64)).max(initial=0))
    if inner <= part and bound <= EXACT:
        total = product(0, inner)
        return OPS["Add"](total, begin.astype(FLOAT32)) if begin.any() else total
    total = None
    for start in range(0, inner, part):
        one = OPS["Cast"](product(start, min(start + part, inner)), to="int32")
        total = one if total is None else OPS["Add"](total, one)
    assert total is not None
    return OPS["Add"](total, begin.astype(np.int32)) if begin.any() else total


def _zero(array: Array | None) -> Array:
    return np.zeros((), np.int32) if array is None else np.asarray(array).astype(np.int32)


def _centred(w: Array, zero: Array | None) -> Array:
    """w - zero, one number or one for each output channel."""
    shift = _zero(zero)
    shift = shift.reshape(-1, *[1] * (w.ndim - 1)) if shift.size > 1 else shift.reshape(())
    return w.astype(np.int32) - shift


def _need(x: Value, w: Array) -> None:
    shape = shape_of(x)
    if x.dtype.name not in ("int8", "uint8") or w.dtype.name not in ("int8", "uint8"):
        raise Skip(f"the operands are {x.dtype} and {w.dtype}")
    if x.const is not None or not w.size or len(shape) < 3 or not isinstance(shape[1], int):
        raise Skip(f"x is {x.type}, w has the shape {w.shape}")


def _requantised(sums: Value, factor: Array, zero: Array) -> Value:
    y = sums if sums.dtype == FLOAT32 else OPS["Cast"](sums, to="float32")
    y = OPS["Round"](OPS["Mul"](y, factor.astype(FLOAT32)))
    y = OPS["Add"](y, zero.reshape(()).astype(FLOAT32)) if zero.any() else y
    return OPS["Cast"](clipped(y, zero.dtype), to=zero.dtype.name)


@rules.rule(
    p.ConvInteger("x", const("w"), opt(const("x_zero")), opt(const("w_zero"))).named("conv"),
    x=given("uint8", 1, 4, 5, 5),
    w=np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    x_zero=np.array(3, np.uint8),
    w_zero=np.array([1, 0, -2, 5], np.int8),
    conv={"pad": (1, 1, 1, 1), "group": 2},
)
def conv_integer(
    x: Value, w: Array, x_zero: Array | None, w_zero: Array | None, conv: Node
) -> Value:
    """conv_integer(x, w) -> int(conv(float(x - xz), float(w - wz))), in parts that are exact."""
    _need(x, w)
    shift = _zero(x_zero).reshape(())
    y = _sums(x, shift, _centred(w, w_zero), conv, np.zeros((), np.int32))
    return y if y.dtype == np.int32 else OPS["Cast"](y, to="int32")


@rules.rule(
    p.QLinearConv(
        "x", const("xs"), const("xz"), const("w"), const("ws"), const("wz"), const("ys"),
        const("yz"), opt(const("b")),
    ).named("conv"),
    x=given("uint8", 1, 2, 5, 5),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    w=np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    ws=np.array([0.1, 0.2, 0.3, 0.01], np.float32),
    wz=np.array([1, 0, -2, 5], np.int8),
    ys=np.array(20, np.float32),
    yz=np.array(100, np.uint8),
    b=np.array([100, -200, 3000, 7], np.int32),
)  # fmt: skip
def qlinear_conv(
    x: Value, xs: Array, xz: Array, w: Array, ws: Array, wz: Array, ys: Array, yz: Array,
    b: Array | None, conv: Node,
) -> Value:  # fmt: skip
    """qlinear_conv(x, w, b) -> quantise((conv(x - xz, w - wz) + b) * xs * ws / ys), sums exact."""
    _need(x, w)
    if ws.dtype != FLOAT32 or xs.dtype != FLOAT32 or ys.dtype != FLOAT32:
        raise Skip(f"the scales are {xs.dtype}, {ws.dtype} and {ys.dtype}")
    tail = (1,) * (w.ndim - 2)
    begin = np.zeros((), np.int32) if b is None else b.reshape(-1, *tail)
    y = _sums(x, _zero(xz).reshape(()), _centred(w, wz), conv, begin)
    return _requantised(y, xs.reshape(()) * ws.reshape(-1, *tail) / ys.reshape(()), yz)


@rules.rule(
    p.QLinearMatMul(
        "a", const("sa"), const("za"), const("b"), const("sb"), const("zb"), const("sy"),
        const("zy"),
    ).named("m"),
    a=given("uint8", 3, 4),
    sa=np.array(0.5, np.float32),
    za=np.array(3, np.uint8),
    b=np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    sb=np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    zb=np.array([1, 0, 0, 2, 5], np.int8),
    sy=np.array(9, np.float32),
    zy=np.array(100, np.uint8),
)  # fmt: skip
def qlinear_matmul(
    a: Value, sa: Array, za: Array, b: Array, sb: Array, zb: Array, sy: Array, zy: Array, m: Node
) -> Value:
    """qlinear_matmul(a, b) -> quantise(((a - za) @ (b - zb)) * sa * sb / sy), sums exact."""
    shape = shape_of(a)
    if a.const is not None or len(shape) < 2 or b.ndim < 2 or not isinstance(shape[-1], int):
        raise Skip(f"a is {a.type}, b has the shape {b.shape}")
    if sa.size > 1 or za.size > 1 or sb.ndim > 1 or zb.ndim > 1 or not b.size:
        raise Skip("it is quantised by rows of a, or by matrices of b")
    if {v.dtype for v in (sa, sb, sy)} != {FLOAT32}:
        raise Skip(f"the scales are {sa.dtype}, {sb.dtype} and {sy.dtype}")
    zero, w = _zero(za).reshape(()), b.astype(np.int32) - _zero(zb)
    each = largest(a, None if not zero.any() else za) * int(np.abs(w).max(initial=1))
    real = OPS["Cast"](a, to="float32")
    real = OPS["Sub"](real, zero.astype(FLOAT32)) if zero.any() else real
    inner, axis = shape[-1], len(shape) - 1

    def product(start: int, stop: int) -> Any:
        these = real
        if stop - start < inner:
            these = OPS["Slice"](real, *(np.array([v], np.int64) for v in (start, stop, axis)))
        return OPS["MatMul"](these, w[..., start:stop, :].astype(FLOAT32))

    y = _added(product, inner, EXACT // each, np.zeros((), np.int32), each * inner)
    return _requantised(y, sa.reshape(()) * sb / sy.reshape(()), zy)
