"""The expressions by which Reshape, Crop and Interp compute sizes from those of their inputs:
"0w,*(0h,2),-1" are the width of input 0, twice its height, and -1."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Size
from tinsmith.graph import Value


def _quotient(a: Any, b: Any) -> Any:
    return int(a / b) if type(a) is type(b) is int else float(math.floor(a / b))


def _rounded(a: Any) -> int:
    """a rounded to an integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(a) + 0.5), a))


def _remainder(a: Any, b: Any) -> float:
    return math.fmod(a, b) + (b if a * b < 0 else 0)


BINARY: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: float(a) / b, "max": max, "min": min, "pow": lambda a, b: float(a) ** b,
    "//": _quotient, "fmod": math.fmod, "remainder": _remainder, "atan2": math.atan2,
    "logaddexp": lambda a, b: max(a, b) + math.log1p(math.exp(-abs(a - b))),
}  # fmt: skip
BITS: dict[str, Any] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "lshift": lambda a, b: a << min(b, 62), "rshift": lambda a, b: a >> min(b, 62),
}  # fmt: skip
UNARY: dict[str, Any] = {
    "abs": abs, "neg": lambda a: -a, "sign": lambda a: (a > 0) - (a < 0), "square": lambda a: a * a,
    "rsqrt": lambda a: a**-0.5, "reciprocal": lambda a: 1 / a,
} | {
    name: getattr(math, name)
    for name in (
        "sqrt", "exp", "log", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "erf",
    )
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "trunc": int, "ceil": math.ceil, "floor": math.floor, "round": _rounded,
}  # fmt: skip
FREE = {
    "+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "//": "Div", "max": "Max", "min": "Min",
    "floor": "Floor", "ceil": "Ceil", "abs": "Abs", "trunc": "", "round": "",
}  # fmt: skip
"""Operations that are known for sizes that are computed in the run: -> our operator ("": none)."""


def sizes_of(node: Node, text: str) -> list[Size]:
    """The sizes in an expression of a layer: each a number, or, where it depends on unknown sizes
    of inputs, an int64 Value [1]. Raises Unsupported."""
    stack: list[Any] = []
    for token in reversed([t for t in re.split(r"[(),\s]+", text) if t]):
        try:
            stack.append(_value(node, token, stack))
        except (ArithmeticError, IndexError, ValueError, TypeError) as error:
            raise Unsupported(
                f"its expression {text[:80]!r} fails at {token!r}: {error}"
            ) from error
    return [_whole(node, v) if isinstance(v, Value) else int(v) for v in reversed(stack)]


def _is_real(v: Any) -> bool:
    return v.dtype.kind == "f" if isinstance(v, Value) else isinstance(v, float)


def _number(v: Any) -> Any:
    """A number as ncnn computes it: an int, or a float rounded to float32."""
    return float(np.float32(v)) if isinstance(v, float) else int(v)


def _whole(node: Node, v: Value) -> Value:
    return node.emit("Cast", v, to="int64") if _is_real(v) else v


def _free(node: Node, token: str, *operands: Any) -> Value:
    """Emit the operation `token` where an operand is a Value: in int64, or in float32 if an operand
    is real or the operation is `/`. Rounding ("floor" etc.) gives int64. Raises ValueError for
    operations that are not in FREE."""
    if token not in FREE:
        raise ValueError("it needs a size that only the run tells")
    real = token == "/" or any(map(_is_real, operands))
    if len(operands) == 1:
        return _free_unary(node, token, *operands) if real or token == "abs" else operands[0]
    values = [v if isinstance(v, Value) else node.const([v], np.float32 if real else np.int64)
              for v in operands]  # fmt: skip
    if real:
        values = [v if _is_real(v) else node.emit("Cast", v, to="float32") for v in values]
    y = node.emit(FREE[token], *values)
    return node.emit("Floor", y) if real and token == "//" else y


def _free_unary(node: Node, token: str, a: Value) -> Value:
    """`_free` for one operand, which is real unless `token` is "abs"; rounding gives int64."""
    if token == "round":  # halves away from zero
        away = node.emit("Floor", node.emit("Add", node.emit("Abs", a), node.number(0.5, a)))
        a = node.emit("Mul", node.emit("Sign", a), away)
    y = node.emit(FREE[token], a) if FREE[token] else a
    return y if token == "abs" else _whole(node, y)


def _value(node: Node, token: str, stack: list[Any]) -> Any:
    """The value of one token of an expression, whose tokens are read from the last to the first: an
    operation on values that it pops from `stack`, a size of an input (`0w`), or a number."""
    if token in BINARY or token in BITS:
        a, b = stack.pop(), stack.pop()
        if isinstance(a, Value) or isinstance(b, Value):
            return _free(node, token, a, b)
        if token in BINARY:
            return _number(BINARY[token](a, b))
        if _is_real(a) or _is_real(b):
            raise ValueError(f"it takes whole numbers, not {a} and {b}")
        return BITS[token](a, b)
    if token in UNARY or token in WHOLE:
        a = stack.pop()
        if isinstance(a, Value):
            return _free(node, token, a)
        return WHOLE[token](a) if token in WHOLE else _number(UNARY[token](a))
    if re.fullmatch(r"\d[whdcn]", token):
        if token[1] == "n":
            return node.dim(node[int(token[0])], 0)
        return node.size(node[int(token[0])], token[1])
    number = float(np.float32(token))
    return int(number) if number.is_integer() else number
