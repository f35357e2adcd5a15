"""The table of elementwise functions: its rows, and questions to it. `functions.py` fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder
from tinsmith.codegen.types import Ty, from_dtype, name_of
from tinsmith.codegen.values import Val
from tinsmith.errors import CodegenError
from tinsmith.records import dataclass

Emit = Callable[[Builder, Any, Sequence[Val], int], Val]

_CLASSES = {
    "f": {"float32"},
    "d": {"float64"},
    "i": {"int8", "int16", "int32", "int64"},
    "u": {"uint8", "uint16", "uint32", "uint64"},
    "b": {"bool"},
    "h": {"float16", "bfloat16"},
}


NATIVE = frozenset().union(*_CLASSES.values())


@dataclass(frozen=True)
class Function:
    """A row of the table of elementwise functions.

    numpy   (expr, *arrays) -> the result: the definition of the function
    emit    (b, expr, args, lanes) -> the result as a Val, whose instructions it emits
    dtypes  dtypes of the first operand for which `emit` works
    flops   of one element, approximately
    """

    name: str
    numpy: Callable[..., Any]
    emit: Emit
    dtypes: frozenset[str]
    flops: float = 1.0


FUNCTIONS: dict[str, Function] = {}


def kind_of(dtype: np.dtype[Any]) -> str:
    """The element kind of values of a dtype in registers: bool is "i1", others as in memory.
    Raises CodegenError as `from_dtype` does."""
    return "i1" if dtype == np.bool_ else from_dtype(dtype).kind


def function(
    name: str, classes: str, flops: float = 1.0, numpy: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds a row to the table: what it decorates takes a Val for each operand,
    emits code and returns the result. `numpy` defines the function; by default numpy's of that
    name. `classes` are the dtypes for which it works: f float32, d float64, i signed, u unsigned, b
    bool, h float16 and bfloat16 (which are only moved). `flops`: as in `Function`."""
    dtypes = frozenset().union(*(_CLASSES[c] for c in classes))
    meaning = numpy or getattr(np, name)

    def register(emit: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[name] = Function(
            name=name, numpy=lambda e, *arrays: meaning(*arrays),
            emit=lambda b, e, args, lanes: emit(*args), dtypes=dtypes, flops=flops,
        )  # fmt: skip
        return emit

    return register


def unsupported(expr: Any) -> str | None:
    """Why the expression has no native code, as words for a Skip; None if it has."""

    def check(e: Any, reasons: list[str | None]) -> str | None:
        if reason := next(filter(None, reasons), None):
            return reason
        if name_of(e.dtype) not in NATIVE:
            return f"{e.dtype.name} has no native code"
        if e.name in ("leaf", "const", "size"):
            return None
        row = FUNCTIONS.get(e.name)
        if row is None:
            return f"{e.name} has no native code"
        operands = e.args[1:] if e.name == "where" else e.args
        if len({a.dtype for a in operands}) > 1:
            return f"{e.name} of {' and '.join(a.dtype.name for a in operands)} has no native code"
        if name_of(operands[0].dtype) not in row.dtypes:
            return f"{e.name} of {operands[0].dtype.name} has no native code"
        return None

    return expr.fold(check)


def flops_of(expr: Any) -> float:
    """The approximate flops of the expression for one element; shared parts count once."""
    return sum(FUNCTIONS[e.name].flops for e in expr.nodes() if e.name in FUNCTIONS)


def emit_function(b: Builder, expr: Any, args: Sequence[Val], lanes: int) -> Val:
    """Emit one node, `expr`, of an expression, which is no leaf; return its value. `args`: the
    values of its operands; constants get `lanes` lanes. Raises CodegenError for a function without
    native code."""
    if expr.name in ("const", "size"):
        return b.const(expr.param, Ty(kind_of(expr.dtype), lanes))
    row = FUNCTIONS.get(expr.name)
    if row is None:
        raise CodegenError(f"the function {expr.name!r} has no native code")
    return row.emit(b, expr, args, lanes)
