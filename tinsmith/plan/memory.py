"""Offsets in one arena from lifetimes.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020): the largest buffer first, each at the lowest offset where it overlaps no placed buffer that
is alive at the same time. Graphs of few buffers are improved by a bounded exhaustive search.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Sequence

from tinsmith.records import dataclass

ALIGNMENT = 64
EXHAUSTIVE = 7


@dataclass
class Buffer:
    """`nbytes` that are alive in steps [start, end], inclusive."""

    nbytes: int
    start: int
    end: int
    offset: int = -1


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def assign_offsets(buffers: Sequence[Buffer]) -> int:
    """Set every buffer's offset; the arena's size in bytes."""
    by_size = sorted(buffers, key=lambda b: (-b.nbytes, b.start, b.end))
    peak = _place(by_size)
    bound = lower_bound(buffers)
    if peak == bound or len(buffers) > EXHAUSTIVE:
        return peak
    best = min(itertools.permutations(by_size), key=lambda order: _place(order))
    return _place(best)


def _place(order: Sequence[Buffer]) -> int:
    placed: list[tuple[int, int, int, int]] = []  # (offset, end in memory, first and last step)
    peak = 0
    for buffer in order:
        size, start, end, offset = align(buffer.nbytes), buffer.start, buffer.end, 0
        for at, behind, first, last in placed:
            if first > end or last < start:
                continue
            if offset + size <= at:
                break
            if behind > offset:
                offset = behind
        buffer.offset = offset
        insort(placed, (offset, offset + size, start, end))
        peak = max(peak, offset + size)
    return peak


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
