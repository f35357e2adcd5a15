"""How a large product is cut into quarters, and what that costs.

Y = W X has K outputs, C channels and P pixels (columns of X; rows of a plain left operand). Blocks
of pixels are cut into two halves of `half` pixels, channels and outputs into two halves of whole
vectors, and with quarters W00.. and X00.. (channel half, pixel half) and the sums

    S1 = W10 + W11   S2 = S1 - W00   S3 = W00 - W10   S4 = W01 - S2     made when packing
    T1 = X01 - X00   T2 = X11 - T1   T3 = X11 - X01   T4 = T2 - X10     made while running

the quarters of the result are

    Y00 = W00 X00 + W01 X10          U = W00 X00 + S2 T2
    Y10 = U - W11 T4 + S3 T3         Y11 = U + S1 T1 + S3 T3         Y01 = U + S1 T1 + S4 X11

Channels beyond the halves are added to each quarter of Y at its end; outputs beyond them are
computed directly. The halves of the last block overlap where the pixels do not fill them; what both
would compute is finished by the first. An infinite or undefined number in X reaches both pixels of
its pair.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from tinsmith.codegen.target import Target, overlap
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.strassen.cut import Panels, Pieces, panels, pieces, slots

EFFICIENCY = 0.97  # of the products
SUM_SLOTS = 10  # issue slots of four sums
LEAST_GAIN = 1.03  # what more weights and more code have to bring
UNEVEN = 0.01  # what the risk of unequal shares costs, where each thread has one tile
RESTART = 1.2e-7  # seconds until the pixels of a block stream from the third cache level
STEPS = ("W00", "W01", "S2", "S3", "-W11", "S1", "S4")
"""The left factors in the order in which they are used."""


@dataclass(frozen=True)
class Problem:
    """`images` products, of `outputs` x `channels` by `channels` x `pixels`."""

    images: int
    pixels: int
    channels: int
    outputs: int


@dataclass(frozen=True)
class Plan:
    """One way to cut a problem.

    half     pixels of half a block
    blocks   blocks of an image
    depth    vectors of channels in a half, `rest` channels beyond both halves
    height   vectors of outputs in a half, cut into `cut`
    shared   the sums of all blocks are made first, in memory that all threads share
    """

    problem: Problem
    width: int
    half: int
    blocks: int
    depth: int
    rest: int
    height: int
    cut: Panels
    shared: bool

    @property
    def steps(self) -> int:
        """Channels of a half."""
        return self.depth * self.width

    @property
    def widest(self) -> int:
        """Output lanes of the widest panel."""
        return sum(self.cut.main if self.cut.count else self.cut.tail)

    @property
    def peeled(self) -> int:
        """Outputs beyond both halves."""
        return self.problem.outputs - 2 * self.height * self.width

    @property
    def overlaps(self) -> bool:
        """Whether the halves of the last block have pixels in common."""
        return 2 * self.half * self.blocks != self.problem.pixels

    @property
    def groups(self) -> int:
        """Blocks of all images."""
        return self.problem.images * self.blocks

    def weights(self, lanes: int) -> int:
        """Packed weights of a panel."""
        return (7 * self.steps + 2 * self.rest) * lanes

    def pieces(self, target: Target, lanes: tuple[int, ...]) -> Pieces:
        """How the pixels of a half are cut for a panel."""
        return pieces(target, self.half, len(lanes), self.steps)

    def kinds(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(panels, lanes) of the main panels and of the tail."""
        if self.cut.count:
            yield self.cut.count, self.cut.main
        if self.cut.tail:
            yield 1, self.cut.tail

    def __str__(self) -> str:
        where = "shared" if self.shared else "own"
        return f"halves of {self.half}, {self.blocks} blocks, {where} sums, panels of {self.cut}"


def tile_size(target: Target, plan: Plan) -> int:
    """The most pixels of a register tile."""
    return max(size for _, lanes in plan.kinds() for _, size in plan.pieces(target, lanes))


@functools.lru_cache(maxsize=512)
def best_plan(target: Target, problem: Problem, threads: int) -> tuple[Plan, float] | None:
    """The cheapest plan and its seconds on one core (without the outputs beyond the halves), or
    None where a half would be empty."""
    width = block_of(target)
    depth, height = problem.channels // (2 * width), problem.outputs // (2 * width)
    if not depth or not height or problem.pixels < 2:
        return None
    rest = problem.channels - 2 * depth * width
    found = []
    for count in _counts(target, problem):
        half = -(-problem.pixels // (2 * count))
        if (2 * count - 1) * half > problem.pixels:
            continue
        cut = panels(target, height, half, depth * width)
        for shared in (False, True):
            plan = Plan(problem, width, half, count, depth, rest, height, cut, shared)
            found.append((seconds(target, plan, threads), shared, count, plan))
    cost, _, _, plan = min(found, key=lambda f: f[:3])
    return plan, cost


def _counts(target: Target, problem: Problem) -> set[int]:
    """Numbers of blocks worth considering: one, and those whose sums stay near."""
    found = {1, 2}
    for share in (0.3, 0.5, 0.8):
        pixels = target.l2 * share / (8 * problem.channels)
        count = max(1, round(problem.pixels / max(pixels, 24)))
        found |= {count, count + count % 2}
    return {n for n in found if n <= max(1, problem.pixels // 2)}


def seconds(target: Target, plan: Plan, threads: int) -> float:
    """Seconds on one core times the share of the slowest of `threads`, times `LEAST_GAIN`."""
    each = 0.0
    for count, lanes in plan.kinds():
        cut = plan.pieces(target, lanes)
        each += count * 7 * slots(target, cut, len(lanes), plan.steps)
        each += count * 4 * slots(target, cut, len(lanes), plan.rest)
    issue = 2.0 * plan.width / target.peak
    products = plan.groups * each * issue / EFFICIENCY
    quads = plan.groups * plan.depth * plan.half
    pages = 32.0 * plan.half * plan.steps  # bytes of a block of X, and of its sums
    moved = plan.groups * pages
    near = pages < 0.85 * target.l2
    sums = max(
        SUM_SLOTS * quads * issue, moved / (target.l2_bandwidth if near else target.l3_bandwidth)
    )
    if not near:
        sums += 0.4 * plan.cut.total * moved / target.l3_bandwidth
    if plan.shared:
        sums += 0.5 * moved / target.l3_bandwidth
        if moved > target.l2:
            sums += RESTART * 7 * plan.depth * plan.groups * plan.cut.total
    weights = 28.0 * plan.steps * plan.height * plan.width
    total = overlap(products, weights / target.dram_bandwidth) + sums
    total += 0.04 * weights / target.dram_bandwidth  # of the weights that a direct product lacks
    results = 8.0 * plan.groups * plan.half * plan.height * 2 * plan.width
    if results > target.l2:
        total += results / target.l3_bandwidth
    if weights > target.l2 // 2 and not plan.shared:
        total += (plan.groups - 1) * 0.2 * weights / target.l3_bandwidth
    units = plan.groups * (plan.cut.total if plan.shared else 1)
    uneven = -(-units // threads) * threads / units + (
        UNEVEN * threads / units if threads > 1 else 0
    )
    phases = plan.shared + bool(plan.peeled)
    return LEAST_GAIN * total * uneven + phases * target.wait
