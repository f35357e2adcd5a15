"""Simplifications of expressions that change no result (but the sign of NaN)."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.codegen.expr import Expr
from tinsmith.codegen.functions import FUNCTIONS
from tinsmith.graph.types import name_of

if TYPE_CHECKING:
    from tinsmith.kernels.trace import Maker

Args = tuple[Expr, ...]


def simplify(make: Maker, name: str, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    """A simpler expression for the function `name` of `args`, with a result of `dtype`: a constant
    if all `args` are, else what the function's row of `_RULES` gives. None if nothing is
    simpler."""
    if all(a.name == "const" for a in args):
        with np.errstate(all="ignore"):
            arrays = [np.asarray(a.param, a.dtype) for a in args]
            return make.const(FUNCTIONS[name].numpy(Expr(name, args, dtype), *arrays), dtype)
    rule = _RULES.get(name)
    return rule(make, args, dtype) if rule else None


def narrowed(e: Expr, dtype: np.dtype[Any]) -> Expr | None:
    """The conversion of `e` to `dtype` as the one function "narrowed" (`codegen/functions.py`),
    which also clips to the range of a byte. None if it is neither of these, of float32 x and a
    whole number |z| <= 255 (or no z):

        rint(x) + z, to int8 or uint8   ->  narrowed(x), with (z, name of this type)
        narrowed(x), to float32         ->  narrowed(x) with a float32 result
    """
    if e.name == "narrowed" and dtype == np.float32:
        return Expr("narrowed", e.args, dtype, e.param)
    if name_of(dtype) not in ("int8", "uint8") or e.dtype != np.float32:
        return None
    zero = 0
    if e.name == "add" and e.args[1].name == "const":
        e, zero = e.args[0], e.args[1].param
    if e.name != "rint" or zero % 1 or abs(zero) > 255:
        return None
    return Expr("narrowed", (_fused(e.args[0]),), dtype, (int(zero), dtype.name))


def _fused(e: Expr) -> Expr:
    """The float32 expression with x * y + z -> multiply_add(x, y, z), which rounds once where the
    machine can, in all sums and products down to the first other function. For results that are
    then rounded to whole numbers, so that neither form is more exact."""
    if e.name not in ("add", "multiply") or e.dtype != np.float32:
        return e
    args = tuple(map(_fused, e.args))
    if e.name == "add":
        for x, y in (args, args[::-1]):
            if x.name == "multiply":
                return Expr("multiply_add", (*x.args, y), e.dtype)
    return Expr(e.name, args, e.dtype)


def _is(e: Expr, value: float) -> bool:
    """Whether e is this constant; tells -0.0 from 0.0."""
    n = e.param if e.name == "const" else None
    return n is not None and n == value and math.copysign(1, n) == math.copysign(1, value)


def _add(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    x, y = args
    zero = -0.0 if dtype.kind == "f" else 0  # x + 0.0 turns -0.0 into 0.0
    if _is(y, zero):
        return x
    return y if _is(x, zero) else None


def _multiply(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    if dtype.kind == "b":
        return None
    for x, c in (args, args[::-1]):
        if _is(c, 1):
            return x
        if _is(c, -1) and dtype.kind in "fi":
            return make.call("negative", (x,), dtype)
    return None


def _divide(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    x, y = args
    if _is(y, 1):
        return x
    c = y.param if y.name == "const" else 0
    if c and math.isfinite(c) and abs(math.frexp(c)[0]) == 0.5 and 2**-120 < abs(c) < 2**120:
        return make.call("multiply", (x, make.const(1 / c, dtype)), dtype)
    return None


def _power(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    x, y = args
    if y.name != "const":
        return None
    c = y.param
    if c == 1:
        return x
    if c in (2, 3, 4) or (dtype.kind in "iu" and 0 < c <= 64):
        return _chain(make, x, int(c), dtype)
    if dtype.kind != "f":
        return None
    if c == 0.5:  # the square root of -inf is NaN, its power inf; (-0.0) ** 0.5 is 0.0
        root = make.call("sqrt", (make.call("absolute", (x,), dtype),), dtype)
        low = make.call("less", (x, make.const(0.0, dtype)), np.dtype(bool))
        finite = make.call("greater", (x, make.const(-math.inf, dtype)), np.dtype(bool))
        bad = make.call("logical_and", (low, finite), np.dtype(bool))
        return make.call("where", (bad, make.const(math.nan, dtype), root), dtype)
    if c == -1:
        return make.call("divide", (make.const(1.0, dtype), x), dtype)
    return None


def _chain(make: Maker, x: Expr, exponent: int, dtype: np.dtype[Any]) -> Expr:
    """x^exponent by squaring."""
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else make.call("multiply", (result, x), dtype)
        exponent >>= 1
        if exponent:
            x = make.call("multiply", (x, x), dtype)
    assert result is not None
    return result


def _bound(make: Maker, args: Args, dtype: np.dtype[Any], neutral: float) -> Expr | None:
    for x, c in (args, args[::-1]):
        if _is(c, neutral) or x is c:
            return x
        if c.name == "const" and c.param != c.param:  # the code for constants lets x win
            return make.call("add", (x, c), dtype)
    return None


def _less(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    x, y = args
    return make.const(False, dtype) if x.dtype.kind == "u" and _is(y, 0) else None


def _logical_or(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    for x, c in (args, args[::-1]):
        if c.name == "const" and x.dtype.kind == "b" and c.dtype.kind == "b":
            return c if c.param else x
    return None


def _where(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    test, yes, no = args
    if yes is no:
        return yes
    if test.name == "const":
        return yes if test.param else no
    return None


def _negative(make: Maker, args: Args, dtype: np.dtype[Any]) -> Expr | None:
    (x,) = args
    return x.args[0] if x.name == "negative" else None


_RULES = {
    "add": _add,
    "subtract": lambda make, args, dtype: args[0] if _is(args[1], 0.0) else None,
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "maximum": partial(_bound, neutral=-math.inf),
    "minimum": partial(_bound, neutral=math.inf),
    "less": _less,
    "logical_or": _logical_or,
    "where": _where,
    "negative": _negative,
    "positive": lambda make, args, dtype: args[0],
}
