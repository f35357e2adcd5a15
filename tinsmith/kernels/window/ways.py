"""How the products of a panel of output channels are added up: `Blocked` goes through blocks of
input channels, `Mixed` (`mixed.py`) through all groups that have a lane in the panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.window.contract import (
    Contraction,
    Fetch,
    Level,
    Tap,
    bias_at,
    contract,
    initial,
)
from tinsmith.kernels.window.geometry import Geometry, Triple, image_of
from tinsmith.kernels.window.panels import Panel
from tinsmith.kernels.window.tiles import Panels, Tiling, pieces_before
from tinsmith.kernels.window.weights import ChannelBlocks, pack_groups
from tinsmith.records import dataclass
from tinsmith.sizes import typical

EARLIER = 2048  # weights by which a stream of them is prefetched before its use (estimated)
SPARE = 4
"""Vector registers that are kept free beside accumulators and weights, where taps share the pixels
that they read (estimated)."""

Reduction = Callable[[Ptr, Ptr, list[Val], "list[Val | int]", "Fetch | None"], list[Val]]
"""reduce(x, w, accumulators, pixels, fetch) emits all products of a tile, and returns the new
accumulators. x is the address of its first input, w of its first weights; `pixels` are the offsets
of its pixels from x; `fetch` are weights to prefetch meanwhile, or None."""


@dataclass(frozen=True)
class Following:
    """How the tiles of a panel prefetch weights from an outer cache while they compute.

    Together they prefetch the next panel: a loop body reads `lines` cache lines of weights, and of
    the same lines of the next panel each tile prefetches an equal share. Where that would be all
    lines, or no next panel is prefetched, a tile prefetches its own weights a little earlier.

    distance  elements from a weight of this panel to that of the next; 0: prefetch no next panel
    lines     cache lines of weights that a loop body reads
    among     how many bands or threads the tiles of a panel are divided among: each computes so
              many times fewer tiles before it comes to the next panel
    """

    distance: int
    lines: int
    among: int

    def of(self, plan: Tiling, r: Val | int, c: Val | int, high: int, wide: int) -> Fetch:
        """What each loop body of the tile of high x wide pixels at (r, c) prefetches."""
        share = typical(-(-self.lines * self.among // (plan.row_units * plan.col_units)))
        if share >= self.lines or not self.distance:
            return Fetch(EARLIER, self.lines)
        down = pieces_before(plan.rows, r, high)
        number = down * plan.col_units + pieces_before(plan.cols, c, wide)
        return Fetch(number * share % self.lines * LINE + self.distance, share)


@dataclass(frozen=True)
class Sums:
    """The sums of one panel of output channels.

    lanes    lanes of each of its vectors
    weights  where its packed weights begin
    start    a function: the accumulators with which a pixel starts, the bias or zeros
    reduce   a function: adds the products of a tile
    depth    how many products one output adds up
    ahead    how tiles prefetch weights, or None
    """

    lanes: tuple[int, ...]
    weights: Ptr
    start: Callable[[], list[Val]]
    reduce: Reduction
    depth: int
    ahead: Following | None = None


@dataclass(frozen=True)
class Way:
    """How the output channels of a convolution are cut into panels, and input channels summed. Of
    the kernel's packed arrays the first has the weights; the last has the bias, if there is one.

    panels  panels of the output channels of a group
    groups  how many groups there are
    depth   products that an output adds up for each tap
    stored  packed weights of each lane of a panel for each tap, including padding
    """

    panels: Panels
    groups: int
    depth: int
    stored: int

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes of each vector of a whole panel; if there is none, of the only panel, which is
        narrower. After whole panels the last may be narrower, too (`panels.tail`)."""
        return self.panels.main if self.panels.count else self.panels.tail

    @property
    def rows(self) -> int:
        """Lanes of all panels of all groups: outputs, with padding."""
        cut = self.panels
        return self.groups * (cut.count * sum(cut.main) + sum(cut.tail))

    def pack(self, w: np.ndarray) -> np.ndarray:
        """Pack weights [outputs, inputs of a group, *taps] in the order of the panels, flat."""
        raise NotImplementedError

    def reduction(self, em: Emit, geo: Geometry, panel: Panel) -> Reduction:
        """The function that emits the products of a tile of `panel`."""
        raise NotImplementedError

    def sums(self, em: Emit, geo: Geometry, panel: Panel) -> Sums:
        """The sums of a panel. `panel.channel` is the number of lanes of all packed panels before
        it, which tells where its weights and bias lie."""
        weights = em.packed[0] + panel.channel * (self.stored * geo.taps)
        reduce = self.reduction(em, geo, panel)
        start = partial(initial, em.b, bias_at(em, panel.channel), panel.lanes)
        return Sums(panel.lanes, weights, start, reduce, self.depth * geo.taps)


@dataclass(frozen=True)
class Blocked(Way):
    """The way of groups whose input channels fill blocks of their own, which no other group shares.

    blocks  how loops go through the input channels of a group
    early   how many blocks of channels ahead pixels are prefetched; 0: they are not
    """

    blocks: ChannelBlocks
    early: int

    def pack(self, w: np.ndarray) -> np.ndarray:
        return pack_groups(w, self.panels, self.blocks, self.groups)

    def reduction(self, em: Emit, geo: Geometry, panel: Panel) -> Reduction:
        early = self.early * image_of(em.input(0), geo).plane
        it = Contraction(panel.lanes, self.blocks, early=early)
        return over_blocks(em, geo, it)


def blocked(cut: Panels, blocks: ChannelBlocks, groups: int = 1, early: int = 0) -> Blocked:
    """A `Blocked` for these panels and blocks, with its `depth` and `stored` worked out."""
    return Blocked(cut, groups, blocks.padded, blocks.count * blocks.stored, blocks, early)


def following(target: Target, way: Blocked, taps: int, among: int) -> Following | None:
    """How the tiles of a panel of `way` prefetch weights, for kernels of `taps` taps; None if a
    quarter of L2 holds all weights, so that they need no prefetching. `among` as in `Following`."""
    lanes = sum(way.lanes)
    panel = way.stored * taps * lanes
    if 4 * panel * way.panels.total <= target.l2 // 4:
        return None
    near = 4 * panel <= target.l2 // 4  # so that it pushes out nothing that is in use
    return Following(panel if near else 0, -(-way.blocks.step * lanes // LINE), among)


def over_blocks(em: Emit, geo: Geometry, it: Contraction) -> Reduction:
    """The function that emits the products of a tile, in loops over channel blocks, then taps, then
    the channels of a block. `it` says what a loop body multiplies; its `levels` are replaced."""
    image, blocks = image_of(em.input(0), geo), it.channels
    stored = blocks.stored * sum(it.lanes)
    levels = [Level(blocks.count, image.plane, geo.taps * stored)]
    levels += tap_levels(geo, image.step, stored)

    def reduce(
        x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int], fetch: Fetch | None
    ) -> list[Val]:
        whole = replace(it, levels=levels)
        if it.sides > 1 and _share_reads(em.target, levels[-1], pixels, it.lanes):
            last = levels[-1]
            assert isinstance(last.count, int)
            taps = tuple(Tap(k * last.input, k * last.weights) for k in range(last.count))
            channels = replace(blocks, step=1)
            whole = replace(it, levels=levels[:-1], taps=taps, channels=channels)
        return contract(em.b, whole, x, w, acc, pixels, fetch)

    return reduce


def _share_reads(
    target: Target, last: Level, pixels: Sequence[Val | int], lanes: Sequence[int]
) -> bool:
    """Whether the loop over the taps of a kernel row (`last`) should be unrolled, so that each
    element is loaded once: if several taps read the same one (`pixels`: offsets of a tile's), and
    registers hold the row's weights (`lanes` for each tap) beside the accumulators. False if only
    the run knows a number."""
    if not isinstance(last.count, int) or not all(isinstance(p, int) for p in pixels):
        return False
    places = {p + k * last.input for p in pixels for k in range(last.count)}  # type: ignore[operator]
    registers = len(lanes) * (len(pixels) + last.count)
    return len(places) < len(pixels) * last.count and registers <= target.registers - SPARE


def tap_levels(geo: Geometry, step: Triple, stored: int) -> list[Level]:
    """The loops of `nest` over the taps along (depth, height, width). `step`: elements from one
    pixel of the input to the next on each axis, without dilation; `stored`: how many packed weights
    each tap has."""
    return [
        Level(geo.kernel[i], geo.dilation[i] * step[i], prod(geo.kernel[i + 1 :]) * stored)
        for i in range(3)
    ]
