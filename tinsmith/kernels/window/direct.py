"""Direct convolution on channel-blocked data: any kernel, stride, dilation and padding.

The input is read with the halo that its windows need, so there is no edge code. A tile keeps
pixels x output vectors in registers through all input channels and taps; 1x1 convolutions run
over all pixels as one row where nothing lies between the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Protocol

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target, overlap
from tinsmith.kernels._kernel import (
    Choice,
    Emit,
    Packed,
    Phase,
    Site,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.rows import run
from tinsmith.kernels.window.contract import HERE, Fetch, Level, Tap, contract, initial
from tinsmith.kernels.window.geometry import Geometry, Triple, steps
from tinsmith.kernels.window.order import Order, PanelPlace, Which, each_panel, order_of
from tinsmith.kernels.window.site import ConvSite, dense_site
from tinsmith.kernels.window.tiles import (
    PARALLEL_FLOPS,
    Panels,
    Sink,
    Tiling,
    panels,
    pieces_before,
    sweep,
    tiling,
)
from tinsmith.kernels.window.weights import ChannelBlocks, channel_blocks, pack_bias, pack_groups
from tinsmith.records import dataclass

EFFICIENCY = 0.98
SPARE = 4  # registers beside those of sums and weights, where taps share what they read
EARLIER = 2048  # elements by which a stream of weights is asked for before it is used
BLOCKS_EARLIER = 2  # by which a pixel's channels are asked for: blocks lie pages apart


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_direct(site: Site) -> Choice:
    """Direct convolution on channel-blocked data, bias in the initial accumulators."""
    return direct(dense_site(site))


def direct(conv: ConvSite) -> Choice:
    """The choice for as many convolutions side by side as there are groups; with more than one, the
    channels of each fill whole blocks on both sides."""
    site, geo, w, groups = conv.site, conv.geo, conv.weights, conv.groups
    rows, cols = rows_of(geo)
    blocks, cut = cut_channels(site.target, geo, groups)
    depth = blocks.padded * geo.taps
    planes = geo.batch * groups * (1 if geo.is_pointwise else geo.out[0])
    flops = 2.0 * conv.width * cut.cost * planes * depth
    plan = tiling(site.target, rows, cols, cut.main if cut.count else cut.tail, depth)
    order = order_of(site, geo, groups, cut.total, plan.most_bands, w.nbytes, flops)
    weights = 4.0 * w.size / site.target.weights_rate()
    arithmetic = overlap(site.target.time(flops, 0, EFFICIENCY), weights)
    return conv.choice(
        max(conv.time(flops, EFFICIENCY), arithmetic) + order.again / site.target.l3_bandwidth,
        phases(site.threads, geo, cut, blocks, groups, order, flops),
        [
            Packed("weights", pack_groups, (w, cut, blocks, groups)),
            *conv.packed_bias(pack_bias, cut, groups),
        ],
        by_channels=geo.batch == 1 and not order.near and order.parts == 1,
        detail=f"tile {plan}x{cut}",
    )


def phases(
    threads: int, geo: Geometry, cut: Panels, blocks: ChannelBlocks, groups: int, order: Order,
    flops: float,
) -> tuple[Phase, ...]:  # fmt: skip
    """One, or two that run side by side where threads share the panels and the last one has less to
    do, but tiles for all threads: each then gets its share of either kind."""

    def emit(em: Emit, which: Which = "all") -> None:
        emit_direct(em, geo, cut, blocks, groups, order, which)

    images = geo.batch * order.count
    shared = 1 < threads <= images and not order.near and order.parts == 1 and groups == 1
    if shared and cut.count and cut.tail and flops > PARALLEL_FLOPS:
        main = Phase(images * cut.count, partial(emit, which="main"), barrier=False)
        return main, Phase(images, partial(emit, which="tail"))
    return one_phase(order.tiles, emit, images if order.near else 0)


def rows_of(geo: Geometry) -> tuple[int, int]:
    """Rows of a plane of outputs, and their length: a pointwise convolution's image is one row."""
    return (1, prod(geo.out)) if geo.is_pointwise else geo.out[1:]


def cut_channels(target: Target, geo: Geometry, groups: int = 1) -> tuple[ChannelBlocks, Panels]:
    """The blocks of a group's input channels, and the panels of its output channels."""
    blocks = channel_blocks(geo.channels // groups, block_of(target))
    depth = blocks.padded * geo.taps
    return blocks, panels(target, geo.out_channels // groups, *rows_of(geo), depth)


def flattened(em: Emit, geo: Geometry) -> Geometry:
    """The geometry of a pointwise convolution with all pixels in one row, where that is how they
    lie."""
    if not lies_flat(em, geo):
        return geo
    row = (1, 1, prod(geo.out))
    return replace(geo, size=row, out=row)


def lies_flat(em: Emit, geo: Geometry) -> bool:
    """Whether a convolution is pointwise, and nothing lies between the rows of its operands."""
    views = [em.ins[0], em.outs[0], *em.extras]
    for view in views:
        assert view is not None
        _, _, (plane, row, pixel) = steps(view.spec, geo.rank)
        flat_rows = geo.rank < 2 or row == pixel * geo.out[2]
        flat_planes = geo.rank < 3 or plane == row * geo.out[1]
        if not (flat_rows and flat_planes):
            return False
    return geo.is_pointwise


def emit_direct(
    em: Emit,
    geo: Geometry,
    cut: Panels,
    blocks: ChannelBlocks,
    groups: int,
    order: Order,
    which: Which,
) -> None:
    """Tiles are those of `each_panel`."""
    source = em.ins[0]
    assert source is not None
    geo = flattened(em, geo)
    batch, plane, step = steps(source.spec, geo.rank)
    back = -sum(p * s for p, s in zip(geo.begin, step, strict=True))

    def body(at: PanelPlace) -> None:
        x = source.pointer + at.n * batch + at.group * (blocks.count * plane) + back
        weights = em.packed[0] + at.channel * (blocks.count * blocks.stored * geo.taps)
        bias = em.packed[1] + at.channel if len(em.packed) > 1 else None
        at = replace(at, lanes=halved(em.target, at.lanes))
        early = BLOCKS_EARLIER if geo.taps == 1 else 0
        reduce = over_blocks(em, geo, blocks, at.lanes, early)
        depth = blocks.padded * geo.taps
        sink = Sink(em, geo).at(at.n, at.block)
        ahead = following(em.target, cut, blocks, geo.taps, order.passes)
        convolve(em, geo, at, x, weights, bias, sink, depth, reduce, ahead=ahead)

    each_panel(em, cut, geo.batch, order.count, groups, body, order.parts, which)


MOST_HALVES = 3


def halved(target: Target, lanes: tuple[int, ...]) -> tuple[int, ...]:
    """A narrow panel that ends in half a vector as halves only: one width for all multiply-adds
    keeps two pipes busy that a wide one takes together."""
    half = lanes[-1]
    count = sum(lanes) // half
    if target.pipes > 1 or half == lanes[0] or count > MOST_HALVES:
        return lanes
    return (half,) * count


def joined(values: list[Val], lanes: tuple[int, ...], width: int) -> list[Val]:
    """The accumulators of all pixels with neighbouring halves as whole vectors."""
    if len(lanes) == 1 or lanes[0] == width:
        return values
    found: list[Val] = []
    for p in range(0, len(values), len(lanes)):
        parts = values[p : p + len(lanes)]
        for low, high in zip(parts[::2], [*parts[1::2], None], strict=False):
            found.append(low if high is None else low.shuffle(high, range(width)))
    return found


Reduction = Callable[[Ptr, Ptr, list[Val], "list[Val | int]", "Fetch | None"], list[Val]]
"""Adds all products of a tile: from its first input, its first weights, the accumulators, the
offsets of its pixels from the first one, and what to prefetch meanwhile."""


@dataclass(frozen=True)
class Following:
    """The weights of the next panel, `distance` elements behind those of this one: each of the
    tiles, of which there are `among` times fewer before that panel's turn, prefetches its share of
    the `lines` that a loop body passes by. Where that would be all of them, or the next panel is
    too far (`distance` is 0), a tile asks for what it needs itself, a little earlier."""

    distance: int
    lines: int
    among: int

    def of(self, plan: Tiling, r: Val | int, c: Val | int, high: int, wide: int) -> Fetch:
        """What the tile at (r, c) prefetches."""
        share = -(-self.lines * self.among // (plan.row_units * plan.col_units))
        if share >= self.lines or not self.distance:
            return Fetch(EARLIER, self.lines)
        down = pieces_before(plan.rows, r, high)
        number = down * plan.col_units + pieces_before(plan.cols, c, wide)
        return Fetch(number * share % self.lines * LINE + self.distance, share)


def following(
    target: Target, cut: Panels, blocks: ChannelBlocks, taps: int, among: int
) -> Following | None:
    """What the tiles of a panel prefetch, or None where the weights are near."""
    lanes = cut.main if cut.count else cut.tail
    panel = blocks.count * blocks.stored * taps * sum(lanes)
    if 4 * panel * cut.total <= target.l2 // 4:
        return None
    near = 4 * panel <= target.l2 // 4  # so that it pushes out nothing that is in use
    return Following(panel if near else 0, -(-blocks.step * sum(lanes) // LINE), among)


def over_blocks(
    em: Emit,
    geo: Geometry,
    blocks: ChannelBlocks,
    lanes: tuple[int, ...],
    early: int = 0,
    sides: int = 1,
) -> Reduction:
    """The reduction over channel blocks, taps, and the channels of a block, outermost first. Pixels
    are prefetched `early` blocks before their turn. With `sides`, a channel is that of so many
    groups side by side."""
    b, source = em.b, em.ins[0]
    assert source is not None
    _, plane, step = steps(source.spec, geo.rank)
    stored = blocks.stored * sum(lanes)
    levels = [Level(blocks.count, plane, geo.taps * stored)]
    levels += tap_levels(geo, step, stored)

    def reduce(
        x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int], fetch: Fetch | None
    ) -> list[Val]:
        outer, taps, count = levels, HERE, blocks.step
        if sides > 1 and _share_reads(em.target, levels[-1], pixels, lanes):
            last, outer, count = levels[-1], levels[:-1], 1
            assert isinstance(last.count, int)
            taps = tuple(Tap(k * last.input, k * last.weights) for k in range(last.count))
        return contract(
            b, x, w, acc, pixels, lanes, outer, blocks.of(b), count, channel_stride=sides,
            fetch=fetch, early=early * plane, sides=sides, taps=taps,
        )  # fmt: skip

    return reduce


def _share_reads(
    target: Target, last: Level, pixels: Sequence[Val | int], lanes: tuple[int, ...]
) -> bool:
    """Whether taps of a row see each other's pixels, and registers hold the weights of all."""
    if not isinstance(last.count, int) or not all(isinstance(p, int) for p in pixels):
        return False
    places = {p + k * last.input for p in pixels for k in range(last.count)}  # type: ignore[operator]
    registers = len(lanes) * (len(pixels) + last.count)
    return len(places) < len(pixels) * last.count and registers <= target.registers - SPARE


def tap_levels(geo: Geometry, step: Triple, stored: int) -> list[Level]:
    """The loops over taps, each of which has `stored` weights."""
    return [
        Level(geo.kernel[i], geo.dilation[i] * step[i], prod(geo.kernel[i + 1 :]) * stored)
        for i in range(3)
    ]


def convolve(
    em: Emit,
    geo: Geometry,
    at: PanelPlace,
    x: Ptr,
    w: Ptr,
    bias: Ptr | None,
    sink: Place,
    depth: int,
    reduce: Reduction,
    spread: Triple = (1, 1, 1),
    ahead: Following | None = None,
) -> None:
    """A band of one image's outputs for one panel; x is at the first window's first input.

    `depth` is the number of products of an output. Output (d, r, c) goes to (d, r, c) * spread,
    where `sink` takes whole blocks also of what the panel computes in halves.
    """
    b, source, lanes = em.b, em.ins[0], at.lanes
    assert source is not None
    step = steps(source.spec, geo.rank)[2]
    stride = [k * s for k, s in zip(geo.stride, step, strict=True)]
    plan = tiling(em.target, geo.out[1], geo.out[2], lanes, max(1, depth))
    x, w = x.fixed(), w.fixed()

    def planes(d: Val | int) -> None:
        def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
            spots = grid(high, wide)
            fetch = None if ahead is None else ahead.of(plan, r, c, high, wide)
            if plan.wrap:
                spots = [((c + j) // plan.wrap, (c + j) % plan.wrap) for j in range(wide)]
                r = c = 0
            corner = (x + d * stride[0] + r * stride[1] + c * stride[2]).fixed()
            pixels = [i * stride[1] + j * stride[2] for i, j in spots]
            done = initial(b, bias, len(pixels), lanes)
            if geo.taps:
                done = reduce(corner, w, done, pixels, fetch)
            done = joined(done, lanes, block_of(em.target))
            place = sink.at(0, 0, *(p * s for p, s in zip((d, r, c), spread, strict=True)))
            store_tile(place, done, spots, len(done) // len(spots), spread)

        sweep(b, plan, at.band, at.count, tile)

    run(b, 0, geo.out[0], planes)


class Place(Protocol):
    """Where a tile's vectors go: `Sink`, or what behaves like it."""

    def at(self, *index: Val | int) -> Place: ...
    def put(self, value: Val, *index: Val | int) -> None: ...


def store_tile(
    sink: Place,
    values: Sequence[Val],
    spots: Iterable[tuple[Val | int, Val | int]],
    vectors: int,
    spread: Triple = (1, 1, 1),
) -> None:
    """Finish the accumulators of a tile whose pixels are at these rows and columns from `sink`."""
    for p, (i, j) in enumerate(spots):
        far = isinstance(i, Val) or isinstance(j, Val)
        place, i, j = (
            (sink.at(0, 0, 0, i * spread[1], j * spread[2]), 0, 0) if far else (sink, i, j)
        )
        for o in range(vectors):
            place.put(values[p * vectors + o], 0, o, 0, i * spread[1], j * spread[2])


def grid(high: int, wide: int) -> list[tuple[Val | int, Val | int]]:
    """The rows and columns of a rectangle of pixels."""
    return list(itertools.product(range(high), range(wide)))
