"""Instance and group normalisation of channel-blocked images: a channel is a lane.

Where whole groups fill a block, its pixels are summed lane by lane and the lanes of a group
are then added: one unit of work is one block. Otherwise the sum of each channel goes to scratch,
and those of a group are added between two passes over the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Phase, Site, Skip, Tier, View, kernel
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.walk import Position, run, walk_of
from tinsmith.kernels.window.weights import padded_bias

SUMS = 4
"""Independent sums of a row, which hide the latency of an addition (estimated)."""


@kernel("InstanceNorm", Tier.VECTOR, dtypes="float32")
def instance_norm_blocked(site: Site) -> Choice:
    """Instance normalisation of channel-blocked images."""
    return _choice(site, 1)


@kernel("GroupNorm", Tier.VECTOR, dtypes="float32")
def group_norm_blocked(site: Site) -> Choice:
    """Group normalisation of channel-blocked images, for groups of any size."""
    return _choice(site, site.input(0).dims[1] // site.attr("groups"))


def _choice(site: Site, size: int) -> Choice:
    """The choice for groups of `size` channels each: one phase where whole groups fill a block,
    else five. Raises Skip for what is no image (of 1 to 3 spatial axes), for eps <= 0, or where
    scale or shift is not constant."""
    x = site.input(0)
    if not 3 <= len(x.dims) <= 5 or site.out.dims != x.dims:
        raise Skip(f"{x.type} is no image")
    if np.float32(site.attr("eps")) <= 0:
        raise Skip("the padding lanes need a positive eps")
    n, channels = x.dims[:2]
    block = block_of(site.target)
    blocks = -(-channels // block)
    layout = Layout(block)
    packed = tuple(
        Packed(name, padded_bias, (site.const(i, f"the {name}"), blocks * block))
        for i, name in ((1, "scale"), (2, "shift"))
    )
    work = _Norm(size, blocks, float(site.attr("eps")))
    passes = prod(x.dims) / channels * blocks * block
    cost = 0.2e-6 + site.target.time(9.0 * passes, 12.0 * passes, 0.5)
    tiles = n * blocks
    scratch = 0
    phases: tuple[Phase, ...] = (Phase(tiles, work.whole),)
    if block % size:
        groups = n * channels // size
        scratch = 2 * 4 * tiles * block
        phases = (
            Phase(tiles, work.sums), Phase(groups, work.means), Phase(tiles, work.spreads),
            Phase(groups, work.factors), Phase(tiles, work.finish),
        )  # fmt: skip
    reads = site.reads([layout, None, None], layout)
    return Choice(
        cost, reads, (layout,), phases, packed, scratch=scratch, detail=f"groups of {size}"
    )


class _Norm:
    """The `emit` functions of the phases, for groups of `size` channels in images of `blocks`
    blocks. `whole` is the only phase where whole groups fill a block. Else two arrays of float32
    over (image, padded channel) lie in scratch: `sums` writes the first, which `means` turns into
    means; `spreads` writes sums of squared distances to the second, which `factors` turns into
    factors, 1 / sqrt(variance + eps); `finish` applies both."""

    def __init__(self, size: int, blocks: int, eps: float) -> None:
        self.size, self.blocks, self.eps = size, blocks, eps

    def _units(self, em: Emit, body: Callable[[View, Val, Position, Position], None]) -> None:
        """Emit `body(x, unit, image, block)` for each tile, which is one unit: one channel block of
        one image."""
        x = em.input(0)
        with em.b.loop(em.begin, em.end) as unit:
            body(x, unit, unit // self.blocks, unit % self.blocks)

    def _count(self, em: Emit) -> int:
        return self.size * prod(em.site.out.dims[2:])

    # ---- groups within a block

    def whole(self, em: Emit) -> None:
        b = em.b

        def one(x: View, unit: Val, n: Position, c: Position) -> None:
            width = x.spec.layout.block
            mean = self._within(_sum(em, x, n, c)) * (1.0 / self._count(em))
            spread = self._within(_sum(em, x, n, c, mean)) * (1.0 / self._count(em))
            factor = b.splat(1.0, F32, width) / (spread + self.eps).sqrt()
            scale, shift = ((p + c * width).load(width) for p in em.packed)
            _store(em, x, n, c, mean, factor * scale, shift)

        self._units(em, one)

    def _within(self, sums: Val) -> Val:
        """The sums of groups within a block (`size` is a power of two): each lane of the result has
        the sum of the lanes of its group."""
        step = 1
        while step < self.size:
            sums = sums + sums.shuffle(None, [k ^ step for k in range(sums.ty.lanes)])
            step *= 2
        return sums

    # ---- groups across blocks

    def _arrays(self, em: Emit) -> tuple[Ptr, Ptr, int]:
        """The two arrays in scratch (see the class), and how many elements of each belong to one
        image."""
        x = em.input(0)
        length = self.blocks * x.spec.layout.block
        first = em.scratch.cast(F32)
        return first, first + x.spec.dims[0] * length, length

    def sums(self, em: Emit) -> None:
        first, _, _ = self._arrays(em)

        def one(x: View, unit: Val, n: Position, c: Position) -> None:
            (first + unit * x.spec.layout.block).store(_sum(em, x, n, c))

        self._units(em, one)

    def means(self, em: Emit) -> None:
        self._over_groups(em, self._arrays(em)[0], lambda total: total * (1.0 / self._count(em)))

    def spreads(self, em: Emit) -> None:
        first, second, _ = self._arrays(em)

        def one(x: View, unit: Val, n: Position, c: Position) -> None:
            width = x.spec.layout.block
            mean = (first + unit * width).load(width)
            (second + unit * width).store(_sum(em, x, n, c, mean))

        self._units(em, one)

    def factors(self, em: Emit) -> None:
        def factor(total: Val) -> Val:
            spread = total * (1.0 / self._count(em)) + self.eps
            return em.b.const(1.0, F32) / spread.sqrt()

        self._over_groups(em, self._arrays(em)[1], factor)

    def _over_groups(self, em: Emit, array: Ptr, result: Callable[[Val], Val]) -> None:
        """Emit a phase whose tiles are groups of channels: each entry that a group has in `array`
        is replaced by `result` of the sum of the group's entries."""
        b, length = em.b, self._arrays(em)[2]
        groups = em.site.out.dims[1] // self.size
        with b.loop(em.begin, em.end) as group:
            start = (array + group // groups * length + group % groups * self.size).fixed()
            with b.loop(0, self.size, carry=[b.zero(F32)]) as loop:
                loop.next([loop.vars[0] + (start + loop.index).load()])
            value = result(loop.out[0])
            run(b, 0, self.size, lambda i: (start + i).store(value))

    def finish(self, em: Emit) -> None:
        b = em.b
        first, second, _ = self._arrays(em)

        def one(x: View, unit: Val, n: Position, c: Position) -> None:
            width = x.spec.layout.block
            mean, factor = ((a + unit * width).load(width) for a in (first, second))
            scale, shift = ((p + c * width).load(width) for p in em.packed)
            factor = factor * scale
            if x.spec.dims[1] % width:  # nobody wrote the entries of the padding lanes
                left = b.index(x.spec.dims[1]) - b.index(c) * width
                inside, zero = b.first_lanes(left, width), b.zero(factor.ty)
                mean, factor = inside.select(mean, zero), inside.select(factor, zero)
            _store(em, x, n, c, mean, factor, shift)

        self._units(em, one)


def _sum(em: Emit, x: View, n: Position, c: Position, mean: Val | None = None) -> Val:
    """Emit the sums of channel block c of image n over its pixels: a vector with the sum of each
    channel. With `mean`, the squared distances from it are summed instead. Each row is summed
    first, then the sums of rows."""
    b, width = em.b, x.spec.layout.block
    zero = b.zero(F32.x(width))
    step, length = x.spec.strides[-1], x.spec.spatial[-1]
    whole = length // SUMS * SUMS

    def term(at: Ptr) -> Val:
        value = at.load(width)
        if mean is None:
            return value
        value = value - mean
        return value * value

    def row(start: Ptr) -> Val:
        sums = [zero] * SUMS
        if whole:
            with b.loop(0, whole, SUMS, carry=sums) as loop:
                at = start + loop.index * step
                loop.next([s + term(at + k * step) for k, s in enumerate(loop.vars)])
            sums = loop.out
        for k in range(whole, length):
            sums[k % SUMS] = sums[k % SUMS] + term(start + k * step)
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    def level(dims: Sequence[int], index: list[Position]) -> Val:
        if not dims:
            return row(x.at(n, c, *index).fixed())
        with b.loop(0, dims[0], carry=[zero]) as loop:
            loop.next([loop.vars[0] + level(dims[1:], [*index, loop.index])])
        return loop.out[0]

    return level(x.spec.spatial[:-1], [])


def _store(em: Emit, x: View, n: Position, c: Position, mean: Val, factor: Val, shift: Val) -> None:
    """Emit y = (x - mean) * factor + shift, with the epilogue, for all pixels of channel block c of
    image n."""
    width = x.spec.layout.block

    def pixel(index: list[Position]) -> None:
        place = [n, c, *index[2:]]
        em.finish((x.at(*place).load(width) - mean).fma(factor, shift), place)

    walk_of(em, 2, len(x.spec.dims), (x,)).each(em.b, pixel)
