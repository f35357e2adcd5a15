"""How a block is cut: rows at a time, bands, panels, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.block.stages import Stage, Stages
from tinsmith.kernels.window import depthwise
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.tiles import Panels, Pieces, cut, panels, tiling
from tinsmith.kernels.window.weights import ChannelBlocks, channel_blocks

EFFICIENCY = 0.98
STEP_SECONDS = 0.02e-6  # around the loops of one step
MOST_BANDS = 16
KEPT = 0.6  # of L2, for what lies between the stages
CROWDING = 0.06  # slower by this where all of L2 is used
RESTART = 0.08e-6  # until a line of output of one channel block streams to outer caches
REREAD = 0.35  # of the time to read from L2 what does not stay in L1, that is not hidden
GRAIN = 0.04  # what is lost for want of tiles to share, with one tile a thread


@dataclass(frozen=True)
class Dense:
    """How a 1x1 stage is computed: its panels and its input channels."""

    cut: Panels
    blocks: ChannelBlocks

    @property
    def row(self) -> int:
        """Packed weights of one output vector's lanes, over all inputs."""
        return self.blocks.count * self.blocks.stored


@dataclass(frozen=True)
class BlockPlan:
    """`rows`: output rows of the depthwise convolution that are computed in one step.

    `bands` of steps divide an image. With `parted` (nothing follows the depthwise convolution)
    each panel of expanded channels is on its own. The ring holds `slots` expanded rows of
    `pitch` elements for each of `ring_blocks` channel blocks; `lead` expanded rows of a step
    were computed by the one before it.
    """

    rows: Pieces
    bands: int
    parted: bool
    slots: int
    pitch: int
    ring_blocks: int
    lead: int
    expand: Dense | None
    project: Dense | None
    cost: float

    @property
    def steps(self) -> int:
        return sum(n for n, _ in self.rows)

    @property
    def most(self) -> int:
        return max(size for _, size in self.rows)

    @property
    def ring(self) -> int:
        """Elements of the ring."""
        return self.slots * self.pitch * self.ring_blocks


def middle(stages: Stages, rows: int) -> int:
    """Elements between the depthwise convolution and the last one."""
    if stages.project is None:
        return 0
    return stages.blocks * stages.width * rows * stages.depthwise.geo.out[2]


def window(stages: Stages, rows: int) -> Geometry:
    """The depthwise convolution of one step."""
    geo = stages.depthwise.geo
    return replace(geo, batch=1, out=(1, rows, geo.out[2]))


def plan_block(target: Target, stages: Stages) -> BlockPlan:
    """The cheapest way to cut a block, or Skip where nothing fits the cache."""
    geo = stages.depthwise.geo
    height = geo.out[1]
    best: BlockPlan | None = None
    for most in sorted({-(-height // n) for n in range(1, height + 1)}):
        rows = cut(height, most)
        if rows[0][1] != most or most * geo.out[2] > 1024:
            continue
        most_bands = min(MOST_BANDS, sum(n for n, _ in rows)) if stages.site.threads > 1 else 1
        for bands in range(1, most_bands + 1):
            plan = _plan(target, stages, rows, bands)
            if plan is not None and (best is None or plan.cost < best.cost):
                best = plan
    if best is None:
        raise Skip("the rows of a step do not stay in the cache")
    return best


def _plan(target: Target, stages: Stages, rows: Pieces, bands: int) -> BlockPlan | None:
    geo, width, most = stages.depthwise.geo, stages.width, rows[0][1]
    parted = stages.project is None
    slots = (most - 1) * geo.stride[1] + stages.span
    pitch = (geo.size[2] + geo.begin[2] + geo.after[2]) * width
    expand = project = None
    kept, multiplies = 4 * middle(stages, most), 0.0
    ring_blocks = 0
    lead = max(0, stages.span - geo.stride[1])
    if stages.expand is not None:
        expand = _dense(target, stages.expand, 1, geo.size[2])
        fed = geo.size[1] + lead * (bands - 1)
        multiplies += fed * expand.cut.cost * expand.blocks.padded
        ring_blocks = len(expand.cut.main or expand.cut.tail) if parted else stages.blocks
        ring_blocks = max(ring_blocks, len(expand.cut.tail)) if parted else ring_blocks
        kept += 4 * slots * pitch * ring_blocks
    for n, size in rows:
        cost = depthwise.tiling(target, window(stages, size)).cost
        multiplies += n * stages.blocks * geo.taps * cost
    if stages.project is not None:
        project = _dense(target, stages.project, 1, most * geo.out[2])
        for n, size in rows:
            each = _dense_cost(target, project, size * geo.out[2])
            multiplies += n * each * project.blocks.padded
    if kept > KEPT * target.l2:
        return None
    steps = sum(n for n, _ in rows) * (expand.cut.total if parted and expand else 1)
    flops = 2.0 * width * geo.batch * multiplies
    seconds = target.time(flops, 0, EFFICIENCY) + STEP_SECONDS * geo.batch * steps
    seconds += _traffic(target, stages, most, sum(n for n, _ in rows), project)
    seconds *= (1 + 0.01 * (len(rows) - 1)) * (1 + CROWDING * kept / target.l2)
    threads = stages.site.threads
    if threads > 1:
        tiles = geo.batch * bands * (expand.cut.total if parted and expand else 1)
        seconds *= -(-tiles // threads) * threads / tiles + GRAIN * threads / tiles
    return BlockPlan(rows, bands, parted, slots, pitch, ring_blocks, lead, expand, project, seconds)


def _traffic(target: Target, stages: Stages, most: int, steps: int, project: Dense | None) -> float:
    """Seconds for starting anew on the output's lines, and for what lies before the last stage."""
    if stages.project is None or project is None:
        return 0.0
    out = stages.project.geo
    nbytes = 4 * out.out_channels * out.points
    lines = -(-out.out_channels // stages.width)
    seconds = RESTART * min(1.0, nbytes / target.l2) * lines * steps * out.batch
    if 4 * middle(stages, most) > 0.9 * target.l1:
        whole = 4.0 * stages.blocks * stages.width * stages.depthwise.geo.points
        seconds += REREAD * project.cut.total * whole / target.l2_bandwidth
    return seconds


def _dense(target: Target, stage: Stage, rows: int, cols: int) -> Dense:
    blocks = channel_blocks(stage.geo.channels, max(4, target.lanes))
    return Dense(panels(target, stage.geo.out_channels, rows, cols, blocks.padded), blocks)


def _dense_cost(target: Target, dense: Dense, cols: int) -> float:
    depth = dense.blocks.padded
    total = 0.0
    for n, lanes in ((dense.cut.count, dense.cut.main), (1, dense.cut.tail)):
        if n and lanes:
            total += n * tiling(target, 1, cols, lanes, depth).cost
    return total
