"""Importers of operators that select, join, split or make tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import common, size_of
from tinsmith.frontends.pnnx.layers import each_size
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.graph import Value

END = 2**31 - 1
"""In PNNX's slices: as an end, the end of the axis; as a select, no index is selected."""

LAST = 2**63 - 1
"""The end of an axis in our Slice."""


# ---- selection


@operator("pnnx.SliceIndexes")
def slice_indexes(node: PnnxNode, *xs: Any, indexes: Any) -> list[Any]:
    """Import a list of indexes, which PNNX writes as text: numbers, and `@n` for operand n."""
    return [node.inputs[int(i[1:])] if isinstance(i, str) else i for i in each_size(indexes)]


@operator("Tensor.slice", "torch.narrow")
def slice_(
    node: PnnxNode, input: Value, *, dim: Any = None, start: Any = 0, end: Any = END, step: Any = 1,
    dims: Any = None, starts: Any = None, ends: Any = None, steps: Any = None, selects: Any = None,
    length: Any = None,
) -> Value:  # fmt: skip
    if length is not None:
        end = (
            start + length if isinstance(start, int) else node.emit("Add", start, node.ints(length))
        )
    if dims is None:
        dims, starts, ends, steps = (dim,), [start], [end], [step]
    return sliced(node, input, each_size(dims), starts, ends, steps, selects)


def sliced(
    node: PnnxNode, x: Value, dims: Any, starts: Any, ends: Any, steps: Any, selects: Any
) -> Value:
    """x[start:end:step] along each axis of `dims`, or, where `selects` has an index (not END) for
    it, x[index] without the axis. Raises Unsupported for lists that differ in length."""
    cuts, picks = cuts_of(node, x, dims, starts, ends, steps, selects)
    cuts = [c for c in cuts if not all(isinstance(v, int) for v in c[1:]) or c[1:] != (0, LAST, 1)]
    if cuts:
        at, start, end, step = (list(v) for v in zip(*cuts, strict=True))
        ones = all(isinstance(s, int) and s == 1 for s in step)
        x = node.emit("Slice", x, start, end, node.ints(*at), None if ones else step)
    for axis, index in picks:
        x = select(node, x, dim=axis, index=index)
    return x


def cuts_of(
    node: PnnxNode, x: Value, dims: Any, starts: Any, ends: Any, steps: Any, selects: Any
) -> tuple[list[tuple[int, Any, Any, Any]], list[tuple[int, Any]]]:
    """Two lists, of the slices of `sliced`: (axis, start, end, step) for each axis that is cut;
    (axis, index) for each axis of which one index is selected, from the last axis to the first.
    Raises Unsupported for lists that differ in length."""
    axes = [node.axis(x, d) for d in dims]
    lists = [
        list(v) if v is not None else [d] * len(axes)
        for v, d in ((starts, 0), (ends, END), (steps, 1), (selects, END))
    ]
    if any(len(v) != len(axes) for v in lists):
        raise Unsupported("its lists are not of one length")
    rows = list(zip(axes, *lists, strict=True))
    cuts = [
        (a, s or 0, LAST if e in (None, END) else e, t or 1)
        for a, s, e, t, at in rows
        if isinstance(at, int) and at == END
    ]
    picks = sorted(
        ((a, at) for a, *_, at in rows if not (isinstance(at, int) and at == END)),
        key=lambda p: -p[0],
    )
    return cuts, picks


@operator("Tensor.select", "torch.select")
def select(node: PnnxNode, input: Value, *, dim: int, index: Any) -> Value:
    at = node.tensor(index)
    at = at if at.rank == 0 else node.emit("Squeeze", at)
    return node.emit("Gather", input, at, axis=node.axis(input, dim))


@operator("torch.index_select")
def index_select(node: PnnxNode, input: Value, index: Value, *, dim: int) -> Value:
    return node.emit("Gather", input, index, axis=node.axis(input, dim))


@operator("F.embedding", "nn.Embedding")
def embedding(node: PnnxNode, input: Value, weight: Any) -> Value:
    return node.emit("Gather", weight, input)


@operator("torch.flip")
def flip(node: PnnxNode, input: Value, *, dims: Any) -> Value:
    return node.flipped(input, *each_size(dims))


@operator("torch.roll")
def roll(node: PnnxNode, input: Value, *, shifts: Any, dims: Any = None) -> Value:
    if dims in (None, ()):
        flat = roll_along(node, node.emit("Reshape", input, node.ints(-1)), shifts, 0)
        return node.emit("Reshape", flat, size_of(node, input))
    return roll_along(node, input, shifts, dims)


def roll_along(node: PnnxNode, x: Value, shifts: Any, dims: Any) -> Value:
    """x rolled by `shifts` along `dims`: elements that leave at the end come in at the start."""
    for shift, dim in zip(each_size(shifts), each_size(dims), strict=True):
        size = size_of(node, x, dim)
        if isinstance(size, int):
            cut = -shift % max(size, 1)
        else:  # a remainder in operators that are computed before the run, as sizes
            times = node.emit("Div", -shift, size)
            cut = node.emit("Sub", -shift, node.emit("Mul", times, size))
        if cut:
            tail = node.slice(x, [cut], [LAST], [dim])
            x = node.emit("Concat", tail, node.slice(x, [0], [cut], [dim]), axis=dim)
    return x


@operator("torch.diag")
def diag(node: PnnxNode, input: Value, *, diagonal: int = 0) -> Value:
    down, right = max(-diagonal, 0), max(diagonal, 0)
    if input.rank == 1:
        n = node.size(input, 0)
        at = np.arange(n)
        zeros = node.full((n + down + right,) * 2, 0, input.dtype)
        return node.emit("ScatterND", zeros, np.stack([at + down, at + right], -1), input)
    n = max(min(node.size(input, 0) - down, node.size(input, 1) - right), 0)
    node.spend(16 * n)
    at = np.arange(n)
    return node.emit("GatherND", input, np.stack([at + down, at + right], -1))


@operator("aten::tril", "aten::triu", "torch.tril", "torch.triu")
def triangle(node: PnnxNode, input: Value, *, diagonal: int = 0) -> Value:
    return node.emit("Trilu", input, np.array(diagonal, np.int64), upper=node.type.endswith("u"))


# ---- joins and parts


@operator("torch.cat", "torch.stack", "torch.hstack", "torch.vstack")
def cat(node: PnnxNode, *tensors: Any, dim: int = 0) -> Value:
    xs = [v for t in tensors for v in (t if isinstance(t, list) else [t])]
    if not xs:
        raise Unsupported("it has no inputs")
    xs = common(node, *xs)
    if node.type == "torch.stack":
        xs = [node.emit("Unsqueeze", x, node.ints(dim)) for x in xs]
    if node.type == "torch.hstack":
        dim = int(node.rank(xs[0]) > 1)
    return node.emit("Concat", *_to_batch(node, xs, dim), axis=dim)


def _to_batch(node: PnnxNode, xs: list[Value], dim: int) -> list[Value]:
    """The tensors of a concat along `dim` with equal batches (axis 0). If the batch is free in
    some, a tensor with the fixed one of the trace becomes its first element, repeated to the free
    batch. Nothing changes for a concat along the batch itself."""
    free = [x for x in xs if x.shape and isinstance(x.shape[0], str)]
    if not node.scope.free or not free or dim == 0 or len(free) == len(xs):
        return xs
    batch = node.emit("Shape", free[0], start=0, end=1)

    def repeated(x: Value) -> Value:
        if x in free:
            return x
        first = node.slice(x, node.ints(0), node.ints(1), [0])
        ones = node.ints(*[1] * (node.rank(x) - 1))
        return node.emit("Expand", first, node.emit("Concat", batch, ones, axis=0))

    return [repeated(x) for x in xs]


@operator("torch.chunk", "torch.split", "torch.tensor_split", "torch.unbind")
def split(
    node: PnnxNode, input: Value, *, dim: int = 0, chunks: Any = None,
    split_size_or_sections: Any = None, sections: Any = None, indices: Any = None,
) -> Any:  # fmt: skip
    axis = node.axis(input, dim)
    sizes = _sizes(node, input, axis, chunks, split_size_or_sections, sections, indices)
    made = node.emit("Split", input, node.ints(*sizes), axis=axis, num_outputs=len(sizes))
    parts = made if isinstance(made, tuple) else (made,)
    if node.type == "torch.unbind":
        parts = tuple(node.emit("Squeeze", p, node.ints(axis)) for p in parts)
    return parts if len(node.outputs) > 1 or len(parts) == 1 else [*parts]


def _sizes(
    node: PnnxNode, x: Value, axis: int, chunks: Any, split: Any, sections: Any, indices: Any
) -> list[int]:
    """The sizes of the parts into which an axis of x is split, by the parameter that is given:
    `chunks`, `split` (size or sizes), `sections` or `indices`. Raises Unsupported if none is, or if
    all but sizes meet an axis of unknown size."""
    if node.type == "torch.unbind":
        split = 1
    if isinstance(split, tuple):
        return list(split)
    size = node.size(x, axis)
    if indices is not None:
        ends = [max(0, min(i + size if i < 0 else i, size)) for i in each_size(indices)]
        return [max(b - a, 0) for a, b in zip([0, *ends], [*ends, size], strict=True)]
    if isinstance(sections, int) and sections > 0:
        node.scope.shared.count_nodes(sections)
        return [size // sections + (i < size % sections) for i in range(sections)]
    step = split if chunks is None else -(-size // chunks)
    if not isinstance(step, int) or step < 1:
        raise Unsupported("it does not say into how many parts it cuts")
    node.scope.shared.count_nodes(-(-size // step))
    return [min(step, size - at) for at in range(0, size, step)]


@operator("prim::TupleConstruct", "prim::ListConstruct")
def listed(node: PnnxNode, *xs: Any) -> list[Any]:
    return list(xs)


@operator("prim::TupleUnpack", "prim::ListUnpack")
def unlisted(node: PnnxNode, input: Any) -> Any:
    if not isinstance(input, list):
        raise Unsupported("what it reads is no tuple")
    return tuple(input)


# ---- new tensors


@operator(
    *(f"torch.{n}{end}" for n in ("zeros", "ones", "full", "empty") for end in ("", "_like")),
    *(f"Tensor.{n}" for n in ("new_zeros", "new_ones", "new_full", "new_empty", "fill")),
)
def filled(
    node: PnnxNode, input: Any = None, *, size: Any = None, fill_value: Any = None,
    value: Any = None, dtype: Any = None,
) -> Value:  # fmt: skip
    kind, like = node.type, input if isinstance(input, Value) else None
    of_like = kind.endswith("_like") or kind == "Tensor.fill"
    value = 1 if "ones" in kind else value if fill_value is None else fill_value
    value = 0 if value is None else value
    fallback = "int64" if isinstance(value, int) and "full" in kind else "float32"
    typed = like if "Tensor." in kind or of_like else None
    name = node.dtype(dtype, fallback if typed is None else typed.dtype.name)
    if of_like:
        shape = node.emit("Shape", like)
    else:
        sizes = [*each_size(input if size is None else size)]
        shape = node.tensor(size if isinstance(size, Value) else sizes)
    if isinstance(value, Value):
        return node.emit("Expand", node.cast(value, name), shape)
    return node.emit("ConstantOfShape", node.cast(shape, "int64"), value=value, dtype=name)


@operator("prim::Constant")
def constant(node: PnnxNode, *, value: Any = None) -> Any:
    return value


@operator("torch.randn", "torch.randn_like", "torch.normal", "aten::normal")
def random(
    node: PnnxNode, input: Any = None, *, size: Any = None, dtype: Any = None, mean: float = 0.0,
    std: float = 1.0,
) -> Value:  # fmt: skip
    if isinstance(input, Value):
        name = node.dtype(dtype, input.dtype.name)
        return node.emit("RandomNormalLike", input, dtype=name, mean=float(mean), scale=float(std))
    shape = each_size(size if size is not None else input)
    if not all(isinstance(n, int) for n in shape):
        raise Unsupported("its size is computed")
    name = node.dtype(dtype, "float32")
    return node.emit("RandomNormal", shape=shape, dtype=name, mean=float(mean), scale=float(std))


@operator("torch.arange")
def arange(node: PnnxNode, *, start: Any = 0, end: Any, step: Any = 1, dtype: Any = None) -> Value:
    numbers = [start, end, step]
    whole = all(
        isinstance(n, int) or (isinstance(n, Value) and n.dtype.kind in "iu") for n in numbers
    )
    name = node.dtype(dtype, "int64" if whole else "float32")
    node.counted = any(isinstance(n, Value) and n.const is None for n in numbers)
    return node.emit("Range", *(node.cast(n, name) for n in numbers))


@operator("Tensor.to", "Tensor.type_as")
def to(node: PnnxNode, input: Any, other: Any = None, *, dtype: Any = None) -> Value:
    x = node.tensor(input)
    return node.cast(x, other.dtype.name if other is not None else node.dtype(dtype, x.dtype.name))


@operator("aten::one_hot", "F.one_hot")
def one_hot(node: PnnxNode, input: Value, *, num_classes: int) -> Value:
    return node.emit("OneHot", input, np.array(num_classes, np.int64), np.array([0, 1], np.int64))


@operator("torch.scatter", "torch.scatter_add")
def scatter(
    node: PnnxNode, input: Value, index: Value, src: Any = None, *, dim: int = 0, value: Any = None,
    reduce: Any = None,
) -> Value:  # fmt: skip
    """Import scatter. Of `src` only the part of the size of `index` is read."""
    kind = "add" if node.type == "torch.scatter_add" else reduce or "none"
    updates = node.cast(value if src is None else src, input.dtype.name)
    if updates.rank == 0:
        updates = node.emit("Expand", updates, size_of(node, index))
    elif updates.shape != index.shape:
        axes = range(node.rank(index))
        ends = node.ints(*(node.size(index, a) for a in axes))
        updates = node.slice(updates, node.ints(*[0] * len(axes)), ends, axes)
    return node.emit(
        "ScatterElements", input, index, updates, axis=dim,
        reduction={"multiply": "mul"}.get(kind, kind),
    )  # fmt: skip


@operator("aten::scatter", "aten::scatter_add")
def scatter_as_traced(
    node: PnnxNode, input: Value, dim: int, index: Value, src: Any, reduce: Any = None
) -> Value:
    reduce = "add" if node.type.endswith("add") else reduce
    return scatter(node, input, index, src, dim=dim, reduce=reduce)
