"""Direct convolution of channel-blocked data, with any kernel size, stride, dilation and padding.
Grouped convolutions use it too.

The accumulators of a tile stay in registers while the products of all input channels and taps are
added. The input is read with the halo that its windows need, so there is no code for edges. In a
1x1 convolution (`Geometry.is_pointwise`) all pixels of an image are treated as one row, if no halo
lies between the rows of its tensors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tinsmith.codegen.target import Target, overlap
from tinsmith.conditions import by_formula
from tinsmith.kernels._kernel import Choice, Emit, Packed, Phase, Site, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.convolve import convolve, halved
from tinsmith.kernels.window.geometry import Geometry, image_of, steps
from tinsmith.kernels.window.order import Order, order_of
from tinsmith.kernels.window.panels import PanelPlace, Tiles, Which, each_panel
from tinsmith.kernels.window.site import ConvSite, dense_site
from tinsmith.kernels.window.tiles import PARALLEL_FLOPS, Sink, panels, tiling
from tinsmith.kernels.window.ways import Blocked, blocked, following
from tinsmith.kernels.window.weights import channel_blocks, pack_bias, pack_groups
from tinsmith.sizes import typical

EFFICIENCY = 0.98  # of the peak, beside what the tiling counts (estimated)
BLOCKS_EARLIER = 2
"""How many channel blocks ahead the pixels of a 1x1 convolution are prefetched. The blocks of a
pixel lie pages apart, and processors do not prefetch across pages by themselves (estimated)."""


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_direct(site: Site) -> Choice:
    """Direct convolution on channel-blocked data, bias in the initial accumulators."""
    return direct(dense_site(site))


def direct(conv: ConvSite) -> Choice:
    """The `Choice` of a direct convolution. If there are several groups, the caller has checked
    that the inputs and outputs of each fill whole blocks."""
    site, geo, w, groups = conv.site, conv.geo, conv.weights, conv.groups
    rows, cols = rows_of(geo)
    way = way_of(site.target, geo, groups)
    cut, depth = way.panels, way.depth * geo.taps
    planes = typical(geo.batch * groups * (1 if geo.is_pointwise else geo.out[0]))
    flops = 2.0 * conv.width * cut.cost * planes * depth
    plan = tiling(site.target, rows, cols, way.lanes, depth)
    order = order_of(site, geo, groups, cut.total, plan.most_bands, w.nbytes, flops)
    weights = 4.0 * w.size / site.target.weights_rate()
    arithmetic = overlap(site.target.time(flops, 0, EFFICIENCY), weights)
    return conv.choice(
        max(conv.time(flops, EFFICIENCY), arithmetic) + order.again / site.target.l3_bandwidth,
        phases(site.threads, geo, way, order, flops),
        [
            Packed("weights", pack_groups, (w, cut, way.blocks, groups)),
            *conv.packed_bias(pack_bias, cut, groups),
        ],
        by_channels=geo.batch == 1 and not order.near and order.parts == 1,
        detail=f"tile {plan}x{cut}",
    )


def phases(
    threads: int, geo: Geometry, way: Blocked, order: Order, flops: float
) -> tuple[Phase, ...]:
    """The phases of a direct convolution of `flops` operations: one, or two where threads share
    panels and the last panel is narrower than the others. Tiles of that panel take less time; in a
    phase of their own they are shared evenly too. No thread waits between the two phases."""

    def emit(em: Emit, which: Which = "all") -> None:
        emit_direct(em, geo, way, order, which)

    images, cut = geo.batch * order.count, way.panels
    shared = (
        1 < threads <= typical(images) and not order.near and order.parts == 1 and way.groups == 1
    )
    if shared and cut.count and cut.tail and flops > PARALLEL_FLOPS:
        main = Phase(images * cut.count, partial(emit, which="main"), barrier=False)
        return main, Phase(images, partial(emit, which="tail"))
    return one_phase(order.tiles, emit, images if order.near else 0)


def rows_of(geo: Geometry) -> tuple[int, int]:
    """The (rows, columns) of outputs that are cut into tiles: (height, width) of one depth, or all
    pixels as one row, (1, depth * height * width), if the convolution is pointwise."""
    return (1, prod(geo.out)) if geo.is_pointwise else geo.out[1:]


def way_of(target: Target, geo: Geometry, groups: int = 1) -> Blocked:
    """How a direct convolution cuts the input channels of each of its groups into blocks, and the
    output channels into panels."""
    blocks = channel_blocks(geo.channels // groups, block_of(target))
    depth = blocks.padded * geo.taps
    cut = panels(target, geo.out_channels // groups, *rows_of(geo), depth)
    return blocked(cut, blocks, groups, BLOCKS_EARLIER if geo.taps == 1 else 0)


def flattened(em: Emit, geo: Geometry) -> Geometry:
    """`geo`, or, if the convolution is pointwise and all pixels of an image lie one after the other
    in memory, the geometry with them as one row."""
    if not lies_flat(em, geo):
        return geo
    row = (1, 1, prod(geo.out))
    return replace(geo, size=row, out=row)


def lies_flat(em: Emit, geo: Geometry) -> bool:
    """Whether a convolution is pointwise, and no halo lies between the rows of its operands."""
    for view in (em.input(0), em.outs[0], *em.extras):
        _, _, (plane, row, pixel) = steps(view.spec)
        with by_formula():
            flat_rows = geo.rank < 2 or row == pixel * geo.out[2]
            flat_planes = geo.rank < 3 or plane == row * geo.out[1]
        if not (flat_rows and flat_planes):
            return False
    return geo.is_pointwise


def emit_direct(em: Emit, geo: Geometry, way: Blocked, order: Order, which: Which) -> None:
    """Emit the kernel, or its tiles for the panels of `which`; `each_panel` numbers the tiles."""
    geo = flattened(em, geo)
    image = image_of(em.input(0), geo)

    def body(at: PanelPlace) -> None:
        x = image.corner(at.n, at.group, way.blocks.count)
        sums = way.sums(em, geo, replace(at.panel, lanes=halved(em.target, at.panel.lanes)))
        sums = replace(sums, ahead=following(em.target, way, geo.taps, order.passes))
        convolve(em, geo, at.band, sums, x, Sink(em, geo).at(at.n, at.panel.block))

    tiles = Tiles(geo.batch, order.count, order.parts)
    each_panel(em, way.panels, way.groups, tiles, body, which)
