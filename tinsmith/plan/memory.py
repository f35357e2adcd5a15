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
PAIRS = 1 << 16
"""The most pairs of buffers alive at the same time for which loops in Python find places faster
than calls of numpy. Estimated."""


@dataclass
class Buffer:
    """`nbytes` that are alive in steps [start, end], inclusive; `offset` in the arena, -1: none."""

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
    lives, nbytes = Lives([(b.start, b.end) for b in buffers]), [b.nbytes for b in buffers]
    offsets, peak = lives.offsets(nbytes)
    if len(buffers) <= EXHAUSTIVE and peak > lower_bound(buffers):
        orders = itertools.permutations(lives.order(nbytes))
        offsets, peak = min((lives.placed(o, nbytes) for o in orders), key=lambda found: found[1])
    for b, at in zip(buffers, offsets, strict=True):
        b.offset = at
    return peak


class Lives:
    """The lifetimes of buffers; `lives` are the first and the last step of each, inclusive. Offsets
    may be asked for repeatedly, for other `nbytes`, one a buffer, which are rounded up to ALIGNMENT
    here: which buffers are alive at the same time is found out once."""

    def __init__(self, lives: Sequence[tuple[int, int]]) -> None:
        self._by_life = sorted(range(len(lives)), key=lives.__getitem__)
        self._lives = lives
        self._others: list[list[int]] | None = [[] for _ in lives]
        """For each buffer the others that are alive with it; None where these are too many."""
        alive: list[int] = []
        count = 0
        for k in self._by_life:
            alive = [j for j in alive if lives[j][1] >= lives[k][0]]
            count += len(alive)
            if count > PAIRS:
                self._others = None
                break
            self._others[k] += alive
            for j in alive:
                self._others[j].append(k)
            alive.append(k)

    def order(self, nbytes: Sequence[int]) -> list[int]:
        """The indices of the buffers, the largest first; of equal ones the earlier first."""
        return sorted(self._by_life, key=[-n for n in nbytes].__getitem__)

    def offsets(self, nbytes: Sequence[int]) -> tuple[list[int], int]:
        """(the offset of each buffer, the highest end of one: the arena's bytes), by the greedy
        rule of this module for buffers of `nbytes`."""
        return self.placed(self.order(nbytes), nbytes)

    def placed(self, order: Sequence[int], nbytes: Sequence[int]) -> tuple[list[int], int]:
        """As `offsets`, but buffers are placed in `order` (their indices): each at the lowest
        offset that is free while it is alive."""
        if self._others is None:
            return _placed_by_numpy(order, nbytes, self._lives)
        offsets, peak = [-1] * len(order), 0
        taken: list[list[tuple[int, int]]] = [[] for _ in order]
        for k in order:
            size, at = -(-nbytes[k] // ALIGNMENT) * ALIGNMENT, 0
            for begin, end in taken[k]:  # in order of where they begin
                if at + size <= begin:
                    break
                if end > at:
                    at = end
            offsets[k], place = at, (at, at + size)
            for j in self._others[k]:
                if offsets[j] < 0:
                    insort(taken[j], place)
            if at + size > peak:
                peak = at + size
        return offsets, peak


def one_behind_another(buffers: Sequence[Buffer]) -> Number:
    """Set the offset of every buffer behind the one before, so that none shares bytes with another,
    whatever free sizes are. Returns the bytes of all."""
    end: Number = 0
    for b in buffers:
        b.offset = end  # type: ignore[assignment]
        end = end + align(b.nbytes)  # type: ignore[arg-type]
    return end


def _assign_free(buffers: Sequence[Buffer]) -> Any:
    """`assign_offsets` for free sizes, on which it depends how buffers share bytes best. The offset
    of buffer k becomes the symbol `at<k>`, the arena's size the symbol `peak`: numbers that follow
    when sizes are known. Their examples are the results for the buffers' typical sizes."""
    numbers = [Buffer(typical(b.nbytes), b.start, b.end) for b in buffers]
    peak = assign_offsets(numbers)
    (scope,) = {b.nbytes.scope for b in buffers if isinstance(b.nbytes, Size)}
    for k, (b, n) in enumerate(zip(buffers, numbers, strict=True)):
        at: Any = symbol(scope, f"at{k}", n.offset)
        b.offset = at
    return symbol(scope, "peak", peak)


def _placed_by_numpy(
    order: Sequence[int], nbytes: Sequence[int], lives: Sequence[tuple[int, int]]
) -> tuple[list[int], int]:
    """`Lives.placed` by numpy, for many buffers; `lives` are the first and the last step of
    each."""
    rows = np.empty((4, len(order)), np.int64)
    offsets, peak = [0] * len(order), 0
    for count, k in enumerate(order):
        size, (start, end) = align(nbytes[k]), lives[k]
        begins, ends, first, last = rows[:, :count]
        alive = np.flatnonzero((first <= end) & (last >= start))
        at = 0
        if alive.size:
            tops = np.maximum.accumulate(ends[alive])
            below = np.concatenate(([0], tops[:-1]))
            free = np.flatnonzero(begins[alive] - below >= size)
            at = int(below[free[0]] if free.size else tops[-1])
        place = int(np.searchsorted(begins, at))
        rows[:, place + 1 : count + 1] = rows[:, place:count]
        rows[:, place] = at, at + size, start, end
        offsets[k], peak = at, max(peak, at + size)
    return offsets, peak


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step, each buffer's rounded up to ALIGNMENT: no arena
    can be smaller."""
    events: dict[int, int] = {}
    for b in buffers:
        events[b.start] = events.get(b.start, 0) + align(b.nbytes)
        events[b.end + 1] = events.get(b.end + 1, 0) - align(b.nbytes)
    alive = best = 0
    for _, change in sorted(events.items()):
        alive += change
        best = max(best, alive)
    return best
