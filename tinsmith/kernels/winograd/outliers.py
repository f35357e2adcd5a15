"""Finds tiles whose data are much larger than those of other tiles of the block, or not finite.

The transforms spread an infinity, a NaN, or the rounding error of a large number over all results
of a tile; by the definition of convolution it reaches only windows that contain it. Such tiles are
computed again by the definition (`repair.py`).

The size of a tile is the sum of the squares of a few transformed elements (the "witnesses") over
all channels. The typical size of a block is the geometric mean of its tiles' sizes, without tiles
of zeros: a few large tiles hardly change it.
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
"""Tiles whose data are more than so many times as large as typical are computed again. Below that,
F(6x6,3x3) loses up to some 3e-3 of the other windows' results (docs/numerics.md). Estimated."""


@functools.lru_cache(maxsize=256)
def witnesses(rows: Bilinear, cols: Bilinear) -> frozenset[tuple[int, int]]:
    """The positions (row, column) of the witnesses: a few that together depend on every input
    element of a tile, and one that is not 0 for constant data."""
    covers = {(p, q) for p in _cover(rows) for q in _cover(cols)}
    return frozenset(covers | {(_steady(rows), _steady(cols))})


def _cover(axis: Bilinear) -> tuple[int, ...]:
    """A few positions of one axis that together depend on every input element, except those that a
    stride skips."""
    parts = [{i for i, v in enumerate(row) if v} for row in axis.bt]
    left, found = set[int]().union(*parts), list[int]()
    while left:
        best = max(range(len(parts)), key=lambda p: len(parts[p] & left))
        left -= parts[best]
        found.append(best)
    return tuple(sorted(found))


def _steady(axis: Bilinear) -> int:
    """The position of one axis whose transformed element is largest for equal input values,
    relative to the Euclidean norm of its row of B^T."""
    bt = floats(axis.bt)
    return int(np.argmax(np.abs(bt.sum(1)) / np.linalg.norm(bt, axis=1)))


class Sizes:
    """The sizes of a block's tiles, in memory behind V and M: sums of squares of the witnesses,
    [channel block][tile][lane]; the size of each tile; the limit that sizes are compared with.
    `space` is the address of V."""

    def __init__(self, plan: WinogradPlan, space: Ptr) -> None:
        self.plan = plan
        self.squares = space + plan.sizes_start
        self.sums = self.squares + plan.channels.count * plan.tiles * plan.width

    def at(self, c: Val, t: Val) -> Ptr:
        """Where the sums of squares of tile t and channel block c lie: one vector."""
        return self.squares + (c * self.plan.tiles + t) * self.plan.width

    def judge(self, b: Builder, count: Val | int) -> None:
        """Emit code that adds up the squares of each of the block's `count` tiles to its size, and
        stores the limit: RATIO^2 times the typical size of those between 0 and LARGE^2, at most
        LARGE^2."""
        plan, width = self.plan, self.plan.width
        with b.loop(0, count, carry=[b.const(0, I64), b.const(0, I64)]) as t:
            with b.loop(0, plan.channels.count, carry=[b.zero(F32.x(width))]) as c:
                c.next([c.vars[0] + self.at(c.index, t.index).load(width)])
            size = c.out[0].reduce("add")
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
        """Load the limit: tiles of this size or more are computed again."""
        return (self.sums + self.plan.tiles).load()

    def are_fit(self, t: Val, limit: Val) -> Val:
        """Emit an i1: whether the size of tile t of the block is below `limit`."""
        return (self.sums + t).load() < limit
