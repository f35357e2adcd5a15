"""How a convolution or product is tiled for matrix registers, and what that costs.

The packed input is S[channel block][part][remainder][position][32 channels] of bfloat16: parts are
those of split precision, hi first. Places are sorted by their remainder by the strides, so that a
tap is a distance in positions whatever the stride is: with stride 2, tap i reads remainder i % 2,
i // 2 positions on. Positions run through rows of `pitch`, of which the last few are read by taps
only; results there are computed and left out.

A band of results is computed at a time, from its own rows of the input in the second-level cache;
or the whole input is packed first, where results are few and threads share the outputs.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.products import PRODUCTS, Product
from tinsmith.codegen.target import Target, foreign_time, overlap
from tinsmith.kernels.sharing import uneven
from tinsmith.records import dataclass

# The costs below were fitted on an Intel Xeon with AMX, 2 cores; the command was not recorded. What
# they come to is in docs/figures.md: `python -m benchmarks.micro --isa amx --only amx`.
POSITION = 64  # bytes of one position of a channel block, of either part
SPLITTING = 22.0  # issue slots (half a cycle each) of a position of a channel block
FINISHING = 6.0  # issue slots of a vector of results
ALONE = 1.3  # how much longer products take with one vector of outputs: they wait for loads
EXPOSED = 0.7  # of the time that weights take from the last-level cache; prefetches hide the rest
AGAIN = 0.3  # of the time that weights take from the second-level cache for a further band
FILLED = 0.75  # of the second-level cache that a band and a panel may fill; estimated
KEPT = 0.25
"""Of the second-level cache: the share of weights that is evicted between bands grows from none
there to all of them where they exceed it by the size of the cache. Estimated."""
SCATTERED = 3.0
"""How much longer it takes to read what another core has packed than a stretch of memory: a
register reads a kilobyte here and there. 1024>256 at 14x14 took 270 us so, and 130 in bands."""
PIECE = 24 << 10  # bytes of weights that the first-level cache keeps beside all else; estimated
WIDEST = 40 << 10
"""Bytes of the weights of one channel block, up to which it may be a piece of its own: 3x3 taps
have 36 KiB, and gain 15 %; 5x5 have 100, and lose 3 %."""
REGISTER = SIDE * POSITION  # bytes
RESULTS = 2 * REGISTER  # bytes of the sums of a register of positions by two of outputs
TEAM = 4  # parts of the outputs for each thread: one core may be much slower; estimated
SLOWER = 2.5  # how much longer products take on a core whose other thread is busy: 2 to 3 times
SMALL = 32  # rows of a band up to which every size is considered; estimated
GROWTH = 1.2  # from one size of a larger band that is considered to the next; estimated


@dataclass(frozen=True)
class Axis:
    """How windows meet the input along one axis: `out` results, the windows of which are `stride`
    places apart and have `kernel` taps, `dilation` places apart."""

    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1

    def tap(self, i: int) -> tuple[int, int]:
        """Where tap i of the first result reads: the remainder of its place by the stride, and the
        index of that place among those with this remainder."""
        shift, remainder = divmod(i * self.dilation, self.stride)
        return remainder, shift

    @functools.cached_property
    def reach(self) -> dict[int, int]:
        """For each remainder that taps read: how many places more than `out` they read of it."""
        found: dict[int, int] = {}
        for remainder, shift in map(self.tap, range(self.kernel)):
            found[remainder] = max(shift, found.get(remainder, 0))
        return found

    @property
    def most(self) -> int:
        return max(self.reach.values())


@dataclass(frozen=True)
class AmxPlan:
    """A convolution of `images` images, from `channels` input channels to `outputs` vectors of 16
    output channels, of `down.out` x `across.out` results each; and how it is cut.

    bands    parts into which the rows of results of an image are cut
    whole    the input is packed as a whole before, and there is one band
    shares   into which the positions of a panel are cut for threads, where `whole`
    row      of the table of products
    """

    images: int
    channels: int
    outputs: int
    down: Axis
    across: Axis
    bands: int = 1
    whole: bool = False
    shares: int = 1
    row: Product = PRODUCTS["split"]

    @property
    def blocks(self) -> int:
        return -(-self.channels // DEPTH)

    @property
    def taps(self) -> int:
        return self.down.kernel * self.across.kernel

    @functools.cached_property
    def remainders(self) -> list[tuple[int, int]]:
        """The pairs of remainders (rows, columns) by the strides that taps read."""
        return list(itertools.product(self.down.reach, self.across.reach))

    @property
    def rows(self) -> int:
        """The most rows of results in a band."""
        return -(-self.down.out // self.bands)

    @property
    def pitch(self) -> int:
        """Positions of a row."""
        return self.across.out + self.across.most

    @property
    def plane(self) -> int:
        """Positions from the data of one remainder of the stride to that of the next: its rows, and
        what the last register of a row reads behind them. The number is odd: with an even one,
        blocks of channels would fall into the same few sets of the cache."""
        return ((self.rows + self.down.most) * self.pitch + SIDE) | 1

    @property
    def part(self) -> int:
        """Positions from one part of split precision to the next."""
        return len(self.remainders) * self.plane

    @property
    def block(self) -> int:
        """Positions from one channel block to the next."""
        return self.row.parts * self.part

    @property
    def size(self) -> int:
        """Positions of a band."""
        return self.blocks * self.block

    def offset(self, i: int, j: int) -> int:
        """Positions from a result's own to what tap (i, j) reads."""
        (p, down), (q, across) = self.down.tap(i), self.across.tap(j)
        return self.remainders.index((p, q)) * self.plane + down * self.pitch + across

    def reached(self, rows: Any) -> Any:
        """How many positions `rows` rows of results take (a number or a Val), up to the last
        result."""
        return (rows - 1) * self.pitch + self.across.out

    def registers(self, rows: int) -> int:
        """How many registers of positions cover `rows` rows of results."""
        return -(-self.reached(rows) // SIDE)

    @property
    def panels(self) -> int:
        """How many panels of weights there are: pairs of output vectors, the last perhaps one
        alone."""
        return -(-self.outputs // 2)

    @property
    def panel_bytes(self) -> int:
        """Bytes of the weights of a panel of two vectors, with all parts of split precision."""
        return self.row.parts * RESULTS * self.blocks * self.taps

    @property
    def weight_bytes(self) -> int:
        return self.panel_bytes // 2 * self.outputs

    @property
    def pieces(self) -> int:
        """How many pieces the channel blocks are cut into. The weights of one piece stay in the
        first-level cache while all registers of positions are multiplied by them; their sums are
        kept in memory until the next piece."""
        block = self.panel_bytes // self.blocks
        if self.together == 1 or block > WIDEST:
            return 1
        return -(-self.blocks // max(1, PIECE // block))

    @property
    def together(self) -> int:
        """The most registers of positions that are multiplied by a panel in one go."""
        return -(-self.registers(self.rows) // self.shares)

    @property
    def waiting(self) -> int:
        """Bytes of sums in the workspace: of one register of positions, or, with several pieces, of
        all that are multiplied together."""
        return RESULTS * (1 if self.pieces == 1 else self.together)

    @property
    def tiles(self) -> int:
        """How many tiles the phase that multiplies has."""
        return self.images * (self.panels * self.shares if self.whole else self.bands)

    @property
    def by_channels(self) -> bool:
        """Whether threads share the panels of output channels, rather than the positions."""
        return self.whole and self.images == 1 and self.shares == 1

    def __str__(self) -> str:
        return "packed first" if self.whole else f"{self.bands} bands"


def best_plan(target: Target, draft: AmxPlan, nbytes: float, threads: int) -> tuple[AmxPlan, float]:
    """How a draft is best cut into bands, or into shares of packed input, by `_shared_cost`; and
    the seconds of that plan, by `cost`. `nbytes` are those of the input and the output."""
    rows = draft.down.out
    least = min(-(-threads // draft.images), rows)
    candidates = [replace(draft, bands=n) for n in _counts(rows) if n >= least]
    shares = -(-TEAM * threads // (draft.panels * draft.images)) if threads > 1 else 1
    shares = max(1, min(shares, draft.registers(rows)))
    candidates.append(replace(draft, whole=True, shares=shares))
    plan = min(candidates, key=lambda plan: _shared_cost(target, plan, nbytes, threads))
    return plan, cost(target, plan, nbytes, threads)


def _counts(rows: int) -> list[int]:
    """The numbers of bands that are compared: every one that gives small bands, and some that give
    larger ones."""
    found, size = {1, rows}, 1
    while size < rows:
        found.add(-(-rows // size))
        size = size + 1 if size < SMALL else int(size * GROWTH)
    return sorted(found)


def cost(target: Target, plan: AmxPlan, nbytes: float, threads: int = 1) -> float:
    """The estimated seconds of a plan on one core; `nbytes` are those of its input and output. With
    several threads: `threads` times the seconds of the busiest one, so that a plan whose tiles
    divide evenly costs what it does on one core. Other waiting is left out (`_shared_cost`)."""
    issue = 2.0 * target.lanes / target.peak
    share = uneven(plan.tiles, threads)
    products = slots(plan) * plan.images * issue
    products = overlap(products * share, plan.weight_bytes / target.weights_rate())
    far = plan.whole and plan.size * POSITION * plan.images > target.l3
    rate = target.dram_bandwidth if far else target.l3_bandwidth
    around = _around(plan) * issue + _fetched(target, plan) / rate
    if not plan.whole:
        around += AGAIN * (plan.bands * plan.images - 1) * plan.weight_bytes / target.l2_bandwidth
    return products + around * share + target.time(0, nbytes)


def _shared_cost(target: Target, plan: AmxPlan, nbytes: float, threads: int) -> float:
    """`cost`, with what tells ways of sharing work apart: that one core may be slower, that every
    thread reads all weights, or that threads read input which others have packed. For comparing
    plans only: the costs of other kernels leave these out."""
    seconds = cost(target, plan, nbytes, threads)
    if threads == 1:
        return seconds
    seconds *= _slow_core(plan.tiles, threads)
    if not plan.whole:
        readers = min(threads, plan.tiles)
        return seconds + (readers - 1) * plan.weight_bytes / target.l3_bandwidth
    others = plan.size * POSITION * plan.images * (threads - 1) / threads
    return seconds + threads * (target.wait + SCATTERED * foreign_time(target, others))


def _slow_core(tiles: int, threads: int) -> float:
    """A factor on the time of threads that take tiles one by one, for cores that may differ in
    speed. It is the mean of two cases: all cores are equal (factor 1), or one of them is slower by
    `SLOWER`. In the second, the last tile to end is compared with an ideal division of the work."""
    others = threads - 1
    slow = max(1, round(tiles / (1 + SLOWER * others)))
    last = max(slow * SLOWER, -(-(tiles - slow) // others))
    return (1 + last * (others + 1 / SLOWER) / tiles / uneven(tiles, threads)) / 2


def slots(plan: AmxPlan) -> float:
    """Issue slots of the products of an image; vectors of 16 take one for a multiply-add."""
    one = SIDE * DEPTH / plan.row.rate * (ALONE if plan.outputs == 1 else 1.0)
    small, larger = divmod(plan.down.out, plan.bands)
    registers = larger * plan.registers(small + 1) + (plan.bands - larger) * plan.registers(small)
    return registers * plan.outputs * plan.blocks * plan.taps * one


def _around(plan: AmxPlan) -> float:
    """Issue slots of all that is not products: packing the input, and finishing the results."""
    read = sum(
        (plan.rows + plan.down.reach[p]) * (plan.across.out + plan.across.reach[q])
        for p, q in plan.remainders
    )
    split = SPLITTING * read * plan.bands * plan.blocks
    return plan.images * (split + FINISHING * plan.down.out * plan.across.out * plan.outputs)


def _fetched(target: Target, plan: AmxPlan) -> float:
    """Bytes that come again from beyond the second-level cache: packed input, which each panel
    reads anew, and weights, which each band reads anew."""
    packed, room, passes = plan.size * POSITION, FILLED * target.l2, plan.images * plan.bands
    if plan.whole:  # a panel goes through all images
        packed, passes = packed * plan.images, 1
    nbytes = 0.0
    if packed + plan.panel_bytes + plan.waiting > room:
        nbytes += packed * plan.panels * passes
    if plan.whole:
        return nbytes + (2.0 * packed if packed > room else 0.0)  # written, and read for one panel
    evicted = min(1.0, max(0.0, plan.weight_bytes / target.l2 - KEPT))
    return nbytes + EXPOSED * evicted * (passes - 1) * plan.weight_bytes
