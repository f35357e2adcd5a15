"""The formulas of `pnnx.Expression`, such as `add(mul(@0,2.0),[1,size(@1,2)])`, where `@n` is the
operand n: from text to numbers, lists and nodes of the graph.

A formula is read from its end, as by pnnx: a function takes its operands from a stack. Parentheses
are ignored, so that `log1p),add(@0,1)`, which pnnx writes for log1p and expm1, is read as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.formats.pnnx import value_of
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.node import Complex, PnnxNode, operator
from tinsmith.graph import Value
from tinsmith.graph.types import dtype_of

_TOKEN = re.compile(r"[(),\]\[]|[^(),\]\[\s]+")
_OPERAND = re.compile(r"@\d{1,9}")
_COMPLEX = re.compile(r"-?[\d.]+(e[+-]?\d+)?[+-][\d.]+(e[+-]?\d+)?j", re.I)

KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}
"""Kind of numpy's dtypes ("V": bfloat16) -> its height, for `common`."""
CONVERSIONS = {
    "torch.bool": "bool", "torch.float": "float32", "torch.long": "int64", "int": "int64",
}  # fmt: skip

Made = Callable[..., Any]
"""made(node, x, ...) emits a function of operands (Values, numbers), and returns its Value."""


def common(node: PnnxNode, *xs: Any) -> list[Value]:
    """Operands, numbers or Values, as tensors of one element type, by PyTorch's type promotion: the
    type of the tensors with axes, unless a scalar tensor, or else a number, is of a higher kind
    (bool < integer < float < complex). Raises Unsupported for other operands."""
    ranked: list[list[Any]] = [[], [], []]
    for x in xs:
        if isinstance(x, list | tuple | str) or x is None:
            raise Unsupported(f"it computes with {x!r}")
        at = 2 if not isinstance(x, Value) else 1 if x.rank == 0 else 0
        ranked[at].append(node.tensor(x).dtype)
    best = None
    for dtypes in ranked:
        for dtype in dtypes:
            if best is None or KINDS[dtype.kind] > KINDS[best.kind]:
                best = dtype
            elif dtypes is not ranked[2] and KINDS[dtype.kind] == KINDS[best.kind]:
                best = _promoted(best, dtype) if best in dtypes else best
    assert best is not None
    return [
        node.cast(x, best.name) if isinstance(x, Value) else _number(node, x, best.name) for x in xs
    ]


def _promoted(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a sum of two tensors of one kind, as PyTorch's."""
    if a != b and a.itemsize == b.itemsize == 2 and a.kind in "fV":  # float16 and bfloat16
        return np.dtype(np.float32)
    return np.promote_types(a, b)


def _number(node: PnnxNode, x: Any, dtype: str) -> Value:
    try:
        return node.const(np.array(x).astype(dtype_of(dtype)))
    except (OverflowError, ValueError) as error:
        raise Unsupported(f"{x} is no {dtype}") from error


def floats(node: PnnxNode, x: Any) -> Value:
    """x, a number or a Value, as a tensor of floats (float32 if it is of another kind)."""
    x = node.tensor(x)
    return x if x.dtype.kind in "fV" else node.cast(x, "float32")


def _same(op: str) -> Made:
    return lambda node, *xs: node.emit(op, *common(node, *xs))


def _float(op: str) -> Made:
    return lambda node, *xs: node.emit(op, *(floats(node, x) for x in common(node, *xs)))


def _bits(whole: str, logical: str) -> Made:
    def run(node: PnnxNode, x: Any, y: Any) -> Value:
        x, y = common(node, x, y)
        return node.emit(logical if x.dtype.kind == "b" else whole, x, y)

    return run


def _shift(direction: str) -> Made:
    def run(node: PnnxNode, x: Any, y: Any) -> Value:
        x, y = common(node, x, y)
        power = node.emit("Pow", node.number(2, x), y)
        if direction == "LEFT":
            return node.emit("Mul", x, power)
        return floor_divide(node, x, power)

    return run


def floor_divide(node: PnnxNode, x: Any, y: Any) -> Value:
    x, y = common(node, x, y)
    if x.dtype.kind == "f":
        return node.emit("Floor", node.emit("Div", x, y))
    return node.emit("Div", node.emit("Sub", x, node.emit("Mod", x, y)), y)


def remainder(node: PnnxNode, x: Any, y: Any) -> Value:
    x, y = common(node, x, y)
    if x.dtype.kind != "f":
        return node.emit("Mod", x, y)
    return node.emit("Sub", x, node.emit("Mul", floor_divide(node, x, y), y))


def _rounded(op: str) -> Made:
    def run(node: PnnxNode, x: Any) -> Value:
        x = node.tensor(x)
        return x if x.dtype.kind in "iub" else node.emit(op, x)

    return run


def trunc(node: PnnxNode, x: Any) -> Value:
    x = node.tensor(x)
    if x.dtype.kind in "iub":
        return x
    negative = node.emit("Less", x, node.number(0, x))
    return node.emit("Where", negative, node.emit("Ceil", x), node.emit("Floor", x))


def log1p(node: PnnxNode, x: Any) -> Value:
    """log(1 + x); for |x| < 1/2 as 2 atanh(x / (2 + x)), which loses no digits of a small x."""
    x = floats(node, x)
    one, two, half = (node.number(n, x) for n in (1, 2, 0.5))
    near = node.emit("Less", node.emit("Abs", x), half)
    inner = node.emit("Where", near, x, node.number(0, x))
    small = node.emit(
        "Mul", two, node.emit("Atanh", node.emit("Div", inner, node.emit("Add", two, inner)))
    )
    return node.emit("Where", near, small, node.emit("Log", node.emit("Add", one, x)))


def expm1(node: PnnxNode, x: Any) -> Value:
    """e^x - 1 as 2 sinh(x / 2) e^(x / 2), which loses no digits for small x."""
    x = floats(node, x)
    half = node.emit("Mul", x, node.number(0.5, x))
    twice = node.emit("Mul", node.number(2, x), node.emit("Sinh", half))
    return node.emit("Mul", twice, node.emit("Exp", half))


def logaddexp(node: PnnxNode, x: Any, y: Any) -> Value:
    x, y = common(node, x, y)
    apart = node.emit("Neg", node.emit("Abs", node.emit("Sub", x, y)))
    return node.emit("Add", node.emit("Max", x, y), log1p(node, node.emit("Exp", apart)))


def log10(node: PnnxNode, x: Any) -> Value:
    x = node.emit("Log", floats(node, x))
    return node.emit("Mul", x, node.number(1 / math.log(10), x))


LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
)  # fmt: skip


@operator("torch.lgamma", "aten::lgamma")
def lgamma(node: PnnxNode, input: Any) -> Value:
    """log |gamma(x)|: for x >= 1/2 by Lanczos' series, below by the reflection
    gamma(x) gamma(1 - x) = pi / sin(pi x)."""
    x = floats(node, input)
    one, half = node.number(1, x), node.number(0.5, x)
    below = node.emit("Less", x, half)
    z = node.emit("Sub", node.emit("Where", below, node.emit("Sub", one, x), x), one)
    series = node.number(LANCZOS[0], x)
    for i, c in enumerate(LANCZOS[1:], 1):
        term = node.emit("Div", node.number(c, x), node.emit("Add", z, node.number(i, x)))
        series = node.emit("Add", series, term)
    t = node.emit("Add", z, node.number(7.5, x))
    y = node.emit("Mul", node.emit("Add", z, half), node.emit("Log", t))
    y = node.emit("Add", node.emit("Sub", y, t), node.emit("Log", series))
    y = node.emit("Add", y, node.number(0.5 * math.log(2 * math.pi), x))
    sine = node.emit("Abs", node.emit("Sin", node.emit("Mul", x, node.number(math.pi, x))))
    other = node.emit("Log", node.emit("Div", node.number(math.pi, x), sine))
    return node.emit("Where", below, node.emit("Sub", other, y), y)


def square(node: PnnxNode, x: Any) -> Value:
    x = node.tensor(x)
    return node.emit("Mul", x, x)


def conversion(dtype: str) -> Made:
    return lambda node, x: node.cast(x, dtype)


PLAIN: dict[Callable[[str], Made], tuple[str, ...]] = {
    _same: ("abs", "neg", "sign"), _rounded: ("ceil", "floor", "round"),
    _float: (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log",
        "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
    ),
}  # fmt: skip
"""Functions of one operand that are an operator of ours, of the same name: by how they take it."""

UNARY: dict[str, Made] = {
    **{n: made(n.capitalize()) for made, names in PLAIN.items() for n in names},
    "expm1": expm1, "log10": log10, "log1p": log1p, "square": square, "trunc": trunc,
    **{name: conversion(dtype) for name, dtype in CONVERSIONS.items()},
}  # fmt: skip
"""Functions of one operand in formulas."""

BINARY: dict[str, Made] = {
    "add": _same("Add"), "sub": _same("Sub"), "mul": _same("Mul"), "div": _float("Div"),
    "floor_divide": floor_divide, "remainder": remainder, "pow": _same("Pow"),
    "fmod": lambda node, x, y: node.emit("Mod", *common(node, x, y), fmod=True),
    "atan2": _float("Atan2"), "max": _same("Max"), "maximum": _same("Max"), "min": _same("Min"),
    "minimum": _same("Min"), "logaddexp": logaddexp, "and": _bits("BitwiseAnd", "And"),
    "or": _bits("BitwiseOr", "Or"), "xor": _bits("BitwiseXor", "Xor"), "lshift": _shift("LEFT"),
    "rshift": _shift("RIGHT"),
}  # fmt: skip
"""Functions of two operands in formulas."""

_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "floor_divide": lambda a, b: a // b, "neg": lambda a: -a,
    "remainder": lambda a, b: a % b, "int": int, "torch.long": int, "abs": abs, "floor": math.floor,
    "torch.float": float, "max": max, "min": min, "maximum": max, "minimum": min, "sqrt": math.sqrt,
    "ceil": math.ceil, "round": round, "trunc": math.trunc,
}  # fmt: skip
"""Functions that are computed at import where all operands are numbers."""


def evaluate(node: PnnxNode, text: str) -> Any:
    """The result of the formula `text` over the inputs of `node`: a number, None, a Value, a
    Complex, or a list of these. Raises Unsupported if it cannot be read."""
    tokens = _TOKEN.findall(text)
    node.scope.shared.count_nodes(len(tokens))
    commas = _commas(tokens)
    stack: list[Any] = []
    for i in range(len(tokens) - 1, -1, -1):
        token = tokens[i]
        if token in "(),":
            continue
        if token == "]":
            stack.append(_END)
        elif token == "[":
            stack.append([*iter(lambda: _pop(stack, "["), _END)])
        elif token == "size":
            stack.append(
                size_of(node, *[_pop(stack, token) for _ in range(1 + commas.get(i + 1, 0))])
            )
        elif token in UNARY:
            stack.append(_computed(node, token, _pop(stack, token)))
        elif token in BINARY:
            stack.append(_computed(node, token, _pop(stack, token), _pop(stack, token)))
        elif _OPERAND.fullmatch(token):
            stack.append(_operand_at(node, int(token[1:])))
        else:
            stack.append(_literal(token))
    if len(stack) != 1 or stack[0] is _END:
        raise Unsupported(f"its formula is not one value: {text[:80]}")
    return stack[0]


_END = object()


def _pop(stack: list[Any], token: str) -> Any:
    if not stack:
        raise Unsupported(f"its formula gives {token!r} too few values")
    return stack.pop()


def _commas(tokens: list[str]) -> dict[int, int]:
    """Index of each `(` and `[` among the tokens -> the number of commas between it and its end,
    without those in inner brackets: the number of operands - 1."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token in ("(", "["):
            opened.append(i)
            found[i] = 0
        elif token in (")", "]") and opened:
            opened.pop()
        elif token == "," and opened:
            found[opened[-1]] += 1
    return found


def _operand_at(node: PnnxNode, index: int) -> Any:
    if index >= len(node.inputs):
        raise Unsupported(f"its formula reads the input @{index} of {len(node.inputs)}")
    return node.inputs[index]


def _literal(token: str) -> Any:
    value = value_of(token)
    if isinstance(value, str) and _COMPLEX.fullmatch(token):
        return complex(token)
    if isinstance(value, str):
        raise Unsupported(f"its formula has the function {token[:40]!r}, which is not known")
    return value


def _computed(node: PnnxNode, name: str, *xs: Any) -> Any:
    """The function `name` of one or two operands: a number if all are numbers (and _NUMBERS has
    it), else a Value; of complex operands a Complex or Value."""
    table = UNARY if len(xs) == 1 else BINARY
    if all(isinstance(x, bool | int | float) for x in xs) and name in _NUMBERS:
        return _NUMBERS[name](*xs)
    if any(isinstance(x, Complex | complex) for x in xs):
        from tinsmith.frontends.pnnx.complex import computed  # which is made of this arithmetic

        return computed(node, name, *xs)
    return table[name](node, *xs)


def size_of(node: PnnxNode, x: Any, axis: Any = None) -> Any:
    """The size of x along an axis: a number if it is known, else a scalar int64 Value. Without an
    axis, the list of all sizes. Raises Unsupported if x is no tensor."""
    x = x.real if isinstance(x, Complex) else x
    if not isinstance(x, Value):
        raise Unsupported("its formula asks for the size of what is no tensor")
    if axis is None:
        return [size_of(node, x, i) for i in range(node.rank(x))]
    axis = node.axis(x, axis)
    dim = x.shape[axis] if x.shape is not None else None
    if isinstance(dim, int):
        return dim
    return node.emit("Squeeze", node.emit("Shape", x, start=axis, end=axis + 1), node.ints(0))


@operator("pnnx.Expression")
def expression(node: PnnxNode, *xs: Any, expr: str) -> Any:
    return evaluate(node, expr)
