"""Sizes that are computed from those of inputs: "0w,*(0h,2),-1" of Reshape, Crop and Interp."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Size
from tinsmith.graph import Value

BINARY: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: float(a) / b, "max": max, "min": min, "pow": lambda a, b: float(a) ** b,
    "//": lambda a, b: int(a / b) if type(a) is type(b) is int else math.floor(a / b),
    "fmod": math.fmod, "remainder": lambda a, b: float(a) % b, "atan2": math.atan2,
    "logaddexp": lambda a, b: max(a, b) + math.log1p(math.exp(-abs(a - b))),
    "and": lambda a, b: int(a) & int(b), "or": lambda a, b: int(a) | int(b),
    "xor": lambda a, b: int(a) ^ int(b), "lshift": lambda a, b: int(a) << min(int(b), 62),
    "rshift": lambda a, b: int(a) >> min(int(b), 62),
}  # fmt: skip
UNARY: dict[str, Any] = {
    "abs": abs, "neg": lambda a: -a, "sign": lambda a: (a > 0) - (a < 0), "square": lambda a: a * a,
    "rsqrt": lambda a: a**-0.5, "reciprocal": lambda a: 1 / a, "trunc": int, "ceil": math.ceil,
    "floor": math.floor, "round": round,
} | {
    name: getattr(math, name)
    for name in (
        "sqrt", "exp", "log", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "erf",
    )
}  # fmt: skip
FREE = {
    "+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "//": "Div", "max": "Max", "min": "Min",
    "trunc": "Floor", "floor": "Floor", "ceil": "Ceil", "round": "Round",
}  # fmt: skip
"""What is computed of sizes that only the run tells, which are positive."""


def sizes_of(node: Node, text: str) -> list[Size]:
    """The sizes that the expression `text` of a layer stands for, by the sizes of its inputs:
    numbers, or int64 vectors of one element that the graph computes. Raises Unsupported."""
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


def _whole(node: Node, v: Value) -> Value:
    return node.emit("Cast", v, to="int64") if _is_real(v) else v


def _free(node: Node, token: str, *operands: Any) -> Value:
    """The value of the operation `token` on operands of which one is a size that only the run
    tells: whole, or float32 where an operand, or the quotient of `/`, is real. Raises ValueError
    where it has no such operation."""
    if token not in FREE:
        raise ValueError("it needs a size that only the run tells")
    real = token == "/" or any(map(_is_real, operands))
    if len(operands) == 1:
        return _whole(node, node.emit(FREE[token], *operands)) if real else operands[0]
    values = [v if isinstance(v, Value) else node.const([v], np.float32 if real else np.int64)
              for v in operands]  # fmt: skip
    if real:
        values = [v if _is_real(v) else node.emit("Cast", v, to="float32") for v in values]
    y = node.emit(FREE[token], *values)
    return node.emit("Floor", y) if real and token == "//" else y


def _value(node: Node, token: str, stack: list[Any]) -> Any:
    """The value of one token of an expression, read from behind: an operation on the top values of
    the stack, which are taken off, a size of an input (`0w`), or a number."""
    if token in BINARY:
        a, b = stack.pop(), stack.pop()
        if isinstance(a, Value) or isinstance(b, Value):
            return _free(node, token, a, b)
        return BINARY[token](a, b)
    if token in UNARY:
        a = stack.pop()
        if isinstance(a, Value):
            return a if token == "abs" else _free(node, token, a)
        return UNARY[token](a)
    if re.fullmatch(r"\d[whdcn]", token):
        if token[1] == "n":
            return node.dim(node[int(token[0])], 0)
        return node.size(node[int(token[0])], token[1])
    number = float(token)
    return int(number) if number.is_integer() else number
