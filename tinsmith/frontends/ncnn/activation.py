"""Importers of activations, elementwise arithmetic and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Result, layer, pick, rank, shape
from tinsmith.graph import Value

PLAIN = {
    "AbsVal": "Abs", "BNLL": "Softplus", "CELU": "Celu", "Clip": "Clip", "ELU": "Elu", "Erf": "Erf",
    "HardSigmoid": "HardSigmoid", "HardSwish": "HardSwish", "Mish": "Mish", "SELU": "Selu",
    "Shrink": "Shrink", "Sigmoid": "Sigmoid", "Softplus": "Softplus", "Swish": "Swish",
    "TanH": "Tanh",
}  # fmt: skip
"""Activations that are one to one: ncnn's layer -> our operator. Their parameters: `NAMES`."""


@layer(*PLAIN)
def plain(node: Node) -> Result:
    return node.emit(PLAIN[node.type], node[0], **node.named())


@layer("ReLU")
def relu(node: Node) -> Result:
    slope = node.attr("slope")
    return node.emit("LeakyRelu", node[0], alpha=slope) if slope else node.emit("Relu", node[0])


@layer("PReLU")
def prelu(node: Node) -> Result:
    node.attr("num_slope")
    return node.emit("PRelu", node[0], node.channels(node.weight("slope"), node[0]))


@layer("GELU")
def gelu(node: Node) -> Result:
    return node.emit("Gelu", node[0], approximate="tanh" if node.attr("fast_gelu") else "none")


@layer("Threshold")
def threshold(node: Node) -> Result:
    above = node.emit("Greater", node[0], node.number(node.attr("threshold"), node[0]))
    return node.emit("Cast", above, to="float32")


@layer("Dropout")
def dropout(node: Node) -> Result:
    return node.scaled(node[0], node.attr("scale"))


def _inner(node: Node) -> Value:
    return node.shifted(node.scaled(node[0], node.attr("scale")), node.attr("shift"))


@layer("Exp")
def exp(node: Node) -> Result:
    base, x = node.attr("base"), _inner(node)
    return node.emit("Exp", x) if base == -1 else node.emit("Pow", node.number(base, x), x)


@layer("Log")
def log(node: Node) -> Result:
    base, y = node.attr("base"), node.emit("Log", _inner(node))
    return node.scaled(y, 1.0 if base == -1 else 1 / np.log(base))


@layer("Power")
def power(node: Node) -> Result:
    x, exponent = _inner(node), node.attr("power")
    return x if exponent == 1 else node.emit("Pow", x, node.number(exponent, x))


@layer("Softmax")
def softmax(node: Node) -> Result:
    axis = node.attr("axis")
    if not node.attr("fixbug0") and axis:
        raise Unsupported("it is of a converter that counted axes otherwise (fixbug0 is not set)")
    return node.emit("Softmax", node[0], axis=node.axis(axis, node.rank()))


@layer("GLU")
def glu(node: Node) -> Result:
    axis = node.axis(node.attr("axis"), node.rank())
    x, size = node[0], node.dim(node[0], axis)
    if isinstance(size, int) and size % 2 == 0:
        a, b = node.emit("Split", x, axis=axis, num_outputs=2)
    else:  # the last one of an odd number is left out
        half = size // 2 if isinstance(size, int) else node.emit("Div", size, node.ints(2))
        twice = half * 2 if isinstance(half, int) else node.emit("Add", half, half)
        ends = [node.joined([n]) for n in (half, twice)]
        a = node.emit("Slice", x, node.ints(0), ends[0], node.ints(axis))
        b = node.emit("Slice", x, ends[0], ends[1], node.ints(axis))
    return node.emit("Mul", a, node.emit("Sigmoid", b))


# ---- one operand


def _truncated(node: Node, x: Value) -> Value:
    return node.emit("Mul", node.emit("Sign", x), node.emit("Floor", node.emit("Abs", x)))


def _less_one(node: Node, x: Value) -> Value:
    """e^x - 1, computed as tanh(x / 2) * (e^x + 1), which loses no digits for small x."""
    half = node.emit("Tanh", node.scaled(x, 0.5))
    return node.emit("Mul", half, node.shifted(node.emit("Exp", x), 1.0))


UNARY = (
    "Abs", "Neg", "Floor", "Ceil", lambda n, x: n.emit("Mul", x, x), "Sqrt", "Rsqrt", "Exp", "Log",
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Reciprocal", "Tanh",
    lambda n, x: n.scaled(n.emit("Log", x), 1 / np.log(10)), "Round", _truncated, "Sign", _less_one,
    "Sinh", "Asinh", "Cosh", "Acosh", "Atanh", lambda n, x: n.emit("Log", n.shifted(x, 1.0)),
)  # fmt: skip
"""The operators of UnaryOp, by ncnn's number (op_type): names of ours, or functions that emit."""


@layer("UnaryOp")
def unary(node: Node) -> Result:
    op = pick(UNARY, node.attr("op_type"))
    return node.emit(op, node[0]) if isinstance(op, str) else op(node, node[0])


# ---- two operands


def _log_add(node: Node, a: Value, b: Value) -> Value:
    apart = node.emit("Neg", node.emit("Abs", node.emit("Sub", a, b)))
    return node.emit("Add", node.emit("Max", a, b), node.emit("Softplus", apart))


def _fmod(node: Node, a: Value, b: Value) -> Value:
    return node.emit("Mod", a, b, fmod=True)


def _whole(node: Node, a: Value, b: Value) -> Value:
    return node.emit("Floor", node.emit("Div", a, b))


def _rest(node: Node, a: Value, b: Value) -> Value:
    """a - b * round(a / b), where halves are rounded to even: C's `remainder`."""
    times = node.emit("Round", node.emit("Div", a, b))
    return node.emit("Sub", a, node.emit("Mul", times, b))


def _turned(op):
    """A function (node, a, b) that emits `op`, our operator's name or such a function, of (b,
    a)."""
    return lambda node, a, b: node.emit(op, b, a) if isinstance(op, str) else op(node, b, a)


BINARY = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", _turned("Sub"), _turned("Div"), _turned("Pow"),
    "Atan2", _turned("Atan2"), _fmod, _turned(_fmod), _log_add, _whole, _turned(_whole), _rest,
    _turned(_rest),
)  # fmt: skip
"""The operators of BinaryOp, by ncnn's number (op_type), as in UNARY."""


@layer("BinaryOp")
def binary(node: Node) -> Result:
    op = pick(BINARY, node.attr("op_type"))
    a = node[0]
    if node.attr("with_scalar"):
        b = node.number(node.attr("b"), a)
    else:
        node.ignore("b")
        a, b = aligned(node, a, node[1])
    return node.emit(op, a, b) if isinstance(op, str) else op(node, a, b)


def aligned(node: Node, a: Value, b: Value) -> tuple[Value, Value]:
    """a and b, the one of lower rank reshaped to the rank of the other so that numpy's broadcasting
    gives ncnn's: its axes are lined up with the first (outer) ones after the batch, (h, w) as
    (h, w, 1). A vector is lined up with the first axis if it has its size, else with the last.
    Raises Unsupported where only the run tells that."""
    low, high = sorted((a, b), key=rank)
    if rank(low) == rank(high):
        return a, b
    wide = rank(high)
    sizes = [node.dim(low, i + 1) for i in range(rank(low))]
    ones: list[Any] = [1] * (wide - rank(low))
    if rank(low) == 1 and shape(low)[1] != shape(high)[1]:
        if shape(low)[1] == 1:
            ones, sizes = [1] * wide, []
        elif isinstance(shape(low)[1], str) or isinstance(shape(high)[1], str):
            raise Unsupported(f"how {shape(low)} goes with {shape(high)} is known only in a run")
        fitted = node.reshaped(low, *ones, *sizes)
    else:
        fitted = node.reshaped(low, *sizes, *ones)
    return (fitted, b) if low is a else (a, fitted)


@layer("Eltwise")
def eltwise(node: Node) -> Result:
    op, values = pick(("Mul", "Add", "Max"), node.attr("op_type")), [v for v in node.inputs if v]
    if coeffs := node.attr("coeffs"):
        if op == "Add" and len(coeffs) != len(values):
            raise Unsupported(f"it has {len(coeffs)} coefficients for {len(values)} inputs")
        if op == "Add":
            values = [node.scaled(v, c) for v, c in zip(values, coeffs, strict=True)]
    y = values[0]
    for v in values[1:]:
        y = node.emit(op, y, v)
    return y


REDUCE = (
    "sum", "l1", "sumsquare", "mean", "max", "min", "prod", "l1", "l2", "logsum", "logsumexp",
)  # fmt: skip


@layer("Reduction")
def reduction(node: Node) -> Result:
    x, kind = node[0], pick(REDUCE, node.attr("operation"))
    keep, axes = bool(node.attr("keepdims")), node.attr("axes")
    everything = bool(node.attr("reduce_all")) or not axes
    if not everything and not node.attr("fixbug0"):
        raise Unsupported("it is of a converter that counted axes otherwise (fixbug0 is not set)")
    node.ignore("fixbug0")
    at = range(1, rank(x) + 1) if everything else [node.axis(a, rank(x)) for a in axes]
    y = node.emit("Reduce", x, node.ints(*sorted(set(at))), kind=kind, keepdims=keep)
    y = node.reshaped_scalar(y) if y.rank == 1 else y
    return node.scaled(y, node.attr("coeff"))


@layer("CumulativeSum")
def cumulative(node: Node) -> Result:
    axis = node.axis(node.attr("axis"), node.rank())
    return node.emit("CumSum", node[0], node.const(axis, np.int64))
