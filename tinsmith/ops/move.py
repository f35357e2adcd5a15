"""Operators that copy elements to other places: Tile, Concat, Split, Slice, Trilu, ..."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.graph import Array, Dim, Type, Value, agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._move import Along, Move, Part, Places, Span, by_table, count_of, placed, spanned
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    INTS,
    axes_of,
    axis_of,
    const_ints,
    length_of,
    need_data,
    need_dtype,
    need_length_data,
    need_lengths,
    need_rank,
    need_room,
    need_same,
    product,
    scalar,
    unify,
    unknown,
)
from tinsmith.sizes import NUMBER, Size, same


@op("move")
def Tile(x, repeats):
    """y = x repeated repeats[i] times along each axis i"""
    times = tuple(int(r) for r in np.asarray(repeats).reshape(-1))
    rank = max(x.ndim, len(times))
    grown = zip((1,) * (rank - x.ndim) + x.shape, (1,) * (rank - len(times)) + times, strict=True)
    need_room((n * r for n, r in grown), x.dtype)
    return np.tile(x, times)


@Tile.type
def _(x: Value, repeats: Value) -> Type:
    need_dtype(repeats, INTS, "repeats")
    counts = const_ints(repeats)
    if counts is None:
        return Type(x.dtype, unknown(x.rank if x.rank is not None else length_of(repeats)))
    need(all(c >= 0 for c in counts), f"repeats {list(counts)} has a negative number")
    need(x.rank in (None, len(counts)), f"{len(counts)} repeats do not fit {x.type}")
    if x.shape is None:
        return Type(x.dtype, unknown(len(counts)))
    return Type(x.dtype, tuple(product(p) for p in zip(x.shape, counts, strict=True)))


@Tile.moves
def _(y: Value, x: Value, repeats: Array) -> Part:
    """Each axis of x becomes two axes of the part: one of repetitions, then the axis itself."""
    axes: list[Along] = []
    for k, count in enumerate(repeats.reshape(-1).tolist()):
        axes += [Along(k)] if count == 1 else [Along(None, spanned(0, count)), Along(k)]
    return Part(0, x.shape or (), tuple(axes))


@op("move")
def Concat(*xs, axis):
    """y = the inputs one after the other along `axis`"""
    return np.concatenate(xs, axis=axis)


@Concat.type
def _(*xs: Value, axis: int) -> Type:
    need(xs and all(x is not None for x in xs), "Concat needs inputs, none of them absent")
    need_same(*xs)
    shapes = [x.shape for x in xs if x.shape is not None]
    if not shapes:
        return Type(xs[0].dtype, None)
    rank = len(shapes[0])
    need(rank >= 1, "scalars cannot be joined; unsqueeze them first")
    if any(len(s) != rank for s in shapes):
        need(False, f"the ranks differ: {[str(x.type) for x in xs]}")
    axis = axis_of(axis, rank)
    dims: list[Dim] = list(shapes[0])
    for s in shapes[1:]:
        for i in range(rank):
            if i != axis and dims[i] != s[i]:
                message = f"axis {i} differs: {[str(x.type) for x in xs]}"
                dims[i] = unify(dims[i], s[i], message)
    along = [s[axis] for s in shapes]
    numbers = [d for d in along if isinstance(d, NUMBER)]
    if len(shapes) < len(xs) or len(along) - len(numbers) > 1:
        dims[axis] = fresh()
    elif len(numbers) == len(along):
        dims[axis] = sum(numbers)
    else:
        alone = same(sum(numbers), 0)
        dims[axis] = next(d for d in along if isinstance(d, str)) if alone else fresh()
    return Type(xs[0].dtype, tuple(dims))


@Concat.moves
def _(y: Value, *xs: Value, axis: int) -> Move:
    shape = y.shape or ()
    return Move(shape, tuple(placed(x, {}, i) for i, x in enumerate(xs)), axis % len(shape))


@op("move")
def Split(x, split=None, *, axis=0, num_outputs: Any = None):
    """y_0, y_1, ... = x cut along `axis` into pieces of the sizes `split`

    Without sizes: num_outputs pieces of ceil(size / num_outputs), the last ones smaller.
    """
    if split is None:
        sizes = _even(x.shape[axis], num_outputs)
    else:
        sizes = [int(s) for s in np.asarray(split).reshape(-1)]
        need_data(
            min(sizes, default=0) >= 0 and sum(sizes) == x.shape[axis],
            f"split {sizes} does not add up to axis {axis} of {list(x.shape)}",
        )
        need_data(
            num_outputs in (None, len(sizes)), f"split {sizes} does not make {num_outputs} outputs"
        )
    return tuple(np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis))


def _even(size: int, count: int) -> list[int]:
    chunk = -(-size // count)
    return [max(0, min(chunk, size - i * chunk)) for i in range(count)]


@Split.type
def _(x: Value, split: Value | None, *, axis: int, num_outputs: int | None) -> tuple[Type, ...]:
    sizes = const_ints(split)
    count = num_outputs if split is None else length_of(split) or num_outputs
    need(count is not None and count >= 1, "Split needs the sizes, or num_outputs")
    assert count is not None
    budget.check("nodes", count, f"a Split into {count} parts")
    need(num_outputs in (None, count), f"{count} sizes do not make {num_outputs} outputs")
    if x.shape is None:
        return (Type(x.dtype, None),) * count
    axis = axis_of(axis, len(x.shape))
    whole = x.shape[axis]
    pieces: list[Dim]
    if split is None:
        pieces = list(_even(whole, count)) if isinstance(whole, NUMBER) else [fresh()] * count
        pieces = [whole] if count == 1 else [fresh() if isinstance(p, str) else p for p in pieces]
    elif sizes is None:
        pieces = [fresh() for _ in range(count)]
    else:
        need(all(s >= 0 for s in sizes), f"split {list(sizes)} has a negative size")
        need(
            isinstance(whole, str) or sum(sizes) == whole,
            f"split {list(sizes)} does not add up to axis {axis} of {x.type}",
        )
        pieces = list(sizes)
    shape = x.shape
    return tuple(Type(x.dtype, (*shape[:axis], p, *shape[axis + 1 :])) for p in pieces)


@Split.moves
def _(y: Value, x: Value, split: Array | None, *, axis: int, num_outputs: Any) -> Part | None:
    """Output number y.index is a slice of x, which begins after the outputs before it. None where
    its size, or that of one before it, is not known."""
    assert y.producer is not None
    if len(y.producer.outputs) == 1 and split is None:
        return placed(x, {})
    sizes: list[Any] = [v.shape[axis] for v in y.producer.outputs[: y.index + 1] if v.shape]
    if not all(isinstance(n, NUMBER) for n in sizes):
        return None
    return placed(x, {axis % len(x.shape or ()): spanned(sum(sizes[:-1]), sum(sizes))})


# ---- Slice


@op("move")
def Slice(x, starts, ends, axes=None, steps=None):
    """y[i] = x[start + i * step] along each of `axes`, up to before `end`

    Negative starts and ends count from the end of the axis. Then both are clamped to [0, size]; for
    a negative step start to [0, size - 1] and end to [-1, size - 1].
    """
    for start, end, axis, step in _cuts(starts, ends, axes, steps):
        need_data(step, f"a step is 0, that of axis {axis}")
        places = slice_range(start, end, step, x.shape[axis])
        index: list[Any] = [slice(None)] * x.ndim
        stop = None if places.stop < 0 else places.stop
        index[axis] = slice(places.start, stop, step) if len(places) else slice(0, 0)
        x = x[tuple(index)]
    return x


def _cuts(starts: Any, ends: Any, axes: Any, steps: Any) -> Iterator[tuple[int, ...]]:
    """(start, end, axis, step) for each axis that a Slice cuts, from its operands (arrays or None);
    absent axes are 0, 1, ..., absent steps are 1."""
    count = np.size(starts)
    given = (starts, ends, range(count) if axes is None else axes, steps)
    rows = [[1] * count if v is None else np.asarray(v).reshape(-1).tolist() for v in given]
    return zip(*rows, strict=True)


def slice_range(start: int, end: int, step: int, size: int) -> Any:
    """The indexes that ONNX's Slice reads of an axis of `size`, with negative bounds counted from
    the end, and all bounds clipped to the axis: a range, or a `Span` where a bound is a `Size`."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return spanned(min(max(start, 0), size), min(max(end, 0), size), step)
    return spanned(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _taken(start: int, end: int, step: int, size: Any) -> range | Span | None:
    """The indexes that a Slice reads of an axis of `size`, as `slice_range`; None where `size` is a
    symbolic `Size` and the Slice reads all of the axis: start 0, step 1, end at least _FAR."""
    if isinstance(size, Size) and step == 1 and start >= 0:
        if start == 0 and end >= _FAR:
            return None
        if start <= end <= size:
            return spanned(start, end)
    number: Any = size
    return slice_range(start, end, step, number)


@Slice.type
def _(
    x: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None
) -> Type:
    for v, what in ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps")):
        need_dtype(v, INTS, what)
    counts = [n for v in (starts, ends, axes, steps) if v is not None and (n := length_of(v))]
    need(
        all(n == counts[0] for n in counts),
        f"starts, ends, axes and steps have different lengths: {', '.join(map(str, counts))}",
    )
    if x.shape is None:
        return Type(x.dtype, None)
    rank = len(x.shape)
    where = const_ints(axes)
    if axes is None:
        count = length_of(starts)
        need(count is None or count <= rank, f"{count} starts do not fit {x.type}")
        where = None if count is None else tuple(range(count))
    if where is None:
        return Type(x.dtype, unknown(rank))
    places = axes_of(where, rank)
    dims = list(x.shape)
    first, last = const_ints(starts), const_ints(ends)
    by = (1,) * len(places) if steps is None else const_ints(steps)
    need(by is None or 0 not in by, "a step is 0")
    for i, axis in enumerate(places):
        dims[axis] = (
            fresh()
            if first is None or last is None or by is None
            else _sliced(first[i], last[i], by[i], dims[axis])
        )
    return Type(x.dtype, tuple(dims))


_FAR = 2**31 - 1


def _sliced(start: int, end: int, step: int, size: Dim) -> Dim:
    if isinstance(size, NUMBER):
        taken = _taken(start, end, step, size)
        return size if taken is None else count_of(taken)
    whole = (start == 0 and end >= _FAR) if step == 1 else False
    reverse = step == -1 and (start == -1 or start >= _FAR) and end <= -_FAR
    return size if whole or reverse else fresh()


@Slice.moves
def _(y: Value, x: Value, starts: Array, ends: Array, axes: Any, steps: Any) -> Part | None:
    shape, places = x.shape or (), dict[int, Places]()
    for start, end, axis, step in _cuts(starts, ends, axes, steps):
        size, axis = shape[axis], axis % len(shape)
        if isinstance(size, NUMBER):
            found = _taken(start, end, step, size)
            if found is not None and (isinstance(size, Size) or found != range(size)):
                places[axis] = found
        elif step == 1 and start >= 0 and end == start + 1:
            places[axis] = range(start, end)  # or none, where the axis is too short
        elif _sliced(start, end, step, size) != size or step != 1:
            return None
    return placed(x, places)


# ---- triangles, sequences


@op("move")
def Trilu(x, k=None, *, upper=True):
    """y[..., i, j] = x[..., i, j] where j >= i + k (upper) or j <= i + k (lower), else 0"""
    numbers = np.zeros(1, np.int64) if k is None else np.asarray(k)
    need_data(numbers.size == 1, f"k must hold one number, it holds {numbers.size}")
    k = min(max(scalar(numbers), -x.shape[-2]), x.shape[-1])  # any int64: rows + k must be one
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    keep = columns >= rows + k if upper else columns <= rows + k
    return np.where(keep, x, np.zeros((), x.dtype))


@Trilu.type
def _(x: Value, k: Value | None, *, upper: bool) -> Type:
    need(x.rank is None or x.rank >= 2, f"x is {x.type}; it must have rank 2 or more")
    need_dtype(k, INTS, "k")
    count = None if k is None or not k.type.is_static else k.type.size
    need(count in (None, 1), f"k must hold one number, it holds {count}")
    return x.type


by_table(Trilu)


@op("move")
def ReverseSequence(x, sequence_lens, *, batch_axis=1, time_axis=0):
    """y = x with the first sequence_lens[b] steps along time_axis reversed, for b on batch_axis"""
    steps = np.arange(x.shape[time_axis])
    need_length_data(sequence_lens, len(steps))
    lens = np.asarray(sequence_lens)[:, None]
    places = np.where(steps < lens, lens - 1 - steps, steps)
    shape = [1] * x.ndim
    shape[batch_axis], shape[time_axis] = places.shape
    places = places if batch_axis < time_axis else places.T
    return np.take_along_axis(x, places.reshape(shape), axis=time_axis)


@ReverseSequence.type
def _(x: Value, sequence_lens: Value, *, batch_axis: int, time_axis: int) -> Type:
    need({batch_axis, time_axis} == {0, 1}, "batch_axis and time_axis must be 0 and 1")
    need(x.rank is None or x.rank >= 2, f"x is {x.type}; it must have rank 2 or more")
    need_dtype(sequence_lens, INTS, "sequence_lens")
    need_rank(sequence_lens, 1, "sequence_lens")
    if x.shape is not None and sequence_lens.shape is not None:
        many, batch = sequence_lens.shape[0], x.shape[batch_axis]
        need(agree(many, batch), f"there are {many} lengths for a batch of {batch}")
    need_lengths(sequence_lens, fresh() if x.shape is None else x.shape[time_axis])
    return x.type


by_table(ReverseSequence)
