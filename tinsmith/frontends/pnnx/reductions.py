"""Importers of reductions, sorting, comparisons, logic and clamping."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import BINARY, common, floats, size_of
from tinsmith.frontends.pnnx.layers import each_size
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.frontends.pnnx.rows import COMPARISONS
from tinsmith.graph import Value

KINDS = {
    "mean": "mean", "sum": "sum", "amax": "max", "amin": "min", "prod": "prod",
    "logsumexp": "logsumexp",
}  # fmt: skip
"""torch.NAME -> the kind of our Reduce."""


def reduced(node: PnnxNode, x: Value, kind: str, dim: Any, keepdim: bool) -> Value:
    """x reduced along `dim`, a number or a tuple; None or () mean all axes. `kind` is that of our
    Reduce."""
    axes = None if dim in (None, ()) else node.ints(*each_size(dim))
    return node.emit("Reduce", x, axes, kind=kind, keepdims=keepdim)


@operator(*(f"torch.{name}" for name in KINDS), "torch.nansum")
def reduce(
    node: PnnxNode, input: Value, *, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    kind, x = KINDS.get(node.type[6:], "sum"), input
    if kind in ("sum", "prod") and x.dtype.kind in "iub":
        x = node.cast(x, "int64")
    x = node.cast(x, node.dtype(dtype, x.dtype.name))
    if node.type == "torch.nansum":
        x = node.emit("Where", node.emit("IsNaN", x), node.number(0, x), x)
    return reduced(node, x, kind, dim, keepdim)


@operator("torch.max", "torch.min")
def extreme(
    node: PnnxNode, input: Value, other: Any = None, *, dim: Any = None, keepdim: bool = False
) -> Any:
    kind = node.type[6:]
    if other is not None:
        return BINARY[kind](node, input, other)
    y = reduced(node, input, kind, dim, keepdim)
    if not node.used(1):
        return y, None
    return y, node.emit("ArgReduce", input, kind=kind, axis=dim, keepdims=keepdim)


@operator("torch.argmax", "torch.argmin")
def arg_reduce(node: PnnxNode, input: Value, *, dim: Any = None, keepdim: bool = False) -> Value:
    x = node.emit("Reshape", input, node.ints(-1)) if dim is None else input
    axis = 0 if dim is None else dim
    return node.emit(
        "ArgReduce", x, kind=node.type[9:], axis=axis, keepdims=keepdim and dim is not None
    )


@operator("torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm")
def norm(
    node: PnnxNode, input: Value, *, p: Any = 2, ord: Any = None, dim: Any = None,
    keepdim: bool = False, dtype: Any = None,
) -> Value:  # fmt: skip
    p = 2 if p == "fro" or p is None else p if ord is None else ord
    if p in (1, 2):
        return reduced(node, input, f"l{int(p)}", dim, keepdim)
    x = node.emit("Abs", input)
    if p in (float("inf"), float("-inf")):
        return reduced(node, x, "max" if p > 0 else "min", dim, keepdim)
    if not isinstance(p, int | float) or p == 0:
        raise Unsupported(f"its p is {p}")
    total = reduced(node, node.emit("Pow", x, node.number(p, x)), "sum", dim, keepdim)
    return node.emit("Pow", total, node.number(1 / p, x))


@operator("F.pairwise_distance")
def pairwise_distance(
    node: PnnxNode, x1: Value, x2: Value, *, p: float = 2.0, eps: float = 1e-6,
    keepdim: bool = False,
) -> Value:  # fmt: skip
    apart = node.emit("Sub", x1, x2)
    shifted = node.emit("Add", apart, node.number(eps, apart))
    return norm(node, shifted, p=int(p) if p in (1, 2) else p, dim=-1, keepdim=keepdim)


@operator("torch.cross", "torch.linalg.cross")
def cross(node: PnnxNode, input: Value, other: Value, *, dim: Any = None) -> Value:
    """Import cross product along `dim`; None: the first axis of 3 (torch.cross), else the last."""
    if dim is None:
        threes = [i for i in range(node.rank(input)) if node.size(input, i) == 3]
        dim = -1 if "linalg" in node.type or not threes else threes[0]
    axis = node.axis(input, dim)

    def turned(x: Value, by: int) -> Value:
        return node.emit("Gather", x, (np.arange(3) + by) % 3, axis=axis)

    products = [node.emit("Mul", turned(input, i), turned(other, 3 - i)) for i in (1, 2)]
    return node.emit("Sub", *products)


@operator("torch.var", "torch.std", "torch.var_mean", "torch.std_mean")
def variance(
    node: PnnxNode, input: Value, *, dim: Any = None, keepdim: bool = False, unbiased: bool = True,
    correction: Any = None,
) -> Any:  # fmt: skip
    off = node.emit("Sub", input, reduced(node, input, "mean", dim, True))
    y = reduced(node, node.emit("Mul", off, off), "mean", dim, keepdim)
    freedom = int(unbiased) if correction is None else correction
    if freedom:
        axes = range(node.rank(input)) if dim in (None, ()) else each_size(dim)
        count = int(np.prod([node.size(input, node.axis(input, a)) for a in axes]))
        y = node.emit("Mul", y, node.number(count / (count - freedom), y))
    y = node.emit("Sqrt", y) if "std" in node.type else y
    return (y, reduced(node, input, "mean", dim, keepdim)) if node.type.endswith("mean") else y


@operator("torch.cumsum", "torch.cumprod")
def cumulative(node: PnnxNode, input: Value, *, dim: int, dtype: Any = None) -> Value:
    x = node.cast(
        input, node.dtype(dtype, "int64" if input.dtype.kind in "iub" else input.dtype.name)
    )
    op = "CumSum" if node.type == "torch.cumsum" else "CumProd"
    return node.emit(op, x, node.const(np.array(dim, np.int64)))


@operator("torch.topk")
def topk(
    node: PnnxNode, input: Value, *, k: Any, dim: int = -1, largest: bool = True,
    sorted: bool = True,
) -> Any:  # fmt: skip
    count = node.emit("Reshape", k, node.ints(1)) if isinstance(k, Value) else node.ints(k)
    return node.emit("TopK", input, count, axis=dim, largest=largest, sorted=sorted)


@operator("aten::sort", "torch.sort", "torch.argsort")
def sort(node: PnnxNode, input: Value, *, dim: int = -1, descending: bool = False) -> Any:
    axis = node.axis(input, dim)
    count = node.tensor([size_of(node, input, axis)])
    both = node.emit("TopK", input, count, axis=axis, largest=descending)
    return both[1] if node.type == "torch.argsort" else both


# ---- comparison and selection


@operator(*(f"torch.{name}" for name in (*COMPARISONS, "ne")))
def compare(node: PnnxNode, input: Any, other: Any) -> Value:
    x, y = common(node, input, other)
    op = COMPARISONS.get(node.type[6:])
    return node.emit(op, x, y) if op else node.emit("Not", node.emit("Equal", x, y))


@operator("torch.logical_and", "torch.logical_or", "torch.logical_xor")
def logical(node: PnnxNode, input: Any, other: Any) -> Value:
    names = {"and": "And", "or": "Or", "xor": "Xor"}
    return node.emit(names[node.type[14:]], truth(node, input), truth(node, other))


def truth(node: PnnxNode, x: Any) -> Value:
    return node.cast(x, "bool")


@operator("torch.logical_not")
def logical_not(node: PnnxNode, input: Value) -> Value:
    return node.emit("Not", truth(node, input))


@operator("torch.bitwise_not")
def bitwise_not(node: PnnxNode, input: Value) -> Value:
    return node.emit("Not" if input.dtype.kind == "b" else "BitwiseNot", input)


@operator("torch.where")
def where(node: PnnxNode, condition: Value, input: Any, other: Any) -> Value:
    return node.emit("Where", condition, *common(node, input, other))


@operator("Tensor.masked_fill")
def masked_fill(node: PnnxNode, input: Value, mask: Value, value: Any) -> Value:
    return node.emit("Where", mask, node.cast(value, input.dtype.name), input)


@operator("torch.clamp", "torch.clamp_min", "torch.clamp_max", "aten::clamp_min", "aten::clamp_max")
def clamp(node: PnnxNode, input: Value, *, min: Any = None, max: Any = None) -> Value:
    if node.type.endswith("_max"):
        min, max = None, min if max is None else max
    y = input
    if all(b is None or isinstance(b, int | float) for b in (min, max)):
        low, high = (None if b is None else float(b) for b in (min, max))
        if y.dtype.kind in "iu" and all(b is None or isinstance(b, int) for b in (min, max)):
            low, high = min, max
        return node.emit(
            "Clip", floats(node, y) if isinstance(low or high, float) else y, min=low, max=high
        )
    y = y if min is None else BINARY["maximum"](node, y, min)
    return y if max is None else BINARY["minimum"](node, y, max)
