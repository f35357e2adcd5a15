"""Convolutions and products of bytes as exact ones of floats: sums are cut before they round.

Every whole number up to 2^24 is a float32, so a product of floats is exact as long as no sum of
some of its terms is larger. Longer sums are cut along the inner dimension into exact parts, which
are added as int32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import filled_dims, shape_of
from tinsmith.passes.lower_quant import FLOAT32, Array, clipped, given
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, opt, p

rules = RuleSet("lower-integers", "Products and convolutions of bytes become exact ones of floats.")
register("machine")(rules)

BLOCK = 16  # channels: parts of a sum are whole blocks where they can be
EXACT = 1 << 24  # up to here every whole number is a float32
BYTES = ("int8", "uint8")
NOTHING = np.zeros((), np.int32)


def _known(v: Value | None) -> Any:
    """The array of a constant, else the value: operators take both, and fold arrays."""
    return v if v is None or v.const is None else v.const


def _column(v: Any, *tail: int) -> Any:
    """A vector as (-1, *tail), one element as a scalar, anything else as it is."""
    shape = v.shape if isinstance(v, np.ndarray) else shape_of(v)
    if len(shape) > 1 or not tail:
        return v
    dims = () if shape in ((), (1,)) else (-1, *tail)
    return v if shape == dims else OPS["Reshape"](v, np.array(dims, np.int64))


def _need_float32(*scales: Any) -> None:
    if odd := [v.dtype.name for v in scales if v.dtype != FLOAT32]:
        raise Skip(f"a scale is {odd[0]}")


class Operand(NamedTuple):
    """Bytes less their zero point: `real` as float32 (an array where it is known), and the ends of
    what its elements can be. `slides`: only high - low is their range, which holds 0."""

    real: Any
    low: int
    high: int
    slides: bool = False

    def most(self, plus: Any, minus: Any) -> Any:
        """A bound of every partial sum of products with weights whose positive ones add up to
        `plus`, and whose negative ones to -`minus`."""
        if self.slides:
            return (self.high - self.low) * np.maximum(plus, minus)
        low, high = max(-self.low, 0), max(self.high, 0)
        return np.maximum(high * plus + low * minus, high * minus + low * plus)

    @property
    def largest(self) -> int:
        """A bound of the magnitudes, not below 1."""
        return max(self.high - self.low if self.slides else max(-self.low, self.high), 1)


def _operand(v: Value, zero: Any) -> Operand:
    """`zero` broadcasts to v; None stands for 0."""
    if v.dtype.name not in BYTES:
        raise Skip(f"an operand is {v.dtype}")
    info = np.iinfo(v.dtype)
    known, low, high = _known(v), int(info.min), int(info.max)
    real = OPS["Cast"](known, to="float32")
    if zero is None or (isinstance(zero, np.ndarray) and not zero.any()):
        if isinstance(real, np.ndarray):
            low, high = int(real.min()), int(real.max())
        return Operand(real, low, high)
    real = OPS["Sub"](real, OPS["Cast"](zero, to="float32"))
    if isinstance(real, np.ndarray):
        return Operand(real, int(real.min()), int(real.max()))
    if isinstance(zero, np.ndarray):
        return Operand(real, low - int(zero.max()), high - int(zero.min()))
    if isinstance(known, np.ndarray):
        return Operand(real, int(known.min()) - high, int(known.max()) - low)
    return Operand(real, low, high, slides=True)


# ---- sums


class Part(NamedTuple):
    """Some places of the inner dimension, and a bound of the partial sums over them."""

    start: int
    stop: int
    most: int


def _parts(x: Operand, w: Operand, terms: tuple[int, int], outer_first: bool) -> list[Part]:
    """How the inner dimension is cut; `terms`: its size, and how many products each place has.

    Known weights are [outer, inner, ...] or [..., inner, outer]: their own sums tell.
    """
    inner, taps = terms
    if not isinstance(w.real, np.ndarray):
        each = x.largest * w.largest * taps
        size = EXACT // each
        size = size // BLOCK * BLOCK if size > BLOCK else size
        if not size:
            raise Skip(f"sums of {taps} products are not exact in float32")
        ends = (min(start + size, inner) for start in range(0, inner, size))
        return [Part(i * size, end, each * (end - i * size)) for i, end in enumerate(ends)]
    flat = w.real if outer_first else np.moveaxis(w.real, -2, -1)
    flat = flat.reshape(-1, inner, taps)
    signed = [np.maximum(sign * flat, 0).sum(2, dtype=np.int64) for sign in (1, -1)]
    for unit in (BLOCK, 1):
        places = np.arange(0, inner, unit)
        if parts := _greedy(x, *(np.add.reduceat(s, places, axis=1) for s in signed)):
            return [Part(a * unit, min(b * unit, inner), most) for a, b, most in parts]
    raise Skip(f"sums of {taps} products are not exact in float32")


def _greedy(x: Operand, plus: Array, minus: Array) -> list[Part]:
    """Columns in runs as long as they are exact; none where one column is not."""
    parts: list[Part] = []
    start, so_far = 0, 0
    sums = np.zeros((2, len(plus)), np.int64)
    for i in range(plus.shape[1]):
        column = np.stack([plus[:, i], minus[:, i]])
        most = int(x.most(*(sums + column)).max())
        if most > EXACT:
            if i > start:
                parts.append(Part(start, i, so_far))
            start, sums[:] = i, 0
            most = int(x.most(*column).max())
            if most > EXACT:
                return []
        sums += column
        so_far = most
    return [*parts, Part(start, plus.shape[1], so_far)]


def _total(parts: list[Part], product: Callable[[Part], Value], begin: Any = NOTHING) -> Value:
    """The products of all parts and `begin` (int32), added: float32 where all of it is exact."""
    known = begin if isinstance(begin, np.ndarray) else None
    if known is not None and len(parts) == 1:
        largest = int(np.abs(known.astype(np.int64)).max())
        if parts[0].most + largest <= EXACT:
            y = product(parts[0])
            return OPS["Add"](y, known.astype(FLOAT32)) if largest else y
    total = None
    for part in parts:
        one = OPS["Cast"](product(part), to="int32")
        total = one if total is None else OPS["Add"](total, one)
    assert total is not None
    return total if known is not None and not known.any() else OPS["Add"](total, begin)


def _cut(v: Any, part: Part, axis: int) -> Any:
    """The places of a part along an axis."""
    if isinstance(v, np.ndarray):
        return np.ascontiguousarray(v[(slice(None),) * axis + (slice(part.start, part.stop),)])
    return OPS["Slice"](v, *(np.array([n], np.int64) for n in (part.start, part.stop, axis)))


def _requantised(sums: Value, factor: Any, zero: Any) -> Value:
    """saturate(round(sums * factor) + zero), of the type of `zero`."""
    y = sums if sums.dtype == FLOAT32 else OPS["Cast"](sums, to="float32")
    y = OPS["Round"](OPS["Mul"](y, factor))
    zero = _column(zero, 1)
    if not isinstance(zero, np.ndarray) or zero.any():
        y = OPS["Add"](y, OPS["Cast"](zero, to="float32"))
    return OPS["Cast"](clipped(y, zero.dtype), to=zero.dtype.name)


# ---- convolutions


def _convolved(
    x: Value, x_zero: Any, w: Value, w_zero: Any, conv: Node, begin: Any = NOTHING
) -> Value:
    """begin + conv(x - x_zero, w - w_zero)."""
    dims, tail = filled_dims(w), (1,) * (len(filled_dims(w)) - 2)
    if x.const is not None or len(shape_of(x)) < 3:
        raise Skip(f"x is {x.type}, or a constant")
    left = _operand(x, None if x_zero is None else _column(x_zero, 1))
    right = _operand(w, None if w_zero is None else _column(w_zero, 1, *tail))
    parts = _parts(left, right, (dims[1], prod(dims[2:])), outer_first=True)
    attrs = {n: getattr(conv, n) for n in ("stride", "pad", "dilation", "group", "auto_pad")}

    def product(part: Part) -> Value:
        if len(parts) == 1:
            return OPS["Conv"](left.real, right.real, **attrs)
        if conv.group == 1:
            return OPS["Conv"](_cut(left.real, part, 1), _cut(right.real, part, 1), **attrs)
        mine = np.zeros((dims[1], *tail), FLOAT32)  # all groups, without channels of other parts
        mine[part.start : part.stop] = 1
        return OPS["Conv"](left.real, OPS["Mul"](right.real, mine), **attrs)

    return _total(parts, product, _column(begin, *tail))


@rules.rule(
    p.ConvInteger("x", "w", opt("x_zero"), opt("w_zero")).named("conv"),
    x=given("uint8", 1, 4, 5, 5),
    w=np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    x_zero=np.array(3, np.uint8),
    w_zero=np.array([1, 0, -2, 5], np.int8),
    conv={"pad": (1, 1, 1, 1), "group": 2},
)
def conv_integer(
    x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, conv: Node
) -> Value:
    """conv_integer(x, w) -> int(conv(float(x - xz), float(w - wz))), in parts that are exact."""
    y = _convolved(x, _known(x_zero), w, _known(w_zero), conv)
    return y if y.dtype == np.int32 else OPS["Cast"](y, to="int32")


@rules.rule(
    p.QLinearConv("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", opt("b")).named("conv"),
    x=given("uint8", 1, 2, 5, 5),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    w=np.arange(-36, 36, dtype=np.int8).reshape(4, 2, 3, 3),
    ws=np.array([0.1, 0.2, 0.3, 0.01], np.float32),
    wz=np.array([1, 0, -2, 5], np.int8),
    ys=np.array(20, np.float32),
    yz=np.array(100, np.uint8),
    b=np.array([100, -200, 3000, 7], np.int32),
)
def qlinear_conv(
    x: Value, xs: Value, xz: Value, w: Value, ws: Value, wz: Value, ys: Value, yz: Value,
    b: Value | None, conv: Node,
) -> Value:  # fmt: skip
    """qlinear_conv(x, w, b) -> quantise((conv(x - xz, w - wz) + b) * xs * ws / ys), sums exact."""
    _need_float32(xs, ws, ys)
    tail = (1,) * (len(shape_of(x)) - 2)
    begin = NOTHING if b is None else _known(b)
    y = _convolved(x, _known(xz), w, _known(wz), conv, begin)
    factor = OPS["Mul"](_column(_known(xs), 1), _column(_known(ws), *tail))
    return _requantised(y, OPS["Div"](factor, _column(_known(ys), 1)), _known(yz))


# ---- products


def _multiplied(a: Value, a_zero: Any, b: Value, b_zero: Any) -> Value:
    """(a - a_zero) @ (b - b_zero)."""
    left, right = shape_of(a), shape_of(b)
    if a.const is not None and b.const is not None:
        raise Skip("both operands are constants")
    if len(left) < 2 or len(right) < 2 or not isinstance(left[-1], int) or not left[-1]:
        raise Skip("an operand is a vector, or its inner dimension is 0 or not known")
    if 0 in (*left, *right):
        raise Skip("an operand is empty")
    x = _operand(a, None if a_zero is None else _column(a_zero, 1))
    w = _operand(b, b_zero)
    parts = _parts(x, w, (left[-1], 1), outer_first=False)

    def product(part: Part) -> Value:
        if len(parts) == 1:
            return OPS["MatMul"](x.real, w.real)
        return OPS["MatMul"](_cut(x.real, part, len(left) - 1), _cut(w.real, part, len(right) - 2))

    return _total(parts, product)


@rules.rule(
    p.MatMulInteger("a", "b", opt("a_zero"), opt("b_zero")),
    a=given("uint8", 3, 4),
    b=np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    a_zero=np.array(3, np.uint8),
    b_zero=np.array([1, 0, 0, 2, 5], np.int8),
)
def matmul_integer(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """matmul_integer(a, b) -> int(float(a - az) @ float(b - bz)), in parts that are exact."""
    y = _multiplied(a, _known(a_zero), b, _known(b_zero))
    return y if y.dtype == np.int32 else OPS["Cast"](y, to="int32")


@rules.rule(
    p.QLinearMatMul("a", "sa", "za", "b", "sb", "zb", "sy", "zy"),
    a=given("uint8", 3, 4),
    sa=np.array(0.5, np.float32),
    za=np.array(3, np.uint8),
    b=np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    sb=np.array([0.1, 0.2, 0.3, 0.01, 1], np.float32),
    zb=np.array([1, 0, 0, 2, 5], np.int8),
    sy=np.array(9, np.float32),
    zy=np.array(100, np.uint8),
)
def qlinear_matmul(
    a: Value, sa: Value, za: Value, b: Value, sb: Value, zb: Value, sy: Value, zy: Value
) -> Value:
    """qlinear_matmul(a, b) -> quantise(((a - za) @ (b - zb)) * sa * sb / sy), sums exact."""
    _need_float32(sa, sb, sy)
    y = _multiplied(a, _known(za), b, _known(zb))
    factor = OPS["Mul"](_column(_known(sa), 1), _known(sb))
    return _requantised(y, OPS["Div"](factor, _column(_known(sy), 1)), _known(zy))
