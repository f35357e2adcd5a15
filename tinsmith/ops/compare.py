"""Comparisons, logic, bits and selection, one element at a time."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._op import broadcast, need, op
from tinsmith.ops._rules import (
    BOOL,
    FLOATS,
    INTS,
    NUMBERS,
    UNSIGNED,
    give_rule,
    need_data,
    need_dtype,
    need_same,
    pointwise,
)

FLOAT8 = {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}

# ---- comparisons


@op()
def Bounded(x, *, least, most, what="a number"):
    """y = x, whose elements must lie in [least, most]; DataError, which names `what`, otherwise"""
    need_data(np.all((x >= least) & (x <= most)), f"{what} must lie in [{least}, {most}]")
    return x


@Bounded.type
def _(x: Value, *, least: int, most: int, what: str) -> Type:
    need_dtype(x, INTS, "x")
    return x.type


@op("elementwise", "commutative")
def Equal(x, y):
    """z = x == y; NaN equals nothing"""
    return np.equal(x, y)


@op("elementwise")
def Less(x, y):
    """z = x < y"""
    return np.less(x, y)


@op("elementwise")
def LessOrEqual(x, y):
    """z = x <= y"""
    return np.less_equal(x, y)


@op("elementwise")
def Greater(x, y):
    """z = x > y"""
    return np.greater(x, y)


@op("elementwise")
def GreaterOrEqual(x, y):
    """z = x >= y"""
    return np.greater_equal(x, y)


@op("elementwise")
def IsNaN(x):
    """y = x != x"""
    return np.not_equal(x, x)


@op("elementwise")
def IsInf(x, *, detect_negative=True, detect_positive=True):
    """y = x is +inf (if detect_positive) or -inf (if detect_negative)"""
    if x.dtype.name not in ("float32", "float64"):
        x = x.astype(np.float32)
    if detect_negative and detect_positive:
        return np.equal(np.abs(x), np.inf)
    if detect_positive:
        return np.equal(x, np.inf)
    if detect_negative:
        return np.equal(x, -np.inf)
    return np.logical_and(np.equal(x, np.inf), np.less(x, 0))


# ---- logic


@op("elementwise", "commutative", "associative")
def And(x, y):
    """z = x and y"""
    return np.logical_and(x, y)


@op("elementwise", "commutative", "associative")
def Or(x, y):
    """z = x or y"""
    return np.logical_or(x, y)


@op("elementwise", "commutative", "associative")
def Xor(x, y):
    """z = x != y"""
    return np.logical_xor(x, y)


@op("elementwise")
def Not(x):
    """y = not x"""
    return np.logical_not(x)


# ---- bits


@op("elementwise", "commutative", "associative")
def BitwiseAnd(x, y):
    """z = x & y"""
    return np.bitwise_and(x, y)


@op("elementwise", "commutative", "associative")
def BitwiseOr(x, y):
    """z = x | y"""
    return np.bitwise_or(x, y)


@op("elementwise", "commutative", "associative")
def BitwiseXor(x, y):
    """z = x ^ y"""
    return np.bitwise_xor(x, y)


@op("elementwise")
def BitwiseNot(x):
    """y = ~x"""
    return np.invert(x)


@op("elementwise")
def BitShift(x, y, *, direction):
    """z = x << y (direction "LEFT") or x >> y ("RIGHT", which keeps the sign)

    A shift that is negative, or by the width of x or more, leaves the sign only: -1 for a
    negative x shifted right, else 0.
    """
    bits = 8 * x.dtype.itemsize
    out = np.logical_or(y < 0, y >= bits)
    if direction == "LEFT":
        return np.where(out, 0, np.left_shift(x, np.where(out, 0, y)))
    if x.dtype.name in UNSIGNED:
        return np.where(out, 0, np.right_shift(x, np.where(out, 0, y)))
    return np.right_shift(x, np.where(out, bits - 1, y))


# ---- selection


@op("elementwise")
def Where(condition, x, y):
    """z = x where condition, else y"""
    return np.where(condition, x, y)


give_rule(pointwise(result="bool"), Equal)
give_rule(pointwise(NUMBERS, "bool"), Less, LessOrEqual, Greater, GreaterOrEqual)
give_rule(pointwise(FLOATS | FLOAT8, "bool"), IsNaN, IsInf)
give_rule(pointwise(BOOL), And, Or, Xor, Not)
give_rule(pointwise(INTS), BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot)


@BitShift.type
def _(x: Value, y: Value, *, direction: str) -> Type:
    need(direction in ("LEFT", "RIGHT"), f'direction is {direction!r}, not "LEFT" or "RIGHT"')
    return pointwise(INTS)(x, y)


@Where.type
def _(condition: Value, x: Value, y: Value) -> Type:
    need_dtype(condition, BOOL, "condition")
    need_same(x, y)
    return Type(x.dtype, broadcast(condition.shape, x.shape, y.shape))
