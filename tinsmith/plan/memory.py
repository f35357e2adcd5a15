"""Offsets in one arena, from the lifetimes of buffers.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020): the largest buffer first, each at the lowest offset where it overlaps no placed buffer that
is alive at the same time. If there are few buffers, a bounded exhaustive search follows.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, symbol, typical

ALIGNMENT = 64  # bytes: a cache line
EXHAUSTIVE = 7  # the most buffers for which all orders are tried; estimated
FEW = 256
"""The most buffers for which a Python loop finds places faster than calls of numpy. Estimated."""


@dataclass
class Buffer:
    """`nbytes` that are alive in steps [start, end], inclusive."""

    nbytes: Number
    start: int
    end: int
    offset: int = -1


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def assign_offsets(buffers: Sequence[Buffer]) -> int:
    """Set the offset of every buffer, so that none overlaps another that is alive at the same time.
    Returns the arena's size in bytes. If sizes are free, both are symbols (`_assign_free`)."""
    if any(isinstance(b.nbytes, Size) for b in buffers):
        return _assign_free(buffers)
    by_size = sorted(buffers, key=lambda b: (-b.nbytes, b.start, b.end))
    peak = _place(by_size)
    bound = lower_bound(buffers)
    if peak == bound or len(buffers) > EXHAUSTIVE:
        return peak
    best = min(itertools.permutations(by_size), key=lambda order: _place(order))
    return _place(best)


def one_behind_another(buffers: Sequence[Buffer]) -> Number:
    """Set the offset of every buffer behind the one before, so that none shares bytes with another.
    Returns the bytes of all. Offsets are formulas of free sizes, which hold for any sizes."""
    end: Number = 0
    for b in buffers:
        b.offset = end  # type: ignore[assignment]
        end = end + align(b.nbytes)  # type: ignore[arg-type]
    return end


def _assign_free(buffers: Sequence[Buffer]) -> Any:
    """`assign_offsets` for free sizes. How buffers share bytes best depends on their sizes, so that
    the offset of buffer k becomes a symbol `at<k>` and the arena's size the symbol `peak`, to which
    numbers are given when sizes are known. As examples they have the results for the buffers'
    typical sizes."""
    numbers = [Buffer(typical(b.nbytes), b.start, b.end) for b in buffers]
    peak = assign_offsets(numbers)
    (scope,) = {b.nbytes.scope for b in buffers if isinstance(b.nbytes, Size)}
    for k, (b, n) in enumerate(zip(buffers, numbers, strict=True)):
        at: Any = symbol(scope, f"at{k}", n.offset)
        b.offset = at
    return symbol(scope, "peak", peak)


def _place(order: Sequence[Buffer]) -> int:
    """Set the offsets of buffers in this order, each to the lowest that is free while it is alive.
    Returns the bytes that they take together: the highest end."""
    many = len(order) > FEW
    rows = np.empty((4, len(order) if many else 0), np.int64)
    placed: list[Row] = []
    peak = 0
    for count, buffer in enumerate(order):
        size, start, end = align(buffer.nbytes), buffer.start, buffer.end
        if many:
            offset = _lowest_of_many(rows[:, :count], size, start, end)
        else:
            offset = _lowest(placed, size, start, end)
        buffer.offset = offset
        row = offset, offset + size, start, end
        if many:
            k = int(np.searchsorted(rows[0, :count], offset))
            rows[:, k + 1 : count + 1] = rows[:, k:count]
            rows[:, k] = row
        else:
            insort(placed, row)
        peak = max(peak, offset + size)
    return peak


Row = tuple[int, int, int, int]
"""A placed buffer: offset, end in memory, first and last step."""


def _lowest(placed: Sequence[Row], size: int, start: int, end: int) -> int:
    """The lowest offset with `size` free bytes in steps [start, end]; `placed` is sorted by
    offset."""
    offset = 0
    for at, behind, first, last in placed:
        if first > end or last < start:
            continue
        if offset + size <= at:
            break
        if behind > offset:
            offset = behind
    return offset


def _lowest_of_many(rows: np.ndarray, size: int, start: int, end: int) -> int:
    """`_lowest` for placed buffers that are the columns of an array [4, buffers], whose rows are
    the fields of a `Row`."""
    at, behind, first, last = rows
    alive = np.flatnonzero((first <= end) & (last >= start))
    if not alive.size:
        return 0
    tops = np.maximum.accumulate(behind[alive])
    below = np.concatenate(([0], tops[:-1]))
    free = np.flatnonzero(at[alive] - below >= size)
    return int(below[free[0]] if free.size else tops[-1])


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step: no arena can be smaller."""
    events: dict[int, int] = {}
    for b in buffers:
        events[b.start] = events.get(b.start, 0) + align(b.nbytes)
        events[b.end + 1] = events.get(b.end + 1, 0) - align(b.nbytes)
    alive = best = 0
    for _, change in sorted(events.items()):
        alive += change
        best = max(best, alive)
    return best
