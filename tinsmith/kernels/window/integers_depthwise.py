"""Depthwise convolution of bytes on channel-blocked data, exact in int32.

A product of bytes adds up four taps of a kernel row at once, for each channel of a block. Blocked
data has the channels of a pixel side by side, and four neighbouring pixels one after the other:
their bytes are loaded together and put in the order [channel][pixel].
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import product_of
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import (
    Choice,
    Emit,
    Layout,
    Packed,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.convolve import grid, store_tile
from tinsmith.kernels.window.edges import NO_EDGES, Edges, edges_of, pack_start
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, image_of
from tinsmith.kernels.window.tiles import Sink, Tiling, bands, cut, digits, sweep
from tinsmith.sizes import typical

Array = np.ndarray[Any, Any]

GROUP = 4  # taps of a product
MOST_TAPS = 49  # of a kernel, which are all unrolled (estimated)
WIDEST = 4  # outputs of a tile's row
ORDER, START = 3.0, 6.0  # vector instructions of ordering four pixels, and of a tile (estimated)
STEPS = 6.0
"""Vector instructions for each product of four taps: it, its share of loading and ordering pixels,
and of what becomes of the sums. Estimated."""


@kernel("ConvInteger", Tier.SHAPED, dtypes="uint8")
def conv_integer_depthwise(site: Site) -> Choice:
    """Depthwise convolution of bytes, exact in int32, four taps at a time."""
    geo, target, width = conv_geometry(site), site.target, block_of(site.target)
    row = product_of(target, site.input(0).dtype.name, site.input(1).dtype.name)
    if row.group != GROUP or row.left.is_signed:
        raise Skip(
            f"{row.name} adds up {row.group} products of {row.left.kind} by {row.right.kind}"
        )
    if not site.attr("group") == geo.channels == geo.out_channels:
        raise Skip(f"{site.attr('group')} groups of {geo.channels} to {geo.out_channels} channels")
    w = site.const(1, "the weights")
    zero = int(site.const(2).reshape(())) if site.has(2) else 0
    if w.dtype != np.int8 or (site.has(3) and site.const(3).any()):
        raise Skip("the weights are not int8 without a zero point")
    edges = edges_of(geo) if zero and any(map(any, geo.halo)) else NO_EDGES
    if geo.dilation[2] > 1 and geo.kernel[2] > 1:
        raise Skip("the taps of a row are not neighbours")
    if geo.kernel[0] > 1 or geo.taps > MOST_TAPS:
        raise Skip(f"the kernel has {geo.taps} taps")
    blocks, plan = -(-geo.channels // width), _tiling(target, geo)
    groups = -(-geo.kernel[2] // GROUP)
    flops = STEPS * typical(geo.points) * blocks * width * geo.kernel[1] * groups
    read = typical(site.input(0).type.nbytes)
    count = bands(geo.batch * blocks, plan.most_bands, site.threads, flops)
    near = typical(geo.batch) == 1 and by_positions(
        site, site.input(0), read, flops, plan.most_bands, blocks * count,
        planes=2 * blocks,
    )  # fmt: skip
    layout = Layout(width)
    tiles = geo.batch * blocks * count
    return Choice(
        cost=target.time(flops, read + typical(site.out.type.nbytes)),
        reads=site.reads([Layout(width, geo.halo), *([None] * (len(site.inputs) - 1))], layout),
        writes=(layout,),
        phases=one_phase(
            tiles, lambda em: _emit(em, geo, plan, count, edges), count if near else 0
        ),
        packed=(
            Packed("weights", pack_taps, (w, width)),
            Packed("start", pack_start, (w, zero, edges, width, "int32")),
        ),
        unseen=(2,) if site.has(2) else (),
        by_channels=typical(geo.batch) == 1 and not near,
        detail=f"{row.name}, tile {plan}{', padding of zero points' * (edges != NO_EDGES)}",
    )


def pack_taps(w: Array, width: int) -> Array:
    """[C, 1, ...taps] as [block][row of the kernel][group of taps][channel][tap of the group]."""
    channels, across = len(w), w.shape[-1]
    rows, groups = w[0].size // across, -(-across // GROUP)
    wide = np.zeros((-(-channels // width) * width, rows, groups * GROUP), np.int8)
    wide[:channels, :, :across] = w.reshape(channels, rows, across)
    lanes = wide.reshape(-1, width, rows, groups, GROUP).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(lanes).view(np.int32).reshape(-1)


@cached(1024)
def _tiling(target: Target, geo: Geometry) -> Tiling:
    """The best tiling; its cost is in vector instructions. Neighbouring outputs share what is put
    in order, above all in high tiles."""
    most = 16 if target.registers >= 32 else 6
    _, rows, cols = map(typical, geo.out)
    best: tuple[float, int, int] | None = None
    for high, wide in itertools.product(range(1, most + 1), range(1, WIDEST + 1)):
        if high * wide > most or (high > rows and high > 1) or (wide > cols and wide > 1):
            continue
        down, across = cut(rows, high), cut(cols, wide)
        cost = sum(
            n * m * _tile_cost(geo, h, w) for (n, h), (m, w) in itertools.product(down, across)
        )
        cost *= 1 + 0.02 * (len(down) * len(across) - 1)
        if best is None or cost < best[0]:
            best = cost, high, wide
    assert best is not None
    cost, high, wide = best
    return Tiling(cut(geo.out[1], high), cut(geo.out[2], wide), cost)


def _tile_cost(geo: Geometry, high: int, wide: int) -> float:
    """Vector instructions of a tile: to put pixels in order, products, what becomes of results, and
    the tile's start."""
    groups = -(-geo.kernel[2] // GROUP)
    lines = {q * geo.stride[1] + k * geo.dilation[1] for q in range(high)
             for k in range(geo.kernel[1])}  # fmt: skip
    places = {p * geo.stride[2] + g * GROUP for p in range(wide) for g in range(groups)}
    each = geo.kernel[1] * groups + ORDER
    return ORDER * len(lines) * len(places) + high * wide * each + START


def _emit(em: Emit, geo: Geometry, plan: Tiling, count: int, edges: Edges) -> None:
    """Emit the kernel; its tiles are (batch, channel block, band), the band innermost."""
    b, image, width = em.b, image_of(em.input(0), geo), block_of(em.target)
    blocks = -(-geo.channels // width)
    each = geo.kernel[1] * -(-geo.kernel[2] // GROUP) * width
    with b.loop(em.begin, em.end) as t:
        band, block, n = digits(t, count, blocks)
        x = image.corner(n, block)
        sink = Sink(em, geo).at(n, block)
        weights = (em.packed[0].cast(I32) + block * each).fixed()
        begin = (em.packed[1].cast(I32) + block * (width * edges.places)).fixed()

        def plane_of(d: Val | int) -> None:
            def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
                corner = image.window(x, d, r, c)
                start = edges.start(b, begin, width, (r, c), (high, wide))
                sums = _sums(em, geo, corner, image.step[1], weights, start, wide)
                store_tile(sink.at(0, 0, d, r, c), sums, grid(high, wide), 1)

            sweep(b, plan, band, count, tile)

        run(b, 0, geo.out[0], plane_of)


def _sums(
    em: Emit, geo: Geometry, corner: Ptr, line: int, weights: Ptr, start: list[Val], wide: int
) -> list[Val]:
    """The sums of a tile with `wide` outputs in a row, whose first window begins at `corner`; input
    rows are `line` elements apart. `start` are the accumulators, `weights` those of the block."""
    width, acc, high = block_of(em.target), list(start), len(start) // wide
    row = product_of(em.target, "uint8", "int8")
    (_, down, across), (_, below, _) = geo.stride, geo.dilation
    groups = -(-geo.kernel[2] // GROUP)
    for i in range((high - 1) * down + (geo.kernel[1] - 1) * below + 1):
        taps = {}
        for q in range(high):
            k, off = divmod(i - q * down, below)
            if not off and 0 <= k < geo.kernel[1]:
                taps[q] = k
        if not taps:
            continue
        ordered: dict[int, Val] = {}
        for p in range(wide):
            for g in range(groups):
                place = p * across + g * GROUP
                if place not in ordered:
                    ordered[place] = _ordered(corner + (i * line + place * width), width)
                for q, k in taps.items():
                    w = (weights + (k * groups + g) * width).load(width)
                    acc[q * wide + p] = row.step(acc[q * wide + p], ordered[place], w)
    return acc


def _ordered(at: Ptr, width: int) -> Val:
    """The bytes of four pixels, [pixel][channel] in memory, as a lane of four for each channel:
    first whole lanes change places, then bytes within four of these."""
    lanes = at.cast(I32).load(width)
    each = width // GROUP  # lanes of a pixel
    if each > 1:
        lanes = lanes.shuffle(None, [p * each + g for g in range(each) for p in range(GROUP)])
    sixteen = [GROUP * p + c for c in range(GROUP) for p in range(GROUP)]
    places = [GROUP * GROUP * g + i for g in range(each) for i in sixteen]
    own = lanes.bitcast(at.elem.x(GROUP * width)).shuffle(None, places)
    return own.bitcast(I32.x(width))
