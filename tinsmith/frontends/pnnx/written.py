"""Importers of operators that write into parts of a tensor, or take index tensors or masks."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import evaluate, size_of
from tinsmith.frontends.pnnx.layers import each_size
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.frontends.pnnx.select import END, cuts_of
from tinsmith.graph import Value

Cut = tuple[int, int, int, int]
"""(axis, start, end, step) of a slice."""


def spread(node: PnnxNode, x: Any, like: Value) -> Value:
    """x, a Value or a number, in the element type of `like`, broadcast to its shape."""
    x = node.cast(x, like.dtype.name)
    return x if x.shape == like.shape else node.emit("Expand", x, size_of(node, like))


# ---- slices


@operator("Tensor.copy", "aten::copy", "aten::copy_")
def copy(node: PnnxNode, self: Value, src: Any, *, non_blocking: Any = None) -> Value:
    return spread(node, src, self)


@operator("Tensor.slice_copy", "torch.slice_scatter", "aten::slice_scatter")
def slice_copy(
    node: PnnxNode, input: Value, src: Any, *, dim: Any = 0, start: Any = 0, end: Any = END,
    step: Any = 1, dims: Any = None, starts: Any = None, ends: Any = None, steps: Any = None,
    select: Any = None, selects: Any = None,
) -> Value:  # fmt: skip
    """Import an assignment such as x[2:10, :, 3] = src, where 3 is one of `selects`; return the new
    x. Parameters are for one axis (`dim`, `start`, ...) or lists for several (`dims`, `starts`,
    ...). Raises Unsupported for computed places."""
    if dims is None:
        dims, starts, ends, steps = (dim,), [start], [end], [step]
        selects = None if select is None else [select]
    cuts, picks = cuts_of(node, input, each_size(dims), starts, ends, steps, selects)
    values = node.tensor(src)
    if picks:
        missing = node.rank(input) - len(picks) - node.rank(values)
        values = node.emit("Unsqueeze", values, node.ints(*range(missing))) if missing else values
        values = node.emit("Unsqueeze", values, node.ints(*(axis for axis, _ in picks[::-1])))
    places = [*cuts, *((axis, at, at + 1 or END, 1) for axis, at in picks)]
    if not all(isinstance(v, int) for place in places for v in place):
        raise Unsupported("it writes at places that are computed")
    return _written(node, input, values, places)


@operator("torch.select_scatter", "aten::select_scatter")
def select_scatter(node: PnnxNode, input: Value, src: Any, *, dim: int, index: int) -> Value:
    return slice_copy(node, input, src, dims=(dim,), selects=(index,))


def _written(node: PnnxNode, x: Value, values: Value, cuts: list[Cut]) -> Value:
    """x with `values` in place of x[cuts]: each cut is along an axis of its own."""
    if not cuts:
        return spread(node, values, x)
    (axis, start, end, step), *others = cuts
    size = node.size(x, axis)
    start, end, step = slice(start, end, step).indices(size)
    at = range(start, end, step)
    if not at:
        return x
    part = node.slice(x, node.ints(start), node.ints(end), [axis], node.ints(step))
    part = _written(node, part, values, others)
    if step == 1:
        before = [node.slice(x, node.ints(0), node.ints(start), [axis])] if start else []
        behind = [node.slice(x, node.ints(end), node.ints(size), [axis])] if end < size else []
        whole = [*before, part, *behind]
        return node.emit("Concat", *whole, axis=axis) if len(whole) > 1 else part
    node.spend(8 * size)
    places = np.arange(size)
    places[at] = size + np.arange(len(at))
    return node.emit("Gather", node.emit("Concat", x, part, axis=axis), places, axis=axis)


# ---- listed places


def places_of(node: PnnxNode, at: Any) -> tuple[int, int, Value]:
    """The indexes of x[at] in the form of GatherND: (first axis, number of axes, index tuples
    [..., number of axes]). `at` is a list of index tensors, None for a whole axis, and masks, which
    stand for the indexes where they are true. Raises Unsupported unless the axes are neighbours."""
    given: list[tuple[int, Value]] = []
    axis = 0
    for index in at if isinstance(at, list) else [at]:
        value = None if index is None else node.tensor(index)
        if value is not None and value.dtype.kind == "b":
            given += [(axis + i, v) for i, v in enumerate(_true(node, value))]
            axis += node.rank(value)
        else:
            given += [] if value is None else [(axis, value)]
            axis += 1
    axes = [axis for axis, _ in given]
    if not given or axes != list(range(axes[0], axes[0] + len(axes))):
        raise Unsupported("its indices are not of neighbouring axes")
    values = _alike(node, [v for _, v in given])
    whole = _columns_of(values)
    if whole is None:
        last = [node.emit("Unsqueeze", node.cast(v, "int64"), node.ints(-1)) for v in values]
        whole = node.emit("Concat", *last, axis=-1)
    return axes[0], len(axes), whole


def _alike(node: PnnxNode, values: list[Value]) -> list[Value]:
    """The values, broadcast to one shape."""
    if len({v.shape for v in values}) == 1:
        return values
    sizes = [tuple(node.size(v, i) for i in range(node.rank(v))) for v in values]
    shape = node.ints(*np.broadcast_shapes(*sizes))
    return [node.emit("Expand", v, shape) for v in values]


def _columns_of(values: list[Value]) -> Value | None:
    """The tensor [..., n] whose last axis was split, by Gathers, into exactly these n values; None
    if there is none."""
    made = [v.producer for v in values]
    if not all(n is not None and n.op.name == "Gather" for n in made):
        return None
    whole: Any = made[0].inputs[0]  # type: ignore[union-attr]
    if not whole.shape or whole.shape[-1] != len(values):
        return None
    at = [n.inputs[1].const for n in made]  # type: ignore[union-attr]
    same = all(n.inputs[0] is whole and n.axis in (-1, whole.rank - 1) for n in made)  # type: ignore[union-attr]
    in_order = all(a is not None and not a.ndim and a == i for i, a in enumerate(at))
    return whole if same and in_order else None


def _true(node: PnnxNode, mask: Value) -> list[Value]:
    """The indexes where a mask is true: a vector for each of its axes. Sets `node.counted`, unless
    it is constant."""
    if mask.const is not None:
        return [node.const(v) for v in np.nonzero(mask.const)]
    node.counted = True
    found = node.emit("NonZero", mask)
    return [node.emit("Gather", found, np.array(i), axis=0) for i in range(node.rank(mask))]


@operator("Tensor.index")
def index(node: PnnxNode, input: Value, *, expr: Any) -> Value:
    """Import x[:, i, mask]. `expr` is the list of indexes (None for a whole axis) and masks, or a
    formula for it."""
    at = evaluate(node, expr) if isinstance(expr, str) else expr
    given = [v for v in (at if isinstance(at, list) else [at]) if v is not None]
    if not given:
        return input
    values = [node.tensor(v) for v in given]
    mask = values[0].dtype.kind == "b"
    if len(values) == 1 and not (mask and values[0].rank != 1):
        axis = at.index(given[0]) if isinstance(at, list) else 0
        places = _true(node, values[0])[0] if mask else values[0]
        return node.emit("Gather", input, places, axis=axis)
    first, count, pairs = places_of(node, at)
    y = node.emit("GatherND", _turned(node, input, first, count), pairs)
    n, rank = node.rank(pairs) - 1, node.rank(input)
    order = (*range(n, n + first), *range(n), *range(n + first, rank - count + n))
    return node.emit("Transpose", y, perm=order) if first else y


def _turned(node: PnnxNode, x: Value, first: int, count: int) -> Value:
    """x transposed so that `count` axes from `first` on come first."""
    rest = [a for a in range(node.rank(x)) if not first <= a < first + count]
    order = (*range(first, first + count), *rest)
    return node.emit("Transpose", x, perm=order) if first else x


@operator("Tensor.index_put")
def index_put(
    node: PnnxNode, input: Value, indices: Any, values: Any, *, accumulate: bool = False
) -> Value:
    at = [v for v in indices if v is not None] if isinstance(indices, list) else [indices]
    if not at:
        return spread(node, values, input)
    mask = node.tensor(at[0])
    plain = not isinstance(values, Value) or values.shape in ((), (1,))
    if len(at) == 1 and mask.dtype.kind == "b" and plain and not accumulate:
        more = node.rank(input) - node.rank(mask)
        if not isinstance(indices, list) or indices[0] is not None:
            mask = node.emit("Unsqueeze", mask, node.ints(*range(-more, 0))) if more else mask
            return node.emit("Where", mask, node.cast(values, input.dtype.name), input)
    first, count, pairs = places_of(node, indices)
    if first:
        raise Unsupported("it writes at indices of other axes than the first ones")
    rest = size_of(node, input)[count:]
    where = size_of(node, pairs)[:-1]
    updates = node.emit("Expand", node.cast(values, input.dtype.name), [*where, *rest])
    kind = "add" if accumulate else "none"
    return node.emit("ScatterND", input, pairs, updates, reduction=kind)


@operator("torch.masked_select")
def masked_select(node: PnnxNode, input: Value, mask: Value) -> Value:
    both = _alike(node, [input, mask])
    node.counted = True
    return node.emit("Compress", *(node.emit("Reshape", v, node.ints(-1)) for v in both), axis=0)


@operator("torch.as_strided")
def as_strided(
    node: PnnxNode, input: Value, *, size: Any, stride: Any, storage_offset: Any = None
) -> Value:
    sizes, strides = each_size(size), each_size(stride)
    if len(sizes) != len(strides):
        raise Unsupported(f"it has {len(strides)} strides for {len(sizes)} sizes")
    if min((*sizes, *strides, storage_offset or 0)) < 0:
        raise Unsupported(f"a size, a stride or its offset is negative: {sizes}, {strides}")
    node.spend(8 * prod(sizes))
    places = np.full((1,) * len(sizes), storage_offset or 0, np.int64)
    for i, (n, step) in enumerate(zip(sizes, strides, strict=True)):
        places = places + (np.arange(n) * step).reshape(
            [-1 if i == k else 1 for k in range(len(sizes))]
        )
    return node.emit("Gather", node.emit("Reshape", input, node.ints(-1)), places, axis=0)


@operator("nn.MaxUnpool2d", "F.max_unpool2d")
def max_unpool(
    node: PnnxNode, input: Value, indices: Value, *, kernel_size: Any, stride: Any = None,
    padding: Any = 0, output_size: Any = None,
) -> Value:  # fmt: skip
    """Import MaxUnpool: each element goes to its index in its channel's plane, all else is 0."""
    kernel, pad = (each_size(v) * 2 for v in (kernel_size, padding))
    steps = each_size(kernel_size if stride in (None, ()) else stride) * 2
    rank = node.rank(input)
    if output_size:
        sizes = list(each_size(output_size)[-2:])
    else:
        sizes = [
            (node.size(input, rank - 2 + i) - 1) * steps[i] + kernel[i] - 2 * pad[i] for i in (0, 1)
        ]
    lead = [size_of(node, input, i) for i in range(rank - 2)]
    flat = [node.emit("Reshape", v, [*lead, -1]) for v in (input, indices)]
    whole = node.emit(
        "ConstantOfShape", node.tensor([*lead, prod(sizes)]), value=0, dtype=input.dtype.name
    )
    y = node.emit("ScatterElements", whole, flat[1], flat[0], axis=rank - 2)
    return node.emit("Reshape", y, [*lead, *sizes])
