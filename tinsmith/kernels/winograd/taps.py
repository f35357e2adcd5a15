"""Products by weights that are kept as taps, and transformed in registers in each run.

Transformed weights take three to nine times the bytes of their taps. If few tiles use them, reading
them from memory takes longer than multiplying by them. Here the taps of a few channels are
transformed to the weights of a position just before these are used. The sums of an output block
at all positions stay in L1, and so do the data of a channel block: V and M are
[block][position][tile][lane].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import fused
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.conditions import cached
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.winograd.matrices import Bilinear
from tinsmith.kernels.winograd.program import Program, program, run
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.records import dataclass

AHEAD = 72
"""How many cache lines ahead taps are prefetched. The prefetches are spread over the positions: all
at once they delay loads (15 % of the time on Zen 4; the command was not recorded)."""

MOST_SUMS = 256
"""The most accumulators (vectors) of a block of outputs, which L1 holds: with as many vectors of
data of 16 lanes they fill 32 KiB. Code is emitted for each, without loops."""


@cached(256)
def tap_program(axis: Bilinear) -> Program:
    """The program that transforms taps along one axis: multiplication by G."""
    return program(axis.g)


def tap_operations(plan: WinogradPlan) -> int:
    """How many instructions transform the taps of one input channel and output block."""
    rows, cols = tap_program(plan.rows), tap_program(plan.cols)
    return rows.operations * plan.cols.r + cols.operations * plan.rows.products


def channels_together(target: Target) -> int:
    """How many input channels' taps are transformed at a time: nearly all registers hold taps if
    there are 3x3."""
    return 4 if target.registers >= 32 else 2


def pack_taps(w: Array, plan: WinogradPlan) -> Array:
    """The weights [K, C, r_h, r_w] as [output block][channel][tap][lane], flat. Padding channels
    and padding outputs are zeros."""
    flat = np.zeros((plan.outputs * plan.width, plan.depth, plan.geo.taps), np.float32)
    flat[: w.shape[0], : w.shape[1]] = w.reshape(*w.shape[:2], plan.geo.taps)
    return flat.reshape(plan.outputs, plan.width, -1).swapaxes(1, 2).reshape(-1)


def taps_stage(em: Emit, plan: WinogradPlan, space: Ptr, k0: Val, k1: Val) -> None:
    """Emit the products M of output blocks [k0, k1) for all tiles and positions, from V, at
    `space`, and the packed taps."""
    b, width, channels = em.b, plan.width, plan.channels
    zero = b.zero(F32.x(width))
    with b.loop(k0, k1) as k:
        to = (space + plan.m_start + k * plan.block_step).fixed()
        with b.loop(0, plan.positions * plan.tile_row, width) as i:
            (to + i).store(zero)
        taps = (em.packed[0] + k * (plan.depth * plan.geo.taps * width)).fixed()
        with b.loop(0, channels.count) as c:
            here = (taps + c * (channels.stored * plan.geo.taps * width)).fixed()
            x = (space + c * plan.block_step).fixed()
            with b.loop(0, channels.of(b, c), plan.channels_together) as lane:
                w = (here + lane * (plan.geo.taps * width)).fixed()
                _ChannelProducts(plan, (x + lane).fixed(), w, to).emit()


@dataclass(frozen=True)
class _ChannelProducts:
    """Emits the products of `plan.channels_together` input channels. Pointers: to their transformed
    data `x`, their `taps`, and the accumulators `sums` of all positions."""

    plan: WinogradPlan
    x: Ptr
    taps: Ptr
    sums: Ptr

    def emit(self) -> None:
        """Emit, for each position, the transform of the taps to its weights, and their products by
        the data, which are added to its accumulators. Rows of the transform that have sums in
        common are computed together."""
        plan, numbers = self.plan, range(self.plan.channels_together)
        rows, cols = tap_program(plan.rows), tap_program(plan.cols)
        for group in rows.groups:
            done = [self._columns(number, group) for number in numbers]
            for i, p in enumerate(group):
                lines = [[column[i] for column in columns] for columns in done]
                for part in cols.groups:
                    made = [run(cols, line.__getitem__, part) for line in lines]
                    for q, weights in zip(part, zip(*made, strict=True), strict=True):
                        self._multiply(p * plan.cols.products + q, weights)

    def _columns(self, number: int, group: Sequence[int]) -> list[list[Val]]:
        """Emit the transform of the taps of channel `number` along each of their columns. Return,
        for each column, the results of the rows in `group`."""
        plan = self.plan

        def column(q: int) -> list[Val]:
            first = number * plan.geo.taps + q

            def tap(p: int) -> Val:
                return (self.taps + (first + p * plan.cols.r) * plan.width).load(plan.width)

            return run(tap_program(plan.rows), tap, group)

        return [column(q) for q in range(plan.cols.r)]

    def _multiply(self, position: int, weights: Sequence[Val]) -> None:
        """Emit the products of all tiles at one position, which are added to its accumulators, and
        the position's share of the prefetches of taps. `weights`: a vector for each channel."""
        plan, width = self.plan, self.plan.width
        lines = plan.channels_together * plan.geo.taps * width // LINE
        first, stop = (at * lines // plan.positions for at in (position, position + 1))
        for line in range(first, stop):
            (self.taps + (AHEAD + line) * LINE).prefetch()
        for at in range(position * plan.tile_row, (position + 1) * plan.tile_row, width):
            total = (self.sums + at).load(width)
            for number, weight in enumerate(weights):
                one = (self.x + at + number).load().splat(width)
                total = fused(total, one, weight)
            (self.sums + at).store(total)
