"""Importers of operators that change shapes, permute or repeat, of outer products, and of weights
that are operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import evaluate, size_of
from tinsmith.frontends.pnnx.layers import each_size
from tinsmith.frontends.pnnx.node import Complex, PnnxNode, operator
from tinsmith.graph import Value


@operator("pnnx.Attribute")
def attribute(node: PnnxNode) -> Value | Complex:
    if "@data" not in node.attrs and len(node.op.weights) == 1:  # whatever it is called
        return node.number_of(node.weight(*node.op.weights))
    return node.number_of(node.weight("data"))


# ---- shapes


@operator("Tensor.reshape", "Tensor.view", "torch.reshape", "torch.view")
def reshape(node: PnnxNode, input: Value, *, shape: Any) -> Value:
    return reshaped(node, input, shape)


def reshaped(node: PnnxNode, x: Value, shape: Any) -> Value:
    """x reshaped to `shape`, a Value or a list. If the batch is free, a list is replaced by the
    shape that the file declares for the result, if complete; its first number, the batch that was
    traced, becomes 0 (that of x) if the other axes have as many elements as those of x, else -1. In
    a list without 0, the size of x along the same axis (a node, as of `size_of`) becomes 0."""
    if isinstance(shape, Value):
        return node.emit("Reshape", x, shape)
    shape = list(each_size(shape))
    first = x.shape[0] if x.shape else 1
    said = node.declared()
    if node.scope.free and shape and isinstance(first, str) and said and None not in said:
        inner = x.shape[1:] if x.shape else ()
        rest = [int(s or 0) for s in said[1:]]
        whole = all(isinstance(d, int) for d in inner) and prod(rest) == prod(map(int, inner))
        shape = [0 if whole else -1, *rest]
    kept = [0 if _is_size(s, x, i) else s for i, s in enumerate(shape)]
    return node.emit("Reshape", x, (kept if 0 not in shape else shape) or node.ints())


def _is_size(value: Any, x: Value, axis: int) -> bool:
    """Whether `value` is the size of x along `axis`, computed by nodes as `size_of` emits them. A
    Reshape can then have 0 in its place."""
    cut = value.producer if isinstance(value, Value) else None
    asked = cut.inputs[0].producer if cut is not None and cut.inputs and cut.inputs[0] else None
    return asked is not None and asked.op.name == "Shape" and asked.inputs[0] is x and (
        cut.op.name, asked.attrs.get("start", 0), asked.end  # type: ignore[union-attr]
    ) == ("Squeeze", axis, axis + 1)  # fmt: skip


@operator("Tensor.reshape_as", "Tensor.view_as")
def reshape_as(node: PnnxNode, input: Value, other: Value) -> Value:
    return node.emit("Reshape", input, size_of(node, other))


@operator("torch.flatten", "Tensor.flatten", "nn.Flatten")
def flatten(
    node: PnnxNode, input: Value, *, start_dim: int | None = None, end_dim: int = -1
) -> Value:
    start_dim = start_dim if start_dim is not None else int(node.type == "nn.Flatten")
    if input.rank == 0:
        return node.emit("Reshape", input, node.ints(1))
    first, last = node.axis(input, start_dim), node.axis(input, end_dim)
    if first == last:
        return input
    if first == 1 and last == node.rank(input) - 1:
        return node.emit("Flatten", input, axis=1)
    return _with_axis(node, input, first, last + 1, [-1])


def _with_axis(node: PnnxNode, x: Value, first: int, end: int, sizes: Sequence[Any]) -> Value:
    """x reshaped, with `sizes` in place of the axes first .. end - 1."""
    after = [size_of(node, x, i) for i in range(end, node.rank(x))]
    return node.emit("Reshape", x, [*node.kept(x, first), *sizes, *after])


@operator("Tensor.unflatten", "torch.unflatten")
def unflatten(node: PnnxNode, input: Value, *, dim: int, sizes: Any) -> Value:
    axis = node.axis(input, dim)
    return _with_axis(node, input, axis, axis + 1, each_size(sizes))


@operator("torch.squeeze", "Tensor.squeeze")
def squeeze(node: PnnxNode, input: Value, *, dim: Any = None) -> Value:
    """Import squeeze: drop those of the axes `dim` (None: all) that are known to have size 1, and
    those of unknown size where the file says that the result has `len(dim)` axes fewer."""
    rank, said = node.rank(input), node.declared()
    axes = range(rank) if dim is None else [node.axis(input, d) for d in each_size(dim)]
    fewer = said is not None and len(said) == rank - len(axes)
    dims = input.shape or ()
    ones = [a for a in axes if dims[a] == 1 or (fewer and isinstance(dims[a], str))]
    return node.emit("Squeeze", input, node.ints(*ones)) if ones else input


@operator("Tensor.permute", "torch.permute")
def permute(node: PnnxNode, input: Value, *, dims: Any) -> Value:
    return node.emit("Transpose", input, perm=tuple(node.axis(input, d) for d in each_size(dims)))


@operator("torch.transpose", "Tensor.transpose")
def transpose(node: PnnxNode, input: Value, *, dim0: int, dim1: int) -> Value:
    order = list(range(node.rank(input)))
    a, b = node.axis(input, dim0), node.axis(input, dim1)
    order[a], order[b] = order[b], order[a]
    return node.emit("Transpose", input, perm=tuple(order))


@operator("torch.t", "Tensor.t", "Tensor.T", "Tensor.mT", "aten::mT", "aten::numpy_T")
def turned(node: PnnxNode, input: Value) -> Value:
    return input if node.rank(input) < 2 else transpose(node, input, dim0=-2, dim1=-1)


@operator("aten::movedim", "torch.movedim")
def movedim(node: PnnxNode, input: Value, *, source: Any, destination: Any) -> Value:
    goes = {
        node.axis(input, b): node.axis(input, a)
        for a, b in zip(each_size(source), each_size(destination), strict=True)
    }
    rest = iter([i for i in range(node.rank(input)) if i not in goes.values()])
    return node.emit(
        "Transpose",
        input,
        perm=tuple(goes[i] if i in goes else next(rest) for i in range(node.rank(input))),
    )


@operator("Tensor.size", "Tensor.dim")
def size(node: PnnxNode, input: Value, *, dim: Any = None) -> Any:
    if node.type == "Tensor.dim":
        return node.rank(input)
    return evaluate(node, "size(@0)" if dim is None else f"size(@0,{dim})")


@operator("Tensor.expand", "Tensor.expand_as", "torch.broadcast_to")
def expand(node: PnnxNode, input: Value, other: Any = None, *, sizes: Any = None) -> Value:
    if other is not None:
        return node.emit("Expand", input, size_of(node, other))
    if isinstance(sizes, Value):
        return node.emit("Expand", input, sizes)
    kept = [1 if isinstance(s, int) and s == -1 else s for s in each_size(sizes)]  # -1: as it is
    return node.emit("Expand", input, kept)


@operator("Tensor.repeat", "torch.tile")
def repeat(node: PnnxNode, input: Value, *, sizes: Any = None, dims: Any = None) -> Value:
    times = sizes if dims is None else dims
    if isinstance(times, Value):
        return node.emit("Tile", input, times)
    times = list(each_size(times))
    rank = node.rank(input)
    times = [1] * (rank - len(times)) + times
    if len(times) > rank:
        input = node.emit("Unsqueeze", input, node.ints(*range(len(times) - rank)))
    return node.emit("Tile", input, times)


@operator("torch.repeat_interleave")
def repeat_interleave(node: PnnxNode, input: Value, *, repeats: Any, dim: Any = None) -> Value:
    x = node.emit("Reshape", input, node.ints(-1)) if dim is None else input
    axis = node.axis(x, dim or 0)
    if isinstance(repeats, Value):
        if repeats.const is None:
            raise Unsupported("it is repeated as often as is computed")
        node.spend(8 * int(repeats.const.sum()))
        return node.emit("Gather", x, _repeated(repeats.const, node.size(x, axis)), axis=axis)
    rank = node.rank(x)
    y = node.emit("Unsqueeze", x, node.ints(axis + 1))
    y = node.emit("Tile", y, node.ints(*[1] * (axis + 1), repeats, *[1] * (rank - axis - 1)))
    return _with_axis(node, y, axis, axis + 2, [-1])


def _repeated(times: Any, size: int) -> Any:
    """Indexes of an axis of `size`, each i repeated times[i] times (times[0], if that is all)."""
    if times.size not in (1, size):
        raise Unsupported(f"it has {times.size} numbers of repeats for {size} elements")
    return np.repeat(np.arange(size), times.reshape(-1))


# ---- products of other shapes


@operator("torch.addmm", "torch.baddbmm", "torch.addmv")
def addmm(
    node: PnnxNode, input: Any, mat1: Any = None, mat2: Any = None, batch1: Any = None,
    batch2: Any = None, *, alpha: Any = 1, beta: Any = 1,
) -> Value:  # fmt: skip
    y = node.emit("MatMul", mat1 if batch1 is None else batch1, mat2 if batch2 is None else batch2)
    y = node.scaled(y, alpha)
    x = input if beta == 1 else node.emit("Mul", input, node.number(beta, y))
    return node.emit("Add", x, y) if beta else y


@operator("aten::outer", "torch.outer", "torch.ger")
def outer(node: PnnxNode, input: Value, vec2: Value) -> Value:
    return node.emit("Mul", node.emit("Unsqueeze", input, node.ints(1)), vec2)
