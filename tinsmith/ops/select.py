"""Operators that select, order or count elements by their values: TopK, NonZero, Unique, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    BOOL,
    INTS,
    NUMBERS,
    axis_of,
    const_int,
    is_finite,
    length_of,
    need_data,
    need_dtype,
    need_rank,
    need_room,
    product,
    scalar,
)
from tinsmith.ops.precision import widen

INT64 = np.dtype(np.int64)


@op()
def TopK(x, k, *, axis=-1, largest=True, sorted=True):
    """values, indices = the k largest (or smallest) elements along `axis`, best first

    Of equal ones, that with the lower index comes first. NaN is larger than any number. The
    order is by value whatever `sorted` says.
    """
    wide, k = np.moveaxis(widen(x), axis, -1), scalar(k)
    size = wide.shape[-1]
    need_data(0 <= k <= size, f"k is {k}, but axis {axis} has {size} elements")
    if largest:
        order = size - 1 - np.argsort(wide[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(wide, axis=-1, kind="stable")
    indices = np.moveaxis(order[..., :k], -1, axis).astype(np.int64)
    return np.take_along_axis(x, indices, axis=axis), indices


@TopK.type
def _(x: Value, k: Value, *, axis: int, largest: bool, sorted: bool) -> tuple[Type, Type]:
    need_dtype(x, NUMBERS, "x")
    need_dtype(k, INTS, "k")
    count = const_int(k)
    if x.shape is None:
        return Type(x.dtype, None), Type(INT64, None)
    axis = axis_of(axis, len(x.shape))
    size = x.shape[axis]
    if count is not None:
        fits = count >= 0 and (isinstance(size, str) or count <= size)
        need(fits, f"k is {count}, but axis {axis} of {x.type} has {size} elements")
    kept: Dim = fresh() if count is None else count
    shape = (*x.shape[:axis], kept, *x.shape[axis + 1 :])
    return Type(x.dtype, shape), Type(INT64, shape)


@op()
def NonZero(x):
    """y[:, i] = the place of the i-th element of x that is not zero, in row-major order: int64

    For a scalar y has no rows, and one column where it is not zero.
    """
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.array(np.nonzero(x), np.int64)


@NonZero.type
def _(x: Value) -> Type:
    return Type(INT64, (fresh() if x.rank is None else x.rank, fresh()))


@NonZero.count
def _(x: Value) -> int:
    return x.type.size


@op()
def Compress(x, condition, *, axis=None):
    """y = x at the places along `axis` where `condition` holds; of flattened x without an axis

    A condition shorter than the axis drops the rest.
    """
    size, given = x.size if axis is None else x.shape[axis], len(condition)
    need_data(given <= size, f"the condition has {given} elements, but there are {size} places")
    return np.compress(condition, x, axis=axis)


@Compress.type
def _(x: Value, condition: Value, *, axis: int | None) -> Type:
    need_dtype(condition, BOOL, "condition")
    need_rank(condition, 1, "condition")
    kept: Dim = fresh() if condition.const is None else int(np.count_nonzero(condition.const))
    given, size = length_of(condition), x.type.size if x.type.is_static else None
    if axis is not None and x.shape is not None:
        axis = axis_of(axis, len(x.shape))
        size = None if isinstance(dim := x.shape[axis], str) else dim
    fits = given is None or size is None or given <= size
    need(fits, f"the condition has {given} elements, but there are {size} places")
    if axis is None:
        return Type(x.dtype, (kept,))
    if x.shape is None:
        return Type(x.dtype, None)
    return Type(x.dtype, (*x.shape[:axis], kept, *x.shape[axis + 1 :]))


@Compress.count
def _(x: Value, condition: Value, *, axis: int | None) -> int:
    return condition.type.size


@op()
def Unique(x, *, axis=None, sorted=True):
    """y, first, inverse, counts = the distinct elements (or slices along `axis`) of x

    y is in ascending order, or, without `sorted`, in order of first occurrence. x has y[i] first at
    index first[i] (flat, or on `axis`), and counts[i] times; x[j] is y[inverse[j]].
    """
    codes = np.unique(x.reshape(-1), return_inverse=True)[1].reshape(x.shape)
    keys = codes.reshape(-1) if axis is None else codes
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=axis or 0
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        first, counts, inverse = first[order], counts[order], place[inverse]
    y = x.reshape(-1)[first] if axis is None else np.take(x, first, axis=axis)
    return y, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@Unique.type
def _(x: Value, *, axis: int | None, sorted: bool) -> tuple[Type, ...]:
    found = fresh()
    each: Dim
    shape: Any
    if axis is None:
        shape, each = (found,), fresh() if x.shape is None else product(x.shape)
    elif x.shape is None:
        shape, each = None, fresh()
    else:
        axis = axis_of(axis, len(x.shape))
        shape, each = (*x.shape[:axis], found, *x.shape[axis + 1 :]), x.shape[axis]
    return Type(x.dtype, shape), Type(INT64, (found,)), Type(INT64, (each,)), Type(INT64, (found,))


@op()
def OneHot(indices, depth, values, *, axis=-1):
    """y[..., d, ...] = values[1] where d = indices[...], else values[0]; d < depth runs on `axis`

    Negative indices count from depth; for one outside [-depth, depth) all are values[0].
    """
    need_data(is_finite(scalar(depth)) and scalar(depth) > -1, f"depth is {scalar(depth)}")
    size = int(scalar(depth))
    whole = indices if indices.dtype.kind in "iu" else indices.astype(np.int64)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    need_room((size, *indices.shape), np.int64)
    places = np.arange(size).reshape((size,) + (1,) * (indices.ndim - axis))
    whole = np.expand_dims(whole.astype(np.int64), axis)
    hit = (whole == places) | (whole + size == places)
    return np.where(hit, values[1], values[0]).astype(values.dtype)


@OneHot.type
def _(indices: Value, depth: Value, values: Value, *, axis: int) -> Type:
    need_dtype(indices, NUMBERS, "indices")
    need_dtype(depth, NUMBERS, "depth")
    need_rank(values, 1, "values")
    size = const_int(depth)
    need(size is None or size >= 0, f"depth is {size}")
    if indices.shape is None:
        return Type(values.dtype, None)
    axis = axis_of(axis, len(indices.shape) + 1)
    dim: Dim = fresh() if size is None else size
    return Type(values.dtype, (*indices.shape[:axis], dim, *indices.shape[axis:]))
