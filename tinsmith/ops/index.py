"""Gather and scatter: reading and writing at places that a tensor of indices names."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Shape, Type, Value, shapes_agree
from tinsmith.ops._move import Part, placed, split_moved
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import INTS, axis_of, need_data, need_dtype, need_same, unify
from tinsmith.sizes import NUMBER, Size

COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@op("move")
def Gather(x, indices, *, axis=0):
    """y[a, i, b] = x[a, indices[i], b]: the axes of `indices` take the place of axis `axis` of x

    Negative indices count from the end.
    """
    return np.take(x, indices, axis=axis)


@Gather.type
def _(x: Value, indices: Value, *, axis: int) -> Type:
    need_dtype(indices, INTS, "indices")
    if x.shape is None:
        return Type(x.dtype, None)
    need(x.rank, f"x is {x.type}; a scalar has nothing to gather from")
    axis = axis_of(axis, len(x.shape))
    _need_in_range(indices.const, x.shape[axis], x)
    if indices.shape is None:
        return Type(x.dtype, None)
    return Type(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _need_in_range(indices: Any, size: Dim, x: Value) -> None:
    if indices is None or isinstance(size, str) or not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    need(
        -size <= low and high < size,
        f"the index {low if low < -size else high} is out of range for a dim {size} of {x.type}",
    )


@Gather.moves
def _(y: Value, x: Value, indices: Any, *, axis: int) -> Part | None:
    axis, places = axis % len(x.shape or ()), indices.astype(np.int64).reshape(-1)
    size = (x.shape or ())[axis]
    if isinstance(size, NUMBER):
        places = np.where(places < 0, places + size, places)
    elif np.any(places < 0):
        return None
    return placed(x, {axis: places})


@op("move")
def GatherElements(x, indices, *, axis=0):
    """y[i, j, ...] = x[i, j, ...] with the place on `axis` replaced by indices[i, j, ...]"""
    return x[_along(indices, axis)]


def _along(indices: Any, axis: int) -> tuple[Any, ...]:
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = indices
    return tuple(places)


@GatherElements.type
def _(x: Value, indices: Value, *, axis: int) -> Type:
    need_dtype(indices, INTS, "indices")
    _need_elements(x, indices, axis)
    return Type(x.dtype, indices.shape)


def _need_elements(x: Value, indices: Value, axis: int) -> None:
    if x.shape is None:
        return
    axis = axis_of(axis, len(x.shape))
    _need_in_range(indices.const, x.shape[axis], x)
    if indices.shape is None:
        return
    need(len(indices.shape) == len(x.shape), f"indices {indices.type} and {x.type} differ in rank")
    for i, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True)):
        fits = i == axis or isinstance(n, str) or isinstance(d, str) or n <= d
        need(fits, f"indices {indices.type} are larger than {x.type} on axis {i}")


@GatherElements.moves
def _(y: Value, x: Value, indices: Any, *, axis: int) -> Part | None:
    index = list(np.indices(indices.shape))
    index[axis] = indices
    return _looked_up(x, index)


def _looked_up(x: Value, index: list[Any]) -> Part | None:
    """The move of an operator that computes x[tuple(index)] for integer arrays `index`: the first
    axes, one for each array, become one, read at flat places. None where a size is not known."""
    if not x.type.is_static or not index:
        return None
    if any(isinstance(n, Size) for n in x.dims[: len(index)]):
        return None
    outer, inner = x.dims[: len(index)], x.dims[len(index) :]
    wrapped = tuple(np.where(i < 0, i + n, i) for i, n in zip(index, outer, strict=True))
    flat = np.ravel_multi_index(wrapped, outer).reshape(-1) if wrapped[0].size else np.arange(0)
    return split_moved((prod(outer), *inner), range(1 + len(inner)), {0: flat})


@op("move")
def GatherND(x, indices, *, batch_dims=0):
    """y[b, i] = x[b, indices[b, i, 0], indices[b, i, 1], ...]: a slice of x for each index tuple"""
    outer = np.ogrid[tuple(slice(n) for n in indices.shape[:batch_dims])] if batch_dims else []
    rank = indices.ndim - 1
    places = [p.reshape(p.shape + (1,) * (rank - batch_dims)) for p in outer]
    places += [indices[..., i] for i in range(indices.shape[-1])]
    return x[tuple(places)]


@GatherND.type
def _(x: Value, indices: Value, *, batch_dims: int) -> Type:
    need_dtype(indices, INTS, "indices")
    need(batch_dims >= 0, f"batch_dims is {batch_dims}")
    if indices.shape is None or x.shape is None:
        return Type(x.dtype, None)
    depth = _tuple_length(x, indices, batch_dims)
    if depth is None:
        return Type(x.dtype, None)
    for i in range(0 if indices.const is None else depth):
        _need_in_range(indices.const[..., i], x.shape[batch_dims + i], x)  # type: ignore[index]
    batch = tuple(
        unify(a, b, f"the batch dims of {x.type} and indices {indices.type} differ")
        for a, b in zip(x.shape[:batch_dims], indices.shape[:batch_dims], strict=True)
    )
    return Type(x.dtype, batch + indices.shape[batch_dims:-1] + x.shape[batch_dims + depth :])


@GatherND.moves
def _(y: Value, x: Value, indices: Any, *, batch_dims: int) -> Part | None:
    batch = np.indices(indices.shape[:-1])[:batch_dims]
    return _looked_up(x, [*batch, *np.moveaxis(indices.astype(np.int64), -1, 0)])


def _tuple_length(x: Value, indices: Value, batch_dims: int = 0) -> int | None:
    assert x.shape is not None and indices.shape is not None
    need(indices.rank, f"indices is {indices.type}; it must have rank 1 or more")
    ranks = min(len(x.shape), len(indices.shape))
    need(batch_dims < ranks, f"batch_dims {batch_dims} is out of range for rank {ranks}")
    depth = indices.shape[-1]
    if isinstance(depth, str):
        return None
    left = len(x.shape) - batch_dims
    need(1 <= depth <= left, f"index tuples of {depth} do not fit the {left} axes of {x.type}")
    return depth


@op("overwrites")
def ScatterElements(x, indices, updates, *, axis=0, reduction="none"):
    """y = x, but y[i, j, ...] with the place on `axis` replaced by indices[i, j, ...] is
    updates[i, j, ...]

    With `reduction` add, mul, max or min the update is combined with what is there.
    """
    return _written(x, _along(indices, axis), updates, reduction)


def _written(x: Any, places: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    y = np.array(x)
    if reduction == "none":
        y[places] = updates
    else:
        COMBINE[reduction].at(y, places, updates)
    return y


def _need_scatter(x: Value, indices: Value, updates: Value, reduction: str) -> None:
    need_dtype(indices, INTS, "indices")
    need_same(x, updates)
    need_one_of(("none", *COMBINE), reduction=reduction)


@ScatterElements.type
def _(x: Value, indices: Value, updates: Value, *, axis: int, reduction: str) -> Type:
    _need_scatter(x, indices, updates, reduction)
    _need_elements(x, indices, axis)
    _need_shape(updates, indices.shape)
    return x.type


def _need_shape(updates: Value, wanted: Shape | None) -> None:
    shown = ",".join(map(str, wanted or ()))
    fits = shapes_agree(updates.shape, wanted)
    need(fits, f"updates {updates.type} must have the shape [{shown}]")


@op("overwrites")
def ScatterND(x, indices, updates, *, reduction="none"):
    """y = x, but y[indices[i, 0], indices[i, 1], ...] = updates[i]: a slice for each index tuple

    With `reduction` add, mul, max or min the update is combined with what is there.
    """
    places = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _written(x, places, updates, reduction)


@ScatterND.type
def _(x: Value, indices: Value, updates: Value, *, reduction: str) -> Type:
    _need_scatter(x, indices, updates, reduction)
    if x.shape is not None and indices.shape is not None:
        depth = _tuple_length(x, indices)
        if depth is not None:
            _need_shape(updates, indices.shape[:-1] + x.shape[depth:])
    return x.type


@op("overwrites")
def TensorScatter(x, update, write_indices=None, *, axis=-2, mode="linear", start=0):
    """y = x, but y[b, ..., start + write_indices[b] + i, ...] = update[b, ..., i, ...] on `axis`

    It writes new keys into a cache; b is the place on axis 0. Absent write_indices are 0. With mode
    "circular" places are taken modulo the size of the axis.
    """
    size, count = x.shape[axis], update.shape[axis]
    first = np.zeros(x.shape[0], np.int64) if write_indices is None else np.asarray(write_indices)
    first = first + int(start)
    wraps = mode == "circular"
    need_data(
        not first.size or (first.min() >= 0 and (wraps or first.max() + count <= size)),
        f"{count} rows from {first.tolist()} on do not lie in an axis of {size}",
    )
    places = first[:, None] + np.arange(count)
    if wraps:
        places = places % size
    y = np.array(x)
    target, source = np.moveaxis(y, axis, 1), np.moveaxis(update, axis, 1)
    target[np.arange(x.shape[0])[:, None], places] = source
    return y


@TensorScatter.type
def _(
    x: Value, update: Value, write_indices: Value | None, *, axis: int, mode: str, start: int
) -> Type:  # fmt: skip
    need_one_of(("linear", "circular"), mode=mode)
    need_same(x, update)
    need_dtype(write_indices, INTS, "write_indices")
    if x.shape is None:
        return x.type
    place = axis_of(axis, len(x.shape))
    need(place != 0, "axis 0 is the batch; it cannot be written along")
    if update.shape is not None:
        wanted = list(x.shape)
        if place < len(update.shape):
            wanted[place] = update.shape[place]
        _need_shape(update, tuple(wanted))
        size, count = x.shape[place], wanted[place]
        fits = isinstance(size, str) or isinstance(count, str) or start + count <= size
        need(fits, f"update {update.type} does not fit into {x.type}")
    if write_indices is not None:
        _need_shape(write_indices, (x.shape[0],))
    return x.type
