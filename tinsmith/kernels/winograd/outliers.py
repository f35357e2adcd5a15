"""Tiles whose data is much larger than that of the other tiles of their block, or not finite.

The transforms spread what a datum rounds away, an infinity or a NaN over its whole tile; by the
definition it reaches only the windows that hold it. The squares of a few products of each tile,
summed over the channels, tell how large its data is. What is typical is their geometric mean over
the tiles, which few large ones hardly move; tiles of zeros do not count.
"""

from __future__ import annotations

import functools

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I32, I64
from tinsmith.kernels.moderate import LARGE
from tinsmith.kernels.winograd.matrices import Bilinear, floats
from tinsmith.kernels.winograd.plan import Plan

RATIO = 2.0**7
"""How many times larger than typical a tile may be: F(6x6,3x3) then rounds away some 3e-3 of what
other windows hold."""


@functools.lru_cache(maxsize=256)
def witnesses(rows: Bilinear, cols: Bilinear) -> frozenset[tuple[int, int]]:
    """Few products of which each datum has a part in one, and one that equal data do not cancel."""
    covers = {(p, q) for p in _cover(rows) for q in _cover(cols)}
    return frozenset(covers | {(_steady(rows), _steady(cols))})


def _cover(axis: Bilinear) -> tuple[int, ...]:
    """Few products of an axis of which each datum has a part in one, but for data that a stride
    skips."""
    parts = [{i for i, v in enumerate(row) if v} for row in axis.bt]
    left, found = set[int]().union(*parts), list[int]()
    while left:
        best = max(range(len(parts)), key=lambda p: len(parts[p] & left))
        left -= parts[best]
        found.append(best)
    return tuple(sorted(found))


def _steady(axis: Bilinear) -> int:
    """The product of an axis of which equal data leave the most."""
    bt = floats(axis.bt)
    return int(np.argmax(np.abs(bt.sum(1)) / np.linalg.norm(bt, axis=1)))


class Sizes:
    """The squares of the witnesses, [channel block][tile][lane], behind V and M; then their sums,
    one for each tile, and the limit of these."""

    def __init__(self, plan: Plan, space: Ptr) -> None:
        self.plan = plan
        self.squares = space + plan.sizes_start
        self.sums = self.squares + plan.channels.count * plan.tiles * plan.width

    def at(self, c: Val, t: Val) -> Ptr:
        """The squares of channel block c of the block's tile t."""
        return self.squares + (c * self.plan.tiles + t) * self.plan.width

    def judge(self, b: Builder, count: Val | int) -> None:
        """Sum the squares of the block's `count` tiles, and find the limit."""
        plan, width = self.plan, self.plan.width
        with b.loop(0, count, carry=[b.const(0, I64), b.const(0, I64)]) as t:
            with b.loop(0, plan.channels.count, carry=[b.zero(F32.x(width))]) as c:
                c.next([c.vars[0] + self.at(c.index, t.index).load(width)])
            size = c.out[0].reduce("add") if width > 1 else c.out[0]
            (self.sums + t.index).store(size)
            counts = (size > 0.0) & (size < LARGE**2)
            bits, tiles = t.vars
            # The bits of a positive number are its logarithm, nearly.
            more = counts.select(size.bitcast(I32).to("i64"), b.const(0, I64))
            t.next([bits + more, tiles + counts.select(b.const(1, I64), b.const(0, I64))])
        bits, tiles = t.out
        typical = (bits // b.maximum(tiles, 1)).to("i32").bitcast(F32)
        limit = (typical * RATIO**2).min(LARGE**2)
        limit = tiles.eq(0).select(b.const(LARGE**2, F32), limit)
        (self.sums + plan.tiles).store(limit)

    def limit(self) -> Val:
        """What the sums of tiles have to be below."""
        return (self.sums + self.plan.tiles).load()

    def are_fit(self, t: Val, limit: Val) -> Val:
        """Whether the transforms do for the block's tile t."""
        return (self.sums + t).load() < limit
