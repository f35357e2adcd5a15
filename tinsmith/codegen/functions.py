"""The table of functions that expressions may use: numpy's meaning, and how to emit it.

The operands of a row have one dtype (conversions are `astype` nodes of their own); comparisons give
bool, which is i1 inside an expression. Integers wrap around, and divided by zero give 0, as in
numpy.

Sigmoid and its relatives divide by 1 + e^-x: x * -log2(e) is rounded to a multiple of 1 / n, so
that a short polynomial covers the remainder. The low bits of the rounded number select 2^(j / n)
from a table in registers; the others are the exponent.
"""

from __future__ import annotations

import math as _math
import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from tinsmith.codegen import math as m
from tinsmith.codegen import wide
from tinsmith.codegen.builder import Builder
from tinsmith.codegen.pieces import ENTRIES, gelu, has_tables, look_up
from tinsmith.codegen.table import (
    FUNCTIONS,
    NATIVE,
    Function,
    emit_function,
    flops_of,
    function,
    kind_of,
    unsupported,
)
from tinsmith.codegen.types import I32, Ty
from tinsmith.codegen.values import Val

Pair = Callable[[Val, Val], Val]

_HIGH = float(np.float32(m.LOG2E))
_LOW = m.LOG2E - _HIGH
_EXP2 = {  # entries of the table: (2^g - 1) / g on |g| <= 1 / (2 * entries)
    16: (0.69314718, 0.2402359, 0.05550281),  # relative error 1.1e-9 of 2^g
    8: (0.69314721, 0.24026407, 0.0554989),  # 1.8e-8
}
_ENOUGH = 86.0  # 1 + e^-86 is 1; a smaller power would be no normal number


def one_plus_exp_of_minus(x: Val) -> Val:
    """1 + e^-x, <= 2 ulp below 2^127.9, <= 25 ulp above; infinite where e^-x overflows."""
    entries = _entries(x)
    if not entries:
        return _without_table(x)
    shift = 24 - entries.bit_length()  # of the bits of t, to where exponents are
    rounder = 1.5 * 2.0**shift
    x = m.at_most(x, _ENOUGH)
    t = m.at_most(x.fma(-_HIGH, rounder), rounder + 128 - 1 / entries)
    g = x.fma(-_LOW, x.fma(-_HIGH, rounder - t))
    bits = m.bits_of(t)
    power = (look_up(bits, _powers(entries, shift), I32) + (bits << shift)).bitcast(x.ty)
    return power.fma(m.horner(g, _EXP2[entries]) * g, power + 1.0)


def sigmoid(x: Val) -> Val:
    """1 / (1 + e^-x), <= 3.1 ulp; 0 where e^-x overflows."""
    return x.b.const(1.0, x.ty) / one_plus_exp_of_minus(x)


def _without_table(x: Val) -> Val:
    t, r = m.split(m.at_most(m.at_least(-x, -_ENOUGH), 89.0))
    half = m.two_to(t, 126)  # 2^(n - 1): n may be 128
    y = half.fma(m.expm1_near(r), half + 0.5)
    return y + y


def _entries(x: Val) -> int:
    """How many entries (16 or 8) a table has from which one instruction looks up every lane of x; 0
    if the target has no such instruction for as many lanes."""
    if has_tables(x):
        return ENTRIES
    return 8 if x.b.target.vectors in ("avx2", "avx512") and x.ty.lanes == 8 else 0


def _powers(entries: int, shift: int) -> list[int]:
    """A table for 2^(j / entries): the bits of these float32, minus j << shift, which the caller's
    `bits << shift` adds with the exponent."""
    numbers = np.exp2(np.arange(entries) / entries).astype(np.float32).view(np.int32)
    return [int(bits) - (j << shift) for j, bits in enumerate(numbers)]


__all__ = ["FUNCTIONS", "NATIVE", "Function", "emit_function", "flops_of", "kind_of", "unsupported"]

# ---- arithmetic

ALL = "fdiu"


def _is_mask(x: Val) -> bool:
    return x.ty.kind == "i1"


for _name, _classes, _flops, _emit in (
    ("add", ALL + "b", 1, lambda x, y: x | y if _is_mask(x) else x + y),
    ("subtract", ALL, 1, operator.sub),
    ("multiply", ALL + "b", 1, lambda x, y: x & y if _is_mask(x) else x * y),
    ("divide", "fd", 4, operator.truediv),
    ("negative", ALL, 1, operator.neg),
    ("positive", ALL, 1, lambda x: x),
    ("absolute", ALL + "b", 1, lambda x: x if _is_mask(x) else x.abs()),
    ("fabs", "fd", 1, Val.abs),
    ("square", ALL, 1, lambda x: x * x),
    ("reciprocal", "fd", 4, lambda x: x.b.const(1, x.ty) / x),
    ("sqrt", "fd", 6, Val.sqrt),
    ("copysign", "fd", 1, m.copysign),
    ("fmax", ALL, 2, lambda x, y: x.is_nan().select(y, y.max(x)) if x.ty.is_float else x.max(y)),
    ("fmin", ALL, 2, lambda x, y: x.is_nan().select(y, y.min(x)) if x.ty.is_float else x.min(y)),
):
    function(_name, _classes, _flops)(_emit)

function("multiply_add", "fd", 2, numpy=lambda x, y, z: x * y + z)(Val.fma)


@function("sign", ALL, 3)
def _sign(x: Val) -> Val:
    one = x.b.const(1, x.ty)
    if x.ty.is_float:
        rest = x.is_nan().select(x, 0.0)
        return (x > 0.0).select(one, (x < 0.0).select(-1.0, rest))
    above = (x > 0).select(one, 0)
    return (x < 0).select(-1, above) if x.ty.is_signed else above


def _quotient(x: Val, y: Val) -> tuple[Val, Val, Val]:
    """(q, r, divisor) of integers, without a trap: q truncated, r = x - q * y. Where y is 0, q and
    r are 0; where y is -1, q is -x and r is 0. `divisor` is y, with 1 where it is 0 or -1."""
    zero = y.eq(0)
    odd = zero | y.eq(-1) if y.ty.is_signed else zero
    divisor = odd.select(1, y)
    by_number = _is_const(y) and y.ty.bits <= 32  # LLVM turns the division into a product
    q = x / divisor if by_number else _exact_quotient(x, divisor)
    r = x - q * divisor
    if y.ty.is_signed:
        q = y.eq(-1).select(-x, q)
    return zero.select(0, q), odd.select(0, r), divisor


def _exact_quotient(x: Val, y: Val) -> Val:
    """The truncated quotient of integers, y not 0. Vectors are divided as floats, where the target
    converts them well.

    If floats hold both integers exactly, their quotient differs from the next whole number by more
    than its rounding error. For 64 bits a second quotient is computed, of what the first leaves;
    one may then be missing.
    """
    bits, kind = x.ty.bits, x.ty.kind
    if x.ty.lanes == 1:
        return x / y
    if bits <= 16:
        return (x.to("f32") / y.to("f32")).truncated("i32").to(kind)
    if bits == 32:
        return (x.to("f64") / y.to("f64")).truncated(kind)
    if kind == "u64" or x.b.target.vectors != "avx512":  # others convert 64 bits lane by lane
        return x / y
    a, b = x.abs().to("u64"), y.abs().to("u64")
    wide = b.to("f64")
    q = (a.to("f64") / wide).truncated("u64")
    rest = (a - q * b).to("i64")
    more = (rest.to("f64") / wide).truncated("i64")
    rest, q = rest - more * b.to("i64"), q.to("i64") + more
    q = (rest < 0).select(q - 1, (rest.to("u64") >= b).select(q + 1, q))
    return ((x ^ y) < 0).select(-q, q)


@function("floor_divide", ALL.replace("d", ""), 10)
def _floor_divide(x: Val, y: Val) -> Val:
    if x.ty.is_float:
        return wide.floor_divide(x, y)
    q, r, divisor = _quotient(x, y)
    if not x.ty.is_signed:
        return q
    down = r.ne(0) & ((r ^ divisor) < 0)
    return down.select(q - 1, q)


@function("remainder", ALL.replace("d", ""), 10)
def _remainder(x: Val, y: Val) -> Val:
    if x.ty.is_float:
        return wide.remainder(x, y)
    _, r, divisor = _quotient(x, y)
    if not x.ty.is_signed:
        return r
    up = r.ne(0) & ((r ^ divisor) < 0)
    return up.select(r + divisor, r)


@function("fmod", ALL.replace("d", ""), 10)
def _fmod(x: Val, y: Val) -> Val:
    return wide.fmod(x, y) if x.ty.is_float else _quotient(x, y)[1]


def _is_const(x: Val) -> bool:
    return not x.ref.startswith("%")


def _extreme(of_masks: Pair, of_numbers: Pair, x: Val, y: Val) -> Val:
    """Emit numpy's maximum or minimum of x and y, which is NaN where either is. `of_masks` computes
    it for bools, `of_numbers` (`Val.max` or `Val.min`) for numbers. That gives its second operand
    where either is NaN: so a constant is put first, and without one x is tested for NaN."""
    if _is_mask(x):
        return of_masks(x, y)
    if not x.ty.is_float:
        return of_numbers(x, y)
    if _is_const(y):
        return of_numbers(y, x)
    return of_numbers(x, y) if _is_const(x) else x.is_nan().select(x, of_numbers(x, y))


function("maximum", ALL + "b")(partial(_extreme, operator.or_, Val.max))
function("minimum", ALL + "b")(partial(_extreme, operator.and_, Val.min))

# ---- of float32 alone

for _name, _emit, _flops in (
    ("exp", m.exp, 14), ("exp2", m.exp2, 14), ("expm1", m.expm1, 14),
    ("log", m.log, 20), ("log1p", m.log1p, 26), ("tanh", m.tanh, 18),
    ("log2", wide.log2, 40), ("log10", wide.log10, 40), ("power", wide.power, 70),
    ("sin", wide.sin, 44), ("cos", wide.cos, 44), ("tan", wide.tan, 52),
    ("arcsin", wide.arcsin, 50), ("arccos", wide.arccos, 50),
    ("arctan", wide.arctan, 40), ("arctan2", wide.arctan2, 50),
    ("sinh", wide.sinh, 40), ("cosh", wide.cosh, 36), ("arcsinh", wide.arcsinh, 60),
    ("arccosh", wide.arccosh, 60), ("arctanh", wide.arctanh, 60),
):  # fmt: skip
    function(_name, "f", _flops)(_emit)

_erf64 = np.vectorize(_math.erf, otypes=[np.float64])

function("erf", "f", 30, numpy=lambda x: _erf64(x).astype(x.dtype))(m.erf)
function("gelu", "f", 20, numpy=lambda x: (0.5 * x * (1 + _erf64(x * 0.5**0.5))).astype(x.dtype))(
    gelu
)
function("one_plus_exp_of_minus", "f", 12, numpy=lambda x: 1 + np.exp(-x))(one_plus_exp_of_minus)

for _name in ("floor", "ceil", "trunc"):
    _round = getattr(m, _name)
    function(_name, ALL + "b")(lambda x, _round=_round: _round(x) if x.ty.is_float else x)

function("rint", "fd")(m.rint)


# ---- comparisons, logic, bits

for _name, _how in (
    ("less", "lt"), ("less_equal", "le"), ("greater", "gt"), ("greater_equal", "ge"),
    ("equal", "eq"), ("not_equal", "ne"),
):  # fmt: skip
    function(_name, ALL + "b")(lambda x, y, _how=_how: x.compare(_how, y))

for _name, _classes, _emit in (
    ("isnan", "fd", Val.is_nan),
    ("isinf", "fd", lambda x: x.abs().eq(m.INF)),
    ("isfinite", "fd", lambda x: x.abs() < m.INF),
    ("signbit", "fd", lambda x: m.bits_of(x) < 0),
    ("logical_and", ALL + "b", lambda x, y: x.to("i1") & y.to("i1")),
    ("logical_or", ALL + "b", lambda x, y: x.to("i1") | y.to("i1")),
    ("logical_xor", ALL + "b", lambda x, y: x.to("i1") ^ y.to("i1")),
    ("logical_not", ALL + "b", lambda x: x.to("i1") ^ True),
    ("bitwise_and", "iub", operator.and_),
    ("bitwise_or", "iub", operator.or_),
    ("bitwise_xor", "iub", operator.xor),
    ("invert", "iub", lambda x: x ^ (True if _is_mask(x) else -1)),
):
    function(_name, _classes)(_emit)


def _count_fits(x: Val, count: Val) -> Val:
    return count.bitcast(Ty("u" + count.ty.kind[1:], count.ty.lanes)) < x.ty.bits


@function("left_shift", "iu", 3)
def _left_shift(x: Val, count: Val) -> Val:
    fits = _count_fits(x, count)
    return fits.select(x << fits.select(count, 0), 0)


@function("right_shift", "iu", 3)
def _right_shift(x: Val, count: Val) -> Val:
    fits = _count_fits(x, count)
    if x.ty.is_signed:
        return x >> fits.select(count, x.ty.bits - 1)
    return fits.select(x >> fits.select(count, 0), 0)


# ---- selection and conversion


@function("where", ALL + "bh")
def _where(condition: Val, yes: Val, no: Val) -> Val:
    return condition.select(yes, no)


FUNCTIONS["astype"] = Function(
    "astype", lambda e, x: _converted(x, e.dtype),
    lambda _, e, args, __: args[0].to(kind_of(e.dtype)), NATIVE, 1.0,
)  # fmt: skip


def _converted(x: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _emit_narrowed(b: Builder, expr: Any, args: Sequence[Val], lanes: int) -> Val:
    """Emit "narrowed", a quantisation: clip and round the operand, and add the zero point. Clipping
    comes first: its bounds are whole numbers."""
    x, given = args[0], zeros_of(expr.param)

    def number(name: str, kind: str = "f32") -> Val:
        return b.number((id(expr), name), given[name].item(), x.ty.of(kind))

    if expr.param[1][0] == "i":  # what unsigned ones make of NaN is the other operand of `max`
        x = x.is_nan().select(number("nan"), x)
    x = x.max(number("least")).min(number("most"))
    if expr.dtype == np.float32:
        return m.rint(x) + number("float") if expr.param[0] else m.rint(x)
    whole = m.nearest(x) + number("zero", "i32") if expr.param[0] else m.nearest(x)
    return whole.to(kind_of(expr.dtype))


@cache
def zeros_of(param: tuple[int, str]) -> dict[str, np.generic]:
    """The constants, by name, of a "narrowed" node, whose `param` is (zero point z, integer type):
    `zero` is z as int32; float32 are `float`, z; `least` and `most`, the type's bounds minus z, to
    which the operand is clipped before z is added; `nan`, -z, which replaces NaN and so gives 0."""
    zero, low = param
    info = np.iinfo(low)
    floats = {"nan": -zero, "least": info.min - zero, "most": info.max - zero, "float": zero}
    return {"zero": np.int32(zero), **{name: np.float32(n) for name, n in floats.items()}}


def _narrowed(e: Any, x: Any) -> Any:
    zero, low = e.param
    info = np.iinfo(low)
    whole = np.where(np.isnan(x), 0, np.clip(np.rint(x) + np.float32(zero), info.min, info.max))
    return whole.astype(e.dtype)


FUNCTIONS["narrowed"] = Function("narrowed", _narrowed, _emit_narrowed, NATIVE, 4.0)
"""Quantisation of float32 x: rint(x) + zero, clipped to the range of an integer type, NaN to 0.
`param` is (zero, name of that type). The result is of that type, or float32."""
