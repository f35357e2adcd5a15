"""Ways to sum the products of a panel of output channels: over the blocks of input channels of its
own group, or (`mixed.py`) over every group to which lanes of its vectors belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit
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
from tinsmith.kernels.window.tiles import Panels
from tinsmith.kernels.window.weights import ChannelBlocks, pack_groups
from tinsmith.records import dataclass

SPARE = 4
"""Vector registers beside those of sums and weights, where taps share what they
read (estimated)."""

Reduction = Callable[[Ptr, Ptr, list[Val], "list[Val | int]", "Fetch | None"], list[Val]]
"""reduce(x, w, accumulators, pixels, fetch) emits all products of a tile, and returns the new
accumulators. x is the address of its first input, w of its first weights; `pixels` are the offsets
of its pixels from x; `fetch` is what to prefetch meanwhile, or None."""


@dataclass(frozen=True)
class Sums:
    """What is computed for one panel.

    lanes    of each of its vectors
    weights  where its packed weights begin
    start    gives the accumulators with which a pixel starts: the bias, or zeros
    reduce   adds the products of a tile
    depth    how many products an output has
    """

    lanes: tuple[int, ...]
    weights: Ptr
    start: Callable[[], list[Val]]
    reduce: Reduction
    depth: int


@dataclass(frozen=True)
class Way:
    """How a convolution's channels are cut and summed. The packed arrays begin with the weights and
    end with the bias, if there is one.

    panels  the panels of output channels that each group has
    groups  how many groups there are
    depth   products that an output adds up for each tap
    stored  packed weights that each lane of a panel has for each tap, padding included
    """

    panels: Panels
    groups: int
    depth: int
    stored: int

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes of the vectors of a panel, but for the last one, which may have fewer."""
        return self.panels.main if self.panels.count else self.panels.tail

    @property
    def rows(self) -> int:
        """Output lanes of all panels."""
        cut = self.panels
        return self.groups * (cut.count * sum(cut.main) + sum(cut.tail))

    def pack(self, w: np.ndarray) -> np.ndarray:
        """The weights [outputs, inputs of a group, *taps] as panels read them, flat."""
        raise NotImplementedError

    def reduction(self, em: Emit, geo: Geometry, panel: Panel) -> Reduction:
        raise NotImplementedError

    def sums(self, em: Emit, geo: Geometry, panel: Panel) -> Sums:
        """What is computed for a panel of this convolution; `panel.channel` counts the lanes of all
        packed panels before it."""
        weights = em.packed[0] + panel.channel * (self.stored * geo.taps)
        reduce = self.reduction(em, geo, panel)
        start = partial(initial, em.b, bias_at(em, panel.channel), panel.lanes)
        return Sums(panel.lanes, weights, start, reduce, self.depth * geo.taps)


@dataclass(frozen=True)
class Blocked(Way):
    """The way of groups whose input channels fill blocks of their own; `blocks` says how these are
    walked. Pixels are prefetched `early` blocks of channels before their turn (0: they are not)."""

    blocks: ChannelBlocks
    early: int

    def pack(self, w: np.ndarray) -> np.ndarray:
        return pack_groups(w, self.panels, self.blocks, self.groups)

    def reduction(self, em: Emit, geo: Geometry, panel: Panel) -> Reduction:
        early = self.early * image_of(em.input(0), geo).plane
        it = Contraction(panel.lanes, self.blocks, early=early)
        return over_blocks(em, geo, it)


def blocked(cut: Panels, blocks: ChannelBlocks, groups: int = 1, early: int = 0) -> Blocked:
    return Blocked(cut, groups, blocks.padded, blocks.count * blocks.stored, blocks, early)


def over_blocks(em: Emit, geo: Geometry, it: Contraction) -> Reduction:
    """The reduction `it`, with loops over channel blocks, taps, and the channels of a block,
    outermost first."""
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
    """Whether several taps of a kernel row (`last`) read the same pixels, so that each is loaded
    once for all of them, and registers hold the weights of the whole row."""
    if not isinstance(last.count, int) or not all(isinstance(p, int) for p in pixels):
        return False
    places = {p + k * last.input for p in pixels for k in range(last.count)}  # type: ignore[operator]
    registers = len(lanes) * (len(pixels) + last.count)
    return len(places) < len(pixels) * last.count and registers <= target.registers - SPARE


def tap_levels(geo: Geometry, step: Triple, stored: int) -> list[Level]:
    """The loops of `nest` over the taps along (depth, height, width). `step` are distances in the
    input; each tap has `stored` packed weights."""
    return [
        Level(geo.kernel[i], geo.dilation[i] * step[i], prod(geo.kernel[i + 1 :]) * stored)
        for i in range(3)
    ]
