"""How a convolution or product is tiled for matrix registers, and what that costs.

The packed input is S[channel block][part][remainder][position][32 channels] of bfloat16. Parts are
those of split precision, hi first. The places of the input are sorted by their remainder modulo
the stride, so that every tap reads at a fixed distance in positions: with stride 2, tap i reads
remainder i % 2, i // 2 positions after a result's own. Positions are numbered through rows of
`pitch`, whose last few are there for taps alone: results at these are computed, but not stored.

Either a band (some rows) of results is computed at a time, from its rows of the input in the
second-level cache; or, if there are few results, the whole input is packed first, and threads share
the outputs.
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
EXPOSED = 0.7  # share of the time of reading weights from L3 that prefetches do not hide
AGAIN = 0.3  # share of the time of reading weights from L2 again that each further band adds
FILLED = 0.75  # share of the second-level cache that a band and a panel may fill; estimated
KEPT = 0.25
"""Share of the second-level cache that weights may take before some are evicted between bands. The
evicted share of the weights grows to 1 as they take a whole cache size more. Estimated."""
SCATTERED = 3.0
"""How much longer it takes to read input that another core has packed than contiguous memory: each
register reads one kilobyte, far from the next. 1024>256 at 14x14 took 270 us so, 130 in bands."""
PIECE = 24 << 10  # bytes of weights that the first-level cache keeps beside all else; estimated
WIDEST = 40 << 10
"""The most bytes that the weights of one channel block may have if channel blocks are cut into
`pieces`: 3x3 taps have 36 KiB, and gain 15 %; 5x5 taps have 100, and lose 3 %."""
REGISTER = SIDE * POSITION  # bytes
RESULTS = 2 * REGISTER  # bytes of the sums of a register of positions by two of outputs
TEAM = 4  # parts of the outputs for each thread: one core may be much slower; estimated
SLOWER = 2.5  # how much longer products take on a core whose other thread is busy: 2 to 3 times
SMALL = 32  # bands of up to so many rows are all considered; estimated
GROWTH = 1.2  # the ratio of sizes of larger bands that are considered; estimated


@dataclass(frozen=True)
class Axis:
    """The windows of a convolution along one axis: one for each of `out` results, `stride` places
    apart, with `kernel` taps that are `dilation` places apart."""

    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1

    def tap(self, i: int) -> tuple[int, int]:
        """Where tap i of the first result reads: the remainder of its place modulo the stride, and
        the index of the place among those of equal remainder."""
        shift, remainder = divmod(i * self.dilation, self.stride)
        return remainder, shift

    @functools.cached_property
    def reach(self) -> dict[int, int]:
        """For each remainder that taps read: how many places of it they read beyond `out`."""
        found: dict[int, int] = {}
        for remainder, shift in map(self.tap, range(self.kernel)):
            found[remainder] = max(shift, found.get(remainder, 0))
        return found

    @property
    def most(self) -> int:
        """The most places that taps read beyond `out` of any remainder."""
        return max(self.reach.values())


@dataclass(frozen=True)
class AmxPlan:
    """A convolution of `images` images, from `channels` input channels to `outputs` vectors of 16
    output channels, of `down.out` x `across.out` results each; and how it is cut.

    bands    into how many bands the rows of results of an image are cut
    whole    the whole input is packed first, by a phase of its own, and there is one band
    shares   if `whole`: into how many parts an image's positions are cut for threads
    row      the row of the table of products that multiplies
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
        """Blocks of 32 input channels."""
        return -(-self.channels // DEPTH)

    @property
    def taps(self) -> int:
        return self.down.kernel * self.across.kernel

    @functools.cached_property
    def remainders(self) -> list[tuple[int, int]]:
        """The pairs (of rows, of columns) of remainders modulo the strides that taps read."""
        return list(itertools.product(self.down.reach, self.across.reach))

    @property
    def rows(self) -> int:
        """The most rows of results in a band."""
        return -(-self.down.out // self.bands)

    @property
    def pitch(self) -> int:
        """Positions from one row to the next: those of results, and those that only taps read."""
        return self.across.out + self.across.most

    @property
    def plane(self) -> int:
        """Positions from the data of one pair of remainders to that of the next: its rows, and what
        the last register of 16 positions reads after them. Always odd: with an even number,
        channel blocks would fall into the same few sets of the cache."""
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
        """Positions of a packed band, over all parts and channel blocks."""
        return self.blocks * self.block

    def offset(self, i: int, j: int) -> int:
        """How many positions after a result's own the tap (i, j) reads."""
        (p, down), (q, across) = self.down.tap(i), self.across.tap(j)
        return self.remainders.index((p, q)) * self.plane + down * self.pitch + across

    def reached(self, rows: Any) -> Any:
        """How many positions `rows` (int or Val) rows of results span, up to the last result."""
        return (rows - 1) * self.pitch + self.across.out

    def registers(self, rows: int) -> int:
        """How many registers of 16 positions cover `rows` rows of results."""
        return -(-self.reached(rows) // SIDE)

    @property
    def panels(self) -> int:
        """How many panels of weights there are: pairs of vectors of outputs, the last perhaps a
        single one."""
        return -(-self.outputs // 2)

    @property
    def panel_bytes(self) -> int:
        """Bytes of the packed weights of a panel of two vectors, all parts included."""
        return self.row.parts * RESULTS * self.blocks * self.taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self.panel_bytes // 2 * self.outputs

    @property
    def pieces(self) -> int:
        """Into how many pieces the channel blocks are cut. All registers of positions are
        multiplied by one piece of a panel, which stays in the first-level cache, before the next;
        between pieces their sums lie in memory."""
        block = self.panel_bytes // self.blocks
        if self.together == 1 or block > WIDEST:
            return 1
        return -(-self.blocks // max(1, PIECE // block))

    @property
    def together(self) -> int:
        """The most registers of positions that are multiplied by a panel one after the other."""
        return -(-self.registers(self.rows) // self.shares)

    @property
    def waiting(self) -> int:
        """Bytes of sums in the workspace: of one register of positions, or, if there are several
        pieces, of all `together`."""
        return RESULTS * (1 if self.pieces == 1 else self.together)

    @property
    def tiles(self) -> int:
        """Tiles of the phase that multiplies."""
        return self.images * (self.panels * self.shares if self.whole else self.bands)

    @property
    def by_channels(self) -> bool:
        """Whether threads share the panels of output channels, rather than the positions."""
        return self.whole and self.images == 1 and self.shares == 1

    def __str__(self) -> str:
        return "packed first" if self.whole else f"{self.bands} bands"


def best_plan(target: Target, draft: AmxPlan, nbytes: float, threads: int) -> tuple[AmxPlan, float]:
    """Return `draft` with the bands or shares that take the least time (`_shared_cost`), and the
    estimated seconds of this plan (`cost`). `nbytes`: of the input and the output."""
    rows = draft.down.out
    least = min(-(-threads // draft.images), rows)
    candidates = [replace(draft, bands=n) for n in _counts(rows) if n >= least]
    shares = -(-TEAM * threads // (draft.panels * draft.images)) if threads > 1 else 1
    shares = max(1, min(shares, draft.registers(rows)))
    candidates.append(replace(draft, whole=True, shares=shares))
    plan = min(candidates, key=lambda plan: _shared_cost(target, plan, nbytes, threads))
    return plan, cost(target, plan, nbytes, threads)


def _counts(rows: int) -> list[int]:
    """The numbers of bands, in rising order, that are compared for so many rows: all that give
    bands of up to SMALL rows, and some that give larger ones."""
    found, size = {1, rows}, 1
    while size < rows:
        found.add(-(-rows // size))
        size = size + 1 if size < SMALL else int(size * GROWTH)
    return sorted(found)


def cost(target: Target, plan: AmxPlan, nbytes: float, threads: int) -> float:
    """Estimated seconds of a plan on one core. With several threads this is their number times the
    seconds of the busiest one, so that a plan whose tiles divide evenly costs as much as on one
    core; `_shared_cost` adds other delays. `nbytes`: of its input and output."""
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
    """`cost` plus the costs of sharing work: one core may be slower; every thread reads all
    weights, or input that other threads have packed. For comparing plans of one kernel: the costs
    of other kernels leave these out."""
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
    """A factor on the time of threads that take tiles one by one, as cores may differ in speed: the
    mean of 1 (all cores are equal) and the factor if one core takes `SLOWER` times as long. The
    latter is the end of the last tile over that of ideally divided work."""
    others = threads - 1
    slow = max(1, round(tiles / (1 + SLOWER * others)))
    last = max(slow * SLOWER, -(-(tiles - slow) // others))
    return (1 + last * (others + 1 / SLOWER) / tiles / uneven(tiles, threads)) / 2


def slots(plan: AmxPlan) -> float:
    """Issue slots of the products of one image. One slot is the time in which the core issues a
    multiply-add of vectors of 16."""
    one = SIDE * DEPTH / plan.row.rate * (ALONE if plan.outputs == 1 else 1.0)
    small, larger = divmod(plan.down.out, plan.bands)
    registers = larger * plan.registers(small + 1) + (plan.bands - larger) * plan.registers(small)
    return registers * plan.outputs * plan.blocks * plan.taps * one


def _around(plan: AmxPlan) -> float:
    """Issue slots of packing the input and finishing the results of all images."""
    read = sum(
        (plan.rows + plan.down.reach[p]) * (plan.across.out + plan.across.reach[q])
        for p, q in plan.remainders
    )
    split = SPLITTING * read * plan.bands * plan.blocks
    return plan.images * (split + FINISHING * plan.down.out * plan.across.out * plan.outputs)


def _fetched(target: Target, plan: AmxPlan) -> float:
    """Bytes that are read again from beyond the second-level cache: packed input, which each panel
    reads, and weights, which each band reads."""
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
