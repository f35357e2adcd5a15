"""What a product on matrix registers computes, and how it is cut: the numbers its code is made of.

The input is split once: S[channel block][high, low][phase][position][32 channels] of bfloat16. A
phase holds the places of one remainder by the strides, so that a tap is a distance in positions
whatever the stride is. Positions run through rows of `pitch`, of which the last few are read by
taps only; results there are computed and left out.

A band of results is computed at a time, from its own rows of the input in the second-level cache;
or the whole input is split first, where results are few and threads share the outputs.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.target import Target, overlap
from tinsmith.records import dataclass

LINE = 64  # bytes of a position
PRODUCTS = 3  # of halves: high by low, high by high, low by high
PRODUCT = 64.0
SPLITTING = 22.0  # issue slots of a position of 32 channels
FINISHING = 6.0  # issue slots of a vector of results
AGAIN = 0.7  # of the time that weights take from the last-level cache: the rest is hidden
FILLED = 0.75  # of the second-level cache that a band and a panel may fill
TEAM = 4  # parts of the outputs for each thread that shares them


@dataclass(frozen=True)
class Axis:
    """How windows meet the input along one axis."""

    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1

    def tap(self, i: int) -> tuple[int, int]:
        """(phase, places from the first) of a tap."""
        shift, phase = divmod(i * self.dilation, self.stride)
        return phase, shift

    @functools.cached_property
    def reach(self) -> dict[int, int]:
        """How many places more than `out` are read of each phase."""
        found: dict[int, int] = {}
        for phase, shift in map(self.tap, range(self.kernel)):
            found[phase] = max(shift, found.get(phase, 0))
        return found

    @property
    def most(self) -> int:
        return max(self.reach.values())


@dataclass(frozen=True)
class Plan:
    """`channels` of `images` of down.out x across.out results to `outputs` vectors of 16.

    bands    of results in an image
    whole    the input is split as a whole before, for all threads
    parts    of a band's registers in a phase's tile, where `whole`
    """

    images: int
    channels: int
    outputs: int
    down: Axis
    across: Axis
    bands: int = 1
    whole: bool = False
    parts: int = 1

    @property
    def blocks(self) -> int:
        return -(-self.channels // DEPTH)

    @property
    def taps(self) -> int:
        return self.down.kernel * self.across.kernel

    @functools.cached_property
    def phases(self) -> list[tuple[int, int]]:
        return list(itertools.product(self.down.reach, self.across.reach))

    @property
    def rows(self) -> int:
        """The most rows of results in a band."""
        return -(-self.down.out // self.bands)

    @property
    def pitch(self) -> int:
        return self.across.out + self.across.most

    @property
    def plane(self) -> int:
        """Positions of one phase, with those that the last register reads beyond the results."""
        return ((self.rows + self.down.most) * self.pitch + SIDE) | 1  # spreads blocks over sets

    @property
    def block(self) -> int:
        """Positions from one channel block to the next."""
        return 2 * self.low

    @property
    def low(self) -> int:
        """Positions from the high halves to the low ones."""
        return len(self.phases) * self.plane

    @property
    def image(self) -> int:
        """Positions of a band of one image."""
        return self.blocks * self.block

    def offset(self, i: int, j: int) -> int:
        """Positions from a result's own to what tap (i, j) reads."""
        (p, down), (q, across) = self.down.tap(i), self.across.tap(j)
        return self.phases.index((p, q)) * self.plane + down * self.pitch + across

    def registers(self, rows: int) -> int:
        """Registers of results that cover so many rows."""
        return -(-((rows - 1) * self.pitch + self.across.out) // SIDE)

    @property
    def panels(self) -> int:
        """Pairs of output vectors; the last may be one alone."""
        return -(-self.outputs // 2)

    @property
    def panel(self) -> int:
        """Bytes of the weights of a whole panel."""
        return 2 * SIDE * LINE * 2 * self.blocks * self.taps

    @property
    def weights(self) -> int:
        return self.panel // 2 * self.outputs

    @property
    def tiles(self) -> int:
        """Of the phase that multiplies."""
        return self.images * (self.panels * self.parts if self.whole else self.bands)

    @property
    def by_channels(self) -> bool:
        """Whether threads share the outputs."""
        return self.whole and self.images == 1 and self.parts == 1

    def __str__(self) -> str:
        return "split first" if self.whole else f"{self.bands} bands"


def best_plan(target: Target, draft: Plan, nbytes: float, threads: int) -> tuple[Plan, float]:
    """The best cut of a draft whose tensors have `nbytes`, and its seconds on one core (or as often
    those of the busiest thread)."""
    rows = draft.down.out
    candidates = [replace(draft, bands=n) for n in _counts(rows)]
    parts = -(-TEAM * threads // (draft.panels * draft.images)) if threads > 1 else 1
    parts = max(1, min(parts, draft.registers(rows) // 2))
    candidates.append(replace(draft, whole=True, parts=parts))
    costs = [(cost(target, plan, nbytes, threads), i) for i, plan in enumerate(candidates)]
    seconds, best = min(costs)
    return candidates[best], seconds


def _counts(rows: int) -> list[int]:
    """Numbers of bands worth considering."""
    found = {1, rows}
    for size in range(1, min(rows, 32)):
        found.add(-(-rows // size))
    found |= {n for n in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if n < rows}
    return sorted(found)


def cost(target: Target, plan: Plan, nbytes: float, threads: int = 1) -> float:
    issue = 2.0 * target.lanes / target.peak
    per_image = plan.bands * plan.registers(plan.rows)
    products = plan.outputs * plan.blocks * plan.taps * PRODUCTS * PRODUCT * issue
    products *= per_image * plan.images
    if plan.outputs == 1:
        products *= 1.3
    reads = sum(
        (plan.rows + plan.down.reach[p]) * (plan.across.out + plan.across.reach[q])
        for p, q in plan.phases
    )
    around = SPLITTING * reads * plan.bands * plan.blocks
    around += FINISHING * plan.down.out * plan.across.out * plan.outputs
    around *= plan.images * issue
    split = plan.image * LINE
    fetched = 0.0
    if plan.whole:
        if split * plan.images > FILLED * target.l2:
            fetched += 2.0 * split * plan.images
        if threads > 1:
            fetched += split * plan.images
        turns = 1
    else:
        turns = plan.images * plan.bands
        if plan.weights > FILLED * target.l2:
            fetched += AGAIN * (turns - 1) * plan.weights
    if split + plan.panel > FILLED * target.l2 and not plan.whole:
        fetched += split * plan.panels * turns
    around += fetched / target.l3_bandwidth
    uneven = -(-plan.tiles // threads) * threads / plan.tiles
    products = overlap(products * uneven, plan.weights / target.dram_bandwidth)
    waits = 2 * target.wait if plan.whole else 0.0
    return products + around * uneven + target.time(0, nbytes) + waits
