"""Operators that read the shape, change it, or permute axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value, agree
from tinsmith.ops._dims import broadcast, fresh
from tinsmith.ops._move import Along, Part, spanned, split_moved
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    INTS,
    axes_of,
    bounded,
    const_ints,
    length_of,
    need_data,
    need_dtype,
    need_room,
    product,
    told_sizes,
    unknown,
)
from tinsmith.sizes import NUMBER

INT64 = np.dtype(np.int64)


@op("sizes")
def Shape(x, *, start=0, end=None):
    """y = the dims of x from axis `start` to before axis `end`, as int64; clamped to the rank"""
    return np.array(x.shape[start:end], np.int64)


@Shape.type
def _(x: Value, *, start: int, end: int | None) -> Type:
    if x.rank is None:
        return Type(INT64, (fresh(),))
    return Type(INT64, (len(range(x.rank)[start:end]),))


@op("sizes")
def Size(x):
    """y = the number of elements of x, an int64 scalar"""
    return np.array(x.size, np.int64)


@Size.type
def _(x: Value) -> Type:
    return Type(INT64, ())


@op("view")
def Reshape(x, shape, *, allowzero=False):
    """y = the elements of x in the same order under another shape

    A 0 in `shape` is the dim of x at that place (with allowzero it means 0). One dim may be -1: the
    number of elements over the product of all other dims.
    """
    target = [int(d) for d in np.asarray(shape).reshape(-1)]
    need_data(target.count(-1) <= 1, f"shape {target} has more than one -1")
    need_data(min(target, default=0) >= -1, f"shape {target} has a negative dim")
    kept = [i for i, d in enumerate(target) if d == 0 and not allowzero]
    if -1 in target:
        have = math.prod(n for i, n in enumerate(x.shape) if i not in kept)
        taken = math.prod(d for d in target if d > 0)
        target[target.index(-1)] = have // taken
    for i in kept:
        target[i] = x.shape[i]
    fits = math.prod(target) == x.size
    need_data(fits, f"x has {x.size} elements, too many or too few for a Reshape to {target}")
    return np.reshape(x, target)


@Reshape.type
def _(x: Value, shape: Value, *, allowzero: bool) -> Type:
    need_dtype(shape, INTS, "shape")
    target = () if length_of(shape) == 0 else const_ints(shape)
    if target is None:
        return Type(x.dtype, unknown(length_of(shape)))
    need(target.count(-1) <= 1, f"shape {list(target)} has more than one -1")
    need(all(d >= -1 for d in target), f"shape {list(target)} has a negative dim")
    need(not (allowzero and -1 in target and 0 in target), "allowzero forbids -1 beside 0")
    dims: list[Dim] = list(target)
    for i, d in enumerate(target):
        if d == 0 and not allowzero:
            need(
                x.shape is None or i < len(x.shape),
                f"shape {list(target)} keeps dim {i}, but x is {x.type}",
            )
            dims[i] = fresh() if x.shape is None else x.shape[i]
    if -1 in target:
        dims[target.index(-1)] = _remaining(x, target)
    elif x.type.is_static and all(isinstance(d, NUMBER) for d in dims):
        need(
            product(dims) == x.type.size,
            f"x has {x.type.size} elements, shape {list(target)} has {product(dims)}",
        )
    return Type(x.dtype, tuple(dims))


def _remaining(x: Value, target: tuple[int, ...]) -> Dim:
    """The dim for which -1 stands in `target`, the shape of a Reshape of x. For x [2,3,4] and
    `target` [0,-1,2] it is 3 * 4 / 2 = 6, as 0 keeps the 2. A symbol where dims of x are unknown.
    Raises TypeRuleError where it is not a whole number."""
    if x.shape is None:
        return fresh()
    rest = [d for i, d in enumerate(x.shape) if target[i : i + 1] != (0,)]
    have = math.prod(d for d in rest if isinstance(d, NUMBER))
    taken = math.prod(d for d in target if d > 0)
    symbols = [d for d in rest if isinstance(d, str)]
    if not symbols:
        need(have % taken == 0, f"{x.type} cannot take the shape {list(target)}")
        return have // taken
    return symbols[0] if len(symbols) == 1 and have == taken else fresh()


@op("view")
def Flatten(x, *, axis=1):
    """y = x as a matrix: the dims before `axis` are its rows, the others its columns"""
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return np.reshape(x, (rows, int(np.prod(x.shape[axis:], dtype=np.int64))))


@Flatten.type
def _(x: Value, *, axis: int) -> Type:
    if x.shape is None:
        return Type(x.dtype, unknown(2))
    rank = len(x.shape)
    need(-rank <= axis <= rank, f"axis {axis} is out of range for rank {rank}")
    axis = axis + rank if axis < 0 else axis
    return Type(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:])))


@op("move")
def Transpose(x, *, perm=None):
    """y[i[perm[0]], i[perm[1]], ...] = x[i[0], i[1], ...]; perm None reverses the axes"""
    return np.transpose(x, perm)


@Transpose.type
def _(x: Value, *, perm: tuple[int, ...] | None) -> Type:
    if perm is not None:
        need(
            sorted(p + len(perm) if p < 0 else p for p in perm) == list(range(len(perm))),
            f"perm {perm} is not a permutation",
        )
        need(x.rank in (None, len(perm)), f"perm {perm} has {len(perm)} axes, x is {x.type}")
    if x.shape is None:
        return Type(x.dtype, None if perm is None else unknown(len(perm)))
    return Type(x.dtype, x.shape[::-1] if perm is None else tuple(x.shape[p] for p in perm))


@Transpose.moves
def _(y: Value, x: Value, *, perm: tuple[int, ...] | None) -> Part:
    rank = len(x.shape or ())
    return split_moved(
        x.shape or (), range(rank)[::-1] if perm is None else [p % rank for p in perm]
    )


@op("view")
def Squeeze(x, axes=None):
    """y = x without `axes`, which must have size 1; None or empty: without all axes of size 1"""
    if axes is None or np.size(axes) == 0:
        return np.squeeze(x)
    return np.squeeze(x, axis=tuple(int(a) for a in np.asarray(axes).reshape(-1)))


@Squeeze.type
def _(x: Value, axes: Value | None) -> Type:
    numbers = () if axes is None else const_ints(axes)
    if numbers is None:
        count = None if axes is None else length_of(axes)
        known = x.rank is not None and count
        return Type(x.dtype, unknown(x.rank - count) if known else None)  # type: ignore[operator]
    if x.shape is None:
        return Type(x.dtype, None)
    if not numbers:
        if any(isinstance(d, str) for d in x.shape):
            return Type(x.dtype, None)
        return Type(x.dtype, tuple(d for d in x.shape if d != 1))
    gone = axes_of(numbers, len(x.shape))
    for a in gone:
        need(agree(x.shape[a], 1), f"axis {a} of {x.type} is not 1")
    return Type(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in gone))


@op("view")
def Unsqueeze(x, axes):
    """y = x with axes of size 1 inserted; `axes` are places in y"""
    return np.expand_dims(x, tuple(int(a) for a in np.asarray(axes).reshape(-1)))


@Unsqueeze.type
def _(x: Value, axes: Value) -> Type:
    need_dtype(axes, INTS, "axes")
    numbers = const_ints(axes)
    count = length_of(axes)
    if x.shape is None or count is None:
        return Type(x.dtype, None)
    rank = bounded(len(x.shape) + count)
    if numbers is None:
        return Type(x.dtype, unknown(rank))
    new = axes_of(numbers, rank)
    rest = iter(x.shape)
    return Type(x.dtype, tuple(1 if i in new else next(rest) for i in range(rank)))


@op("move")
def Expand(x, shape):
    """y = x broadcast to np.broadcast_shapes(x.shape, shape): a 1 in `shape` keeps the size of x"""
    target = tuple(int(d) for d in np.asarray(shape).reshape(-1))
    need_data(min(target, default=0) >= 0, f"shape {list(target)} has a negative dim")
    pairs = zip(x.shape[::-1], target[::-1], strict=False)
    need_data(
        all(a == b or 1 in (a, b) for a, b in pairs),
        f"the shapes {list(x.shape)}, {list(target)} do not broadcast together",
    )
    dims = np.broadcast_shapes(x.shape, target)
    need_room(dims, x.dtype)
    return np.broadcast_to(x, dims).copy()


@Expand.type
def _(x: Value, shape: Value) -> Type:
    need_dtype(shape, INTS, "shape")
    target = const_ints(shape)
    if target is not None:
        need(all(d >= 0 for d in target), f"shape {list(target)} has a negative dim")
        known = x.shape is not None
        return Type(x.dtype, broadcast(x.shape, target) if known else None)
    bounded(length_of(shape) or 0)
    return Type(x.dtype, broadcast(x.shape, told_sizes(shape)))


@Expand.moves
def _(y: Value, x: Value, shape: Any) -> Part | None:
    """Axes of x of size 1 that grow are dropped, and axes of repetitions take their place. None
    if a symbol leaves open which."""
    dims, given = y.shape or (), x.shape or ()
    pairs = list(zip((1,) * (len(dims) - len(given)) + given, dims, strict=True))
    if any(d != n and (d != 1 or isinstance(n, str)) for d, n in pairs):
        return None
    kept = [k for k, (d, n) in enumerate(pairs) if d == n]
    axes = [
        Along(kept.index(k))
        if d == n
        else Along(None, spanned(0, n if isinstance(n, NUMBER) else int(n)))
        for k, (d, n) in enumerate(pairs)
    ]
    return Part(0, tuple(dims[k] for k in kept), tuple(axes))


@op("move")
def ChannelShuffle(x, *, groups):
    """y[n, i * groups + g] = x[n, g * (C / groups) + i]: C channels on axis 1"""
    shape = x.shape
    split = np.reshape(x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    return np.reshape(np.swapaxes(split, 1, 2), shape)


@ChannelShuffle.type
def _(x: Value, *, groups: int) -> Type:
    need(groups >= 1, f"groups is {groups}")
    need(x.rank is None or x.rank >= 2, f"x is {x.type}; it must have a channel axis")
    channels: Any = None if x.shape is None else x.shape[1]
    need(
        not isinstance(channels, NUMBER) or channels % groups == 0,
        f"{channels} channels do not divide into {groups} groups",
    )
    return x.type


@ChannelShuffle.moves
def _(y: Value, x: Value, *, groups: int) -> Part | None:
    shape: Any = x.shape
    n, channels, *rest = shape
    if not isinstance(channels, NUMBER):
        return None
    split = (n, groups, channels // groups, *rest)
    return split_moved(split, (0, 2, 1, *range(3, len(split))))
