"""Arithmetic and transcendental functions, one element at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._dims import broadcast
from tinsmith.ops._op import OPS, need, op
from tinsmith.ops._rules import (
    FLOATS,
    INTS,
    NUMBERS,
    UNSIGNED,
    elementwise,
    give_rule,
    need_dtype,
    pointwise,
)
from tinsmith.ops._special import erf

# ---- one input


@op("elementwise", "view", "holder")
def Identity(x):
    """y = x"""
    return x


Identity.type(lambda x: x.type)
Identity.gradient(lambda emit, node, g: (g,))


elementwise(
    rule=pointwise(NUMBERS),
    Neg=(lambda x: np.negative(x), "y = -x"),
    Abs=(lambda x: np.abs(x), "y = |x|"),
    Sign=(lambda x: np.sign(x), "y = -1 where x < 0, 0 where x = 0, 1 where x > 0"),
)
elementwise(
    rule=pointwise(FLOATS),
    wide=True,
    Sqrt=(lambda x: np.sqrt(x), "y = sqrt(x)"),
    Rsqrt=(lambda x: 1 / np.sqrt(x), "y = 1 / sqrt(x)"),
    Reciprocal=(lambda x: 1 / x, "y = 1 / x"),
    Exp=(lambda x: np.exp(x), "y = e^x"),
    Log=(lambda x: np.log(x), "y = ln(x)"),
    Sin=(lambda x: np.sin(x), "y = sin(x), x in radians"),
    Cos=(lambda x: np.cos(x), "y = cos(x), x in radians"),
    Tan=(lambda x: np.tan(x), "y = tan(x), x in radians"),
    Asin=(lambda x: np.arcsin(x), "y = arcsin(x), in radians"),
    Acos=(lambda x: np.arccos(x), "y = arccos(x), in radians"),
    Atan=(lambda x: np.arctan(x), "y = arctan(x), in radians"),
    Atan2=(lambda y, x: np.arctan2(y, x), "z = the angle of the point (x, y) in (-pi, pi]"),
    Sinh=(lambda x: np.sinh(x), "y = (e^x - e^-x) / 2"),
    Cosh=(lambda x: np.cosh(x), "y = (e^x + e^-x) / 2"),
    Asinh=(lambda x: np.arcsinh(x), "y = ln(x + sqrt(x^2 + 1))"),
    Acosh=(lambda x: np.arccosh(x), "y = ln(x + sqrt(x^2 - 1))"),
    Atanh=(lambda x: np.arctanh(x), "y = ln((1 + x) / (1 - x)) / 2"),
    Erf=(lambda x: erf(x), "y = 2 / sqrt(pi) * integral of exp(-t^2) for t from 0 to x"),
    Floor=(lambda x: np.floor(x), "y = the largest whole number <= x"),
    Ceil=(lambda x: np.ceil(x), "y = the smallest whole number >= x"),
    Round=(lambda x: np.rint(x), "y = the nearest whole number; halves go to the even one"),
)

OPS["Neg"].signs = (-1,)


OPS["Neg"].gradient(lambda emit, node, g: (emit("Neg", g),))


@OPS["Sqrt"].gradient
def _(emit, node, g):
    return (emit("Div", emit("Mul", g, np.asarray(0.5, g.dtype)), node.output),)


OPS["Exp"].gradient(lambda emit, node, g: (emit("Mul", g, node.output),))


OPS["Log"].gradient(lambda emit, node, g: (emit("Div", g, node.inputs[0]),))


# ---- two inputs

elementwise(
    "commutative",
    "associative",
    rule=pointwise(NUMBERS),
    Add=(lambda x, y: x + y, "z = x + y; integers wrap around"),
    Mul=(lambda x, y: x * y, "z = x * y; integers wrap around"),
    Min=(lambda x, y: np.minimum(x, y), "z = the smaller of x and y; NaN where either is NaN"),
    Max=(lambda x, y: np.maximum(x, y), "z = the larger of x and y; NaN where either is NaN"),
)
elementwise(rule=pointwise(NUMBERS), Sub=(lambda x, y: x - y, "z = x - y; integers wrap around"))

OPS["Add"].signs = (1, 1)
OPS["Sub"].signs = (1, -1)
OPS["Mul"].powers = (1, 1)


OPS["Add"].gradient(lambda emit, node, g: (g, g))


OPS["Sub"].gradient(lambda emit, node, g: (g, emit("Neg", g)))


@OPS["Mul"].gradient
def _(emit, node, g):
    x, y = node.inputs
    return emit("Mul", g, y), emit("Mul", g, x)


@op("elementwise")
def Div(x, y):
    """z = x / y; integers truncate towards zero, give 0 for y = 0, and wrap around"""
    if x.dtype.name not in INTS:
        return x / y
    by = _divisor(y)
    whole = np.floor_divide(x, by)
    if y.dtype.name not in UNSIGNED:
        up = ((x < 0) != (by < 0)) & (whole * by != x)
        whole = np.where(y == -1, np.negative(x), np.where(up, whole + 1, whole))
    return np.where(y == 0, 0, whole)


def _divisor(y: Any) -> Any:
    """`y` with 1 in place of the integers whose division traps on some machines: 0, and -1 (as
    MIN / -1 overflows)."""
    by = np.where(y == 0, 1, y)
    return by if y.dtype.name in UNSIGNED else np.where(y == -1, 1, by)


Div.powers = (1, -1)


@Div.gradient
def _(emit, node, g):
    by_x = emit("Div", g, node.inputs[1])
    return by_x, emit("Neg", emit("Mul", by_x, node.output))


@op("elementwise")
def Pow(x, y):
    """z = x^y, in the dtype of x; computed in float64 unless float32 holds every x and y

    Powers of integers by integers wrap around; a negative y gives 1 / x^|y| truncated, and 0 for
    x = 0. Powers of integers by real numbers are cast back as by Cast.
    """
    if x.dtype.name not in INTS:
        narrow = all(np.can_cast(t, np.float32) for t in (x.dtype, y.dtype))
        wide = np.float32 if narrow else np.float64
        return np.power(x.astype(wide), y.astype(wide)).astype(x.dtype)
    if y.dtype.name not in INTS:
        power = np.power(x.astype(np.float64), y.astype(np.float64))
        return OPS["Cast"].reference(power, to=x.dtype.name)
    if y.dtype != x.dtype:
        return _int_power(x.astype(np.int64), y.astype(np.int64)).astype(x.dtype)
    return _int_power(x, y)


def _int_power(x: Any, y: Any) -> Any:
    if y.dtype.name in UNSIGNED:
        return np.power(x, y)
    odd = np.bitwise_and(y, 1)
    inverse = np.where(x == 1, x, np.where(x == -1, 1 - 2 * odd, 0 * y))
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, 0)))


@op("elementwise")
def Mod(x, y, *, fmod=False):
    """z = x - y * floor(x / y), which has the sign of y

    With fmod, x - y * trunc(x / y), which has the sign of x. Integers give 0 for y = 0.
    """
    if x.dtype.name in INTS:
        by = _divisor(y)
        return np.fmod(x, by) if fmod else np.remainder(x, by)
    wide = np.float64 if x.dtype.name == "float64" else np.float32
    a, b = x.astype(wide), y.astype(wide)
    return (np.fmod(a, b) if fmod else np.remainder(a, b)).astype(x.dtype)


@op("elementwise")
def Clip(x, *, min=None, max=None):
    """y = x with lower bound `min` and upper bound `max`; `max` wins where min > max; NaN stays NaN

    The bounds are Python numbers; None is no bound, and neither is NaN.
    """
    min, max = (None if bound is None or bound != bound else bound for bound in (min, max))
    if x.dtype.name == "bfloat16":
        return Clip.reference(x.astype(np.float32), min=min, max=max).astype(x.dtype)
    low = x if min is None else np.maximum(x, min)
    return low if max is None else np.minimum(low, max)


give_rule(pointwise(NUMBERS), Div, Mod)


@Pow.type
def _(x: Value, y: Value) -> Type:
    need_dtype(x, NUMBERS, "the base")
    need_dtype(y, NUMBERS, "the exponent")
    return Type(x.dtype, broadcast(x.shape, y.shape))


@Clip.type
def _(x: Value, *, min: float | None, max: float | None) -> Type:
    need_dtype(x, NUMBERS, "x")
    if x.dtype.name in INTS:
        limits = np.iinfo(x.dtype)
        for bound in (min, max):
            fits = bound is None or (isinstance(bound, int) and limits.min <= bound <= limits.max)
            need(fits, f"the bound {bound!r} is not a number of {x.dtype.name}")
    return x.type
