"""Comparisons, logic, bits and selection, one element at a time."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._dims import broadcast
from tinsmith.ops._op import need_one_of, op
from tinsmith.ops._rules import (
    BOOL,
    FLOAT8,
    FLOATS,
    INTS,
    NUMBERS,
    UNSIGNED,
    elementwise,
    need_data,
    need_dtype,
    need_same,
    pointwise,
)

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


elementwise(
    "commutative",
    rule=pointwise(result="bool"),
    Equal=(lambda x, y: np.equal(x, y), "z = x == y; NaN equals nothing"),
)
elementwise(
    rule=pointwise(NUMBERS, "bool"),
    Less=(lambda x, y: np.less(x, y), "z = x < y"),
    LessOrEqual=(lambda x, y: np.less_equal(x, y), "z = x <= y"),
    Greater=(lambda x, y: np.greater(x, y), "z = x > y"),
    GreaterOrEqual=(lambda x, y: np.greater_equal(x, y), "z = x >= y"),
)
_of_floats = pointwise(FLOATS | FLOAT8, "bool")
elementwise(rule=_of_floats, IsNaN=(lambda x: np.not_equal(x, x), "y = x != x"))


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


IsInf.type(_of_floats)

# ---- logic and bits

elementwise(
    "commutative",
    "associative",
    rule=pointwise(BOOL),
    And=(lambda x, y: np.logical_and(x, y), "z = x and y"),
    Or=(lambda x, y: np.logical_or(x, y), "z = x or y"),
    Xor=(lambda x, y: np.logical_xor(x, y), "z = x != y"),
)
elementwise(rule=pointwise(BOOL), Not=(lambda x: np.logical_not(x), "y = not x"))
elementwise(
    "commutative",
    "associative",
    rule=pointwise(INTS),
    BitwiseAnd=(lambda x, y: np.bitwise_and(x, y), "z = x & y"),
    BitwiseOr=(lambda x, y: np.bitwise_or(x, y), "z = x | y"),
    BitwiseXor=(lambda x, y: np.bitwise_xor(x, y), "z = x ^ y"),
)
elementwise(rule=pointwise(INTS), BitwiseNot=(lambda x: np.invert(x), "y = ~x"))


@op("elementwise")
def BitShift(x, y, *, direction):
    """z = x << y (direction "LEFT") or x >> y ("RIGHT", which keeps the sign)

    Where y is negative, or at least the number of bits of x, z is -1 for a negative x that is
    shifted right, else 0.
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


@BitShift.type
def _(x: Value, y: Value, *, direction: str) -> Type:
    need_one_of(("LEFT", "RIGHT"), direction=direction)
    return pointwise(INTS)(x, y)


@Where.type
def _(condition: Value, x: Value, y: Value) -> Type:
    need_dtype(condition, BOOL, "condition")
    need_same(x, y)
    return Type(x.dtype, broadcast(condition.shape, x.shape, y.shape))
