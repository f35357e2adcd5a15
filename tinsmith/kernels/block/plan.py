"""How a block is cut into steps, bands and panels, and what that costs.

What was fitted was fitted on Zen 4 with AVX-512; the command was not recorded.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tinsmith.codegen.target import Target, overlap
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import uneven
from tinsmith.kernels.window import depthwise
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.tiles import Pieces, cut, panels, tiling
from tinsmith.kernels.window.ways import Blocked, blocked
from tinsmith.kernels.window.weights import channel_blocks
from tinsmith.records import dataclass

EFFICIENCY = 0.98  # share of the multiply-add peak that is reached; estimated
STEP_SECONDS = 0.1e-6  # seconds of the loops around one step; fitted
MOST_BANDS = 16  # of an image; estimated
MOST_PIXELS = 1024  # output pixels of a step; estimated
ONE_ROW = 0.015  # relative extra time of steps of one row, whose loops are short; fitted
KEPT = 0.6  # share of L2 that the tensors between the stages may take; estimated
CROWDING = 0.12  # relative extra time, times the square of the share of L2 in use; fitted
RESTART = 0.08e-6
"""Seconds until writing a new row of an output channel block streams to outer caches. Estimated."""
REREAD = 0.4  # share of time of reading from L2 what L1 lost that is not hidden; fitted
GRAIN = 0.04  # relative time lost to uneven sharing, with one tile a thread; estimated


@dataclass(frozen=True)
class BlockPlan:
    """How a block is cut. Expanded rows are rows of the first convolution's result.

    rows         steps, as pairs (how many, output rows of the depthwise convolution in each)
    bands        how many parts of an image threads share, each of some neighbouring steps
    parted       whether tiles compute a panel of expanded channels each; so if nothing follows the
                 depthwise convolution
    slots        how many expanded rows of each channel block the ring buffer has
    pitch        elements of one such row of a channel block, with padding left and right
    ring_blocks  channel blocks of the ring buffer
    lead         how many of the expanded rows that a step reads the step before has computed
    expand       how the first convolution cuts its channels; `project` the last one; None if absent
    cost         estimated seconds on one core
    """

    rows: Pieces
    bands: int
    parted: bool
    slots: int
    pitch: int
    ring_blocks: int
    lead: int
    expand: Blocked | None
    project: Blocked | None
    cost: float

    @property
    def steps(self) -> int:
        return sum(n for n, _ in self.rows)

    @property
    def most(self) -> int:
        """Output rows of the largest step."""
        return max(size for _, size in self.rows)

    @property
    def ring(self) -> int:
        """Elements of the ring buffer, from which the depthwise convolution reads."""
        return self.slots * self.pitch * self.ring_blocks


@dataclass(frozen=True)
class Shape:
    """What a plan depends on: the geometries of the convolutions (None if one is absent), the
    channels of a channel block (`width`), and the number of threads."""

    expand: Geometry | None
    depthwise: Geometry
    project: Geometry | None
    width: int
    threads: int

    @property
    def blocks(self) -> int:
        """Channel blocks of the depthwise convolution."""
        return -(-self.depthwise.channels // self.width)

    def middle(self, rows: int) -> int:
        """Elements of workspace for `rows` rows of the depthwise convolution's result, which the
        projection reads; 0 if there is no projection."""
        if self.project is None:
            return 0
        return self.blocks * self.width * rows * self.depthwise.out[2]

    def window(self, rows: int) -> Geometry:
        """The geometry of the depthwise convolution in a step of `rows` output rows."""
        return replace(self.depthwise, batch=1, out=(1, rows, self.depthwise.out[2]))


@cached(512)
def plan_block(target: Target, shape: Shape) -> BlockPlan:
    """The cheapest plan of a block, of all sizes of steps and numbers of bands. Raises Skip if the
    rows of no plan stay in the cache (`plan_rows`)."""
    height, across = shape.depthwise.out[1:]
    best: BlockPlan | None = None
    for most in sorted({-(-height // n) for n in range(1, height + 1)}):
        rows = cut(height, most)
        if rows[0][1] != most or most * across > MOST_PIXELS:
            continue
        most_bands = min(MOST_BANDS, sum(n for n, _ in rows)) if shape.threads > 1 else 1
        for bands in range(1, most_bands + 1):
            plan = plan_rows(target, shape, rows, bands)
            if plan is not None and (best is None or plan.cost < best.cost):
                best = plan
    if best is None:
        raise Skip("the rows of a step do not stay in the cache")
    return best


def plan_rows(target: Target, shape: Shape, rows: Pieces, bands: int) -> BlockPlan | None:
    """The plan for the steps `rows` (as in `BlockPlan`) and so many bands; None if the ring and
    the workspace behind it take more than the share KEPT of L2."""
    geo, width, most = shape.depthwise, shape.width, rows[0][1]
    steps = sum(n for n, _ in rows)
    parted = shape.project is None
    slots = geo.span(1, most)
    pitch = (geo.size[2] + geo.begin[2] + geo.after[2]) * width
    lead = max(0, geo.span(1) - geo.stride[1])
    expand = project = None
    parts, ring_blocks, multiplies = 1, 0, 0.0
    if shape.expand is not None:
        expand = _dense(target, shape.expand, geo.size[2])
        fed = geo.size[1] + lead * (bands - 1)
        multiplies += fed * expand.panels.cost * expand.blocks.padded
        ring_blocks = shape.blocks
        if parted:
            parts = expand.panels.total
            ring_blocks = max(
                len(expand.panels.main) * bool(expand.panels.count), len(expand.panels.tail)
            )
    kept = 4 * (shape.middle(most) + slots * pitch * ring_blocks)
    if kept > KEPT * target.l2:
        return None
    for n, size in rows:
        cost = depthwise.tiling(target, shape.window(size)).cost
        multiplies += n * shape.blocks * geo.taps * cost
    if shape.project is not None:
        project = _dense(target, shape.project, most * geo.out[2])
        for n, size in rows:
            each = _dense_cost(target, project, size * geo.out[2])
            multiplies += n * each * project.blocks.padded
    flops = 2.0 * width * geo.batch * multiplies
    busy = target.time(flops, 0, EFFICIENCY)
    seconds = _with_weights(target, shape, busy, geo.batch * steps, parts, kept)
    seconds += STEP_SECONDS * geo.batch * steps * parts
    if shape.project is not None and project is not None:
        seconds += _traffic(target, shape, shape.project, project, most, steps)
    seconds *= (1 + 0.01 * (len(rows) - 1)) * (1 + CROWDING * (kept / target.l2) ** 2)
    if most == 1 < geo.out[1]:
        seconds *= 1 + ONE_ROW
    if shape.threads > 1:
        tiles = geo.batch * bands * parts
        seconds *= uneven(tiles, shape.threads) + GRAIN * shape.threads / tiles
    return BlockPlan(rows, bands, parted, slots, pitch, ring_blocks, lead, expand, project, seconds)


def _with_weights(
    target: Target, shape: Shape, busy: float, steps: int, parts: int, kept: int
) -> float:
    """Estimated seconds of all `steps` steps: `busy` seconds of arithmetic, and waiting for weights
    of the 1x1 convolutions. The first step reads these from memory; later ones from L2 if those of
    one of `parts` panels stay there, beside `kept` bytes of rows between the convolutions and the
    rows of images that pass through; else from L3."""
    dense = (geo for geo in (shape.expand, shape.project) if geo is not None)
    weights = 4.0 * sum(geo.channels * geo.out_channels for geo in dense)
    first, last = shape.expand or shape.depthwise, shape.project or shape.depthwise
    images = first.batch * (first.channels * prod(first.size) + last.out_channels * prod(last.out))
    passing = kept + 4 * images / steps
    stay = weights / parts <= min(target.l2 // 2, target.l2 - passing)
    return overlap(busy, weights / target.weights_rate()) + (
        0.0 if stay else (steps - 1) * weights / target.l3_bandwidth
    )


def _traffic(
    target: Target, shape: Shape, out: Geometry, dense: Blocked, most: int, steps: int
) -> float:
    """Estimated seconds that the last convolution loses to memory, for the batch. `out`: the last
    convolution's geometry; `dense`: how its channels are cut. New rows of its output begin in each
    of the `steps` of an image (RESTART for each channel block; less if the output is smaller than
    L2). Each panel reads the input from L2 if L1 does not keep the `most` rows of a step."""
    nbytes = 4 * out.out_channels * out.points
    lines = -(-out.out_channels // shape.width)
    seconds = RESTART * min(1.0, nbytes / target.l2) * lines * steps * out.batch
    if 4 * shape.middle(most) > 0.9 * target.l1:
        whole = 4.0 * shape.blocks * shape.width * shape.depthwise.points
        seconds += REREAD * dense.panels.total * whole / target.l2_bandwidth
    return seconds


@cached(512)
def _dense(target: Target, geo: Geometry, cols: int) -> Blocked:
    """How a 1x1 convolution that computes rows of `cols` pixels cuts its channels."""
    blocks = channel_blocks(geo.channels, block_of(target))
    return blocked(panels(target, geo.out_channels, 1, cols, blocks.padded), blocks)


def _dense_cost(target: Target, dense: Blocked, cols: int) -> float:
    """The cost of `cols` pixels in all panels of `dense`, in vector multiply-adds for each input
    channel."""
    cut, depth = dense.panels, dense.blocks.padded
    return sum(
        n * tiling(target, 1, cols, lanes, depth).cost
        for n, lanes in ((cut.count, cut.main), (1, cut.tail))
        if n and lanes
    )
