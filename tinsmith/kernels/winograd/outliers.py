"""Finds tiles whose data is much larger than that of the other tiles of their block, or not finite.

The transforms spread an infinity, a NaN, or the rounding error of a large number over the whole
tile; by the definition of convolution it reaches only the windows that contain it. Such tiles are
computed again by the definition (`repair.py`).

The size of a tile is the sum of the squares of a few transformed elements, its witnesses, over all
channels. The typical size of a block is the geometric mean over its tiles, without tiles of zeros:
a few large tiles hardly change it.
"""

from __future__ import annotations

import functools

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I32, I64
from tinsmith.kernels.float_products import LARGE
from tinsmith.kernels.winograd.matrices import Bilinear, floats
from tinsmith.kernels.winograd.tiling import WinogradPlan

RATIO = 2.0**7
"""Tiles more than this many times the typical magnitude are computed again. Below it, F(6x6,3x3)
loses up to some 3e-3 of the other windows' results (docs/numerics.md). Estimated."""


@functools.lru_cache(maxsize=256)
def witnesses(rows: Bilinear, cols: Bilinear) -> frozenset[tuple[int, int]]:
    """The positions whose squares are summed: a few that together depend on every input element,
    and one that does not vanish on constant data."""
    covers = {(p, q) for p in _cover(rows) for q in _cover(cols)}
    return frozenset(covers | {(_steady(rows), _steady(cols))})


def _cover(axis: Bilinear) -> tuple[int, ...]:
    """A few products of one axis that together depend on every input element, but those that a
    stride skips."""
    parts = [{i for i, v in enumerate(row) if v} for row in axis.bt]
    left, found = set[int]().union(*parts), list[int]()
    while left:
        best = max(range(len(parts)), key=lambda p: len(parts[p] & left))
        left -= parts[best]
        found.append(best)
    return tuple(sorted(found))


def _steady(axis: Bilinear) -> int:
    """The index of the row of B^T whose transformed element is largest, relative to the row's
    length, where all input values are equal."""
    bt = floats(axis.bt)
    return int(np.argmax(np.abs(bt.sum(1)) / np.linalg.norm(bt, axis=1)))


class Sizes:
    """The arrays behind V and M: squares of the witnesses, [channel block][tile][lane]; then the
    size of each tile; then the limit that sizes are compared with."""

    def __init__(self, plan: WinogradPlan, space: Ptr) -> None:
        self.plan = plan
        self.squares = space + plan.sizes_start
        self.sums = self.squares + plan.channels.count * plan.tiles * plan.width

    def at(self, c: Val, t: Val) -> Ptr:
        """Where the squares of tile t of the block lie for channel block c: one vector."""
        return self.squares + (c * self.plan.tiles + t) * self.plan.width

    def judge(self, b: Builder, count: Val | int) -> None:
        """Add up the squares of each of the block's `count` tiles to its size, and store the limit:
        RATIO squared times the typical size, at most LARGE squared."""
        plan, width = self.plan, self.plan.width
        with b.loop(0, count, carry=[b.const(0, I64), b.const(0, I64)]) as t:
            with b.loop(0, plan.channels.count, carry=[b.zero(F32.x(width))]) as c:
                c.next([c.vars[0] + self.at(c.index, t.index).load(width)])
            size = c.out[0].reduce("add") if width > 1 else c.out[0]
            (self.sums + t.index).store(size)
            counts = (size > 0.0) & (size < LARGE**2)
            bits, tiles = t.vars
            # The bits of a positive float are nearly its logarithm (scaled and shifted).
            more = counts.select(size.bitcast(I32).to("i64"), b.const(0, I64))
            t.next([bits + more, tiles + counts.select(b.const(1, I64), b.const(0, I64))])
        bits, tiles = t.out
        typical = (bits // b.maximum(tiles, 1)).to("i32").bitcast(F32)
        limit = (typical * RATIO**2).min(LARGE**2)
        limit = tiles.eq(0).select(b.const(LARGE**2, F32), limit)
        (self.sums + plan.tiles).store(limit)

    def limit(self) -> Val:
        """The size that fit tiles stay below."""
        return (self.sums + self.plan.tiles).load()

    def are_fit(self, t: Val, limit: Val) -> Val:
        """Whether the transforms are exact enough for tile t of the block."""
        return (self.sums + t).load() < limit
