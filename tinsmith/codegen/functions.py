"""The table of functions that expressions may use: numpy's meaning, and how to emit it.

The operands of a row have one dtype (conversions are `astype` nodes of their own); comparisons
give bool, which is i1 inside an expression. Integers wrap around, and dividing by zero gives 0,
as numpy does.
"""

from __future__ import annotations

import math as _math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinsmith.codegen import math as m
from tinsmith.codegen import wide
from tinsmith.codegen.builder import Builder
from tinsmith.codegen.types import Ty, from_dtype
from tinsmith.codegen.values import Val
from tinsmith.errors import CodegenError

Emit = Callable[[Builder, Any, Sequence[Val], int], Val]

_CLASSES = {
    "f": {"float32"},
    "d": {"float64"},
    "i": {"int8", "int16", "int32", "int64"},
    "u": {"uint8", "uint16", "uint32", "uint64"},
    "b": {"bool"},
}


@dataclass(frozen=True)
class Function:
    """A row: `numpy(expr, *arrays)`, `emit(b, expr, args, lanes)`, the dtypes of its first
    operand that have native code, and about how many flops one element takes."""

    name: str
    numpy: Callable[..., Any]
    emit: Emit
    dtypes: frozenset[str]
    flops: float = 1.0


FUNCTIONS: dict[str, Function] = {}


def kind_of(dtype: np.dtype[Any]) -> str:
    """The element kind inside expressions: bool is "i1"."""
    return "i1" if dtype == np.bool_ else from_dtype(dtype).kind


def function(
    name: str, classes: str, flops: float = 1.0, numpy: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Val]], Callable[..., Val]]:
    """Register `emit(*args)` under a numpy function's name for the given classes of dtypes:
    f float32, d float64, i signed, u unsigned, b bool."""
    dtypes = frozenset().union(*(_CLASSES[c] for c in classes))
    meaning = numpy or getattr(np, name)

    def register(emit: Callable[..., Val]) -> Callable[..., Val]:
        FUNCTIONS[name] = Function(
            name=name,
            numpy=lambda e, *arrays: meaning(*arrays),
            emit=lambda b, e, args, lanes: emit(*args),
            dtypes=dtypes,
            flops=flops,
        )
        return emit

    return register


def unsupported(expr: Any) -> str | None:
    """Why the expression has no native code; None where it has."""
    seen: set[int] = set()

    def check(e: Any) -> str | None:
        if id(e) in seen:
            return None
        seen.add(id(e))
        for a in e.args:
            if reason := check(a):
                return reason
        if e.dtype.name not in NATIVE:
            return f"{e.dtype.name} has no native code"
        if e.name in ("leaf", "const"):
            return None
        row = FUNCTIONS.get(e.name)
        if row is None:
            return f"{e.name} has no native code"
        operands = e.args[1:] if e.name == "where" else e.args
        if len({a.dtype for a in operands}) > 1:
            return f"{e.name} of {' and '.join(a.dtype.name for a in operands)} has no native code"
        if operands[0].dtype.name not in row.dtypes:
            return f"{e.name} of {operands[0].dtype.name} has no native code"
        return None

    return check(expr)


NATIVE = frozenset().union(*_CLASSES.values())


def flops_of(expr: Any) -> float:
    """About how many flops the expression takes for one element; shared parts count once."""
    seen: dict[int, Any] = {}

    def walk(e: Any) -> None:
        if id(e) not in seen:
            seen[id(e)] = e
            for a in e.args:
                walk(a)

    walk(expr)
    return sum(FUNCTIONS[e.name].flops for e in seen.values() if e.name in FUNCTIONS)


def emit_function(b: Builder, expr: Any, args: Sequence[Val], lanes: int) -> Val:
    """Instructions for one node of an expression over the values of its operands."""
    if expr.name == "const":
        return b.const(expr.param, Ty(kind_of(expr.dtype), lanes))
    row = FUNCTIONS.get(expr.name)
    if row is None:
        raise CodegenError(f"the function {expr.name!r} has no native code")
    return row.emit(b, expr, args, lanes)


# ---- arithmetic

ALL = "fdiu"


def _is_mask(x: Val) -> bool:
    return x.ty.kind == "i1"


@function("add", ALL + "b")
def _add(x: Val, y: Val) -> Val:
    return x | y if _is_mask(x) else x + y


@function("subtract", ALL)
def _subtract(x: Val, y: Val) -> Val:
    return x - y


@function("multiply", ALL + "b")
def _multiply(x: Val, y: Val) -> Val:
    return x & y if _is_mask(x) else x * y


@function("divide", "fd", 4)
def _divide(x: Val, y: Val) -> Val:
    return x / y


@function("negative", ALL)
def _negative(x: Val) -> Val:
    return -x


@function("positive", ALL)
def _positive(x: Val) -> Val:
    return x


@function("absolute", ALL + "b")
def _absolute(x: Val) -> Val:
    return x if _is_mask(x) else x.abs()


@function("fabs", "fd")
def _fabs(x: Val) -> Val:
    return x.abs()


@function("square", ALL)
def _square(x: Val) -> Val:
    return x * x


@function("reciprocal", "fd", 4)
def _reciprocal(x: Val) -> Val:
    return x.b.const(1, x.ty) / x


@function("sqrt", "fd", 6)
def _sqrt(x: Val) -> Val:
    return x.sqrt()


@function("sign", ALL, 3)
def _sign(x: Val) -> Val:
    one = x.b.const(1, x.ty)
    if x.ty.is_float:
        rest = x.is_nan().select(x, 0.0)
        return (x > 0.0).select(one, (x < 0.0).select(-1.0, rest))
    above = (x > 0).select(one, 0)
    return (x < 0).select(-1, above) if x.ty.is_signed else above


def _quotient(x: Val, y: Val) -> tuple[Val, Val, Val]:
    """Truncated quotient and remainder of integers that never trap, and where y was replaced."""
    zero = y.eq(0)
    odd = zero | y.eq(-1) if y.ty.is_signed else zero
    divisor = odd.select(1, y)
    q = x / divisor
    r = x - q * divisor
    if y.ty.is_signed:
        q = y.eq(-1).select(-x, q)
    return zero.select(0, q), odd.select(0, r), divisor


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


@function("maximum", ALL + "b")
def _maximum(x: Val, y: Val) -> Val:
    if _is_mask(x):
        return x | y
    if not x.ty.is_float:
        return x.max(y)
    if _is_const(y):  # max gives its second operand where the first is NaN
        return y.max(x)
    return x.max(y) if _is_const(x) else x.is_nan().select(x, x.max(y))


@function("minimum", ALL + "b")
def _minimum(x: Val, y: Val) -> Val:
    if _is_mask(x):
        return x & y
    if not x.ty.is_float:
        return x.min(y)
    if _is_const(y):
        return y.min(x)
    return x.min(y) if _is_const(x) else x.is_nan().select(x, x.min(y))


@function("fmax", ALL, 2)
def _fmax(x: Val, y: Val) -> Val:
    return x.is_nan().select(y, y.max(x)) if x.ty.is_float else x.max(y)


@function("fmin", ALL, 2)
def _fmin(x: Val, y: Val) -> Val:
    return x.is_nan().select(y, y.min(x)) if x.ty.is_float else x.min(y)


@function("copysign", "fd")
def _copysign(x: Val, y: Val) -> Val:
    return m.copysign(x, y)


def _float32(name: str, emit: Callable[..., Val], flops: float) -> None:
    function(name, "f", flops)(emit)


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
    _float32(_name, _emit, _flops)

_erf64 = np.vectorize(_math.erf, otypes=[np.float64])

function("erf", "f", 30, numpy=lambda x: _erf64(x).astype(x.dtype))(m.erf)
function("gelu", "f", 20, numpy=lambda x: (0.5 * x * (1 + _erf64(x * 0.5**0.5))).astype(x.dtype))(
    m.gelu
)

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


@function("isnan", "fd")
def _isnan(x: Val) -> Val:
    return x.is_nan()


@function("isinf", "fd")
def _isinf(x: Val) -> Val:
    return x.abs().eq(m.INF)


@function("isfinite", "fd")
def _isfinite(x: Val) -> Val:
    return x.abs() < m.INF


@function("signbit", "fd")
def _signbit(x: Val) -> Val:
    return m.bits_of(x) < 0


def _mask(x: Val) -> Val:
    return x.to("i1")


@function("logical_and", ALL + "b")
def _logical_and(x: Val, y: Val) -> Val:
    return _mask(x) & _mask(y)


@function("logical_or", ALL + "b")
def _logical_or(x: Val, y: Val) -> Val:
    return _mask(x) | _mask(y)


@function("logical_xor", ALL + "b")
def _logical_xor(x: Val, y: Val) -> Val:
    return _mask(x) ^ _mask(y)


@function("logical_not", ALL + "b")
def _logical_not(x: Val) -> Val:
    return _mask(x) ^ True


@function("bitwise_and", "iub")
def _bitwise_and(x: Val, y: Val) -> Val:
    return x & y


@function("bitwise_or", "iub")
def _bitwise_or(x: Val, y: Val) -> Val:
    return x | y


@function("bitwise_xor", "iub")
def _bitwise_xor(x: Val, y: Val) -> Val:
    return x ^ y


@function("invert", "iub")
def _invert(x: Val) -> Val:
    return x ^ (True if _is_mask(x) else -1)


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


@function("where", ALL + "b")
def _where(condition: Val, yes: Val, no: Val) -> Val:
    return condition.select(yes, no)


def _emit_astype(b: Builder, expr: Any, args: Sequence[Val], lanes: int) -> Val:
    return args[0].to(kind_of(expr.dtype))


FUNCTIONS["astype"] = Function(
    "astype", lambda e, x: _converted(x, e.dtype), _emit_astype, NATIVE, 1.0
)


def _converted(x: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        return x.astype(dtype)
