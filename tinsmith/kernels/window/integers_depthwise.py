"""Depthwise convolution of bytes on channel-blocked data, exact in int32.

One instruction multiplies and adds up the bytes of four taps of a kernel row, for each channel of a
block. It needs the four pixels of a channel side by side, but blocked data has the channels of a
pixel so. Four neighbouring pixels are loaded together and reordered to [channel][pixel].
"""

from __future__ import annotations

import itertools

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import product_of
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.conditions import cached
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.window.depthwise import Extent, Sums, each_block, reach, rows_read
from tinsmith.kernels.window.edges import NO_EDGES, Edges, edges_of, pack_start
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, image_of
from tinsmith.kernels.window.site import ConvSite
from tinsmith.kernels.window.tiles import Tiling, bands, cut
from tinsmith.kernels.window.weights import whole_blocks
from tinsmith.sizes import typical

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
    edges = edges_of(geo, zero)
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
        site, site.input(0), read, flops, (plan.most_bands, blocks * count), planes=2 * blocks
    )
    tiles = geo.batch * blocks * count
    return ConvSite(site, geo, w, None).choice(
        target.time(flops, read + typical(site.out.type.nbytes)),
        one_phase(tiles, lambda em: _emit(em, geo, plan, count, edges), count if near else 0),
        [
            Packed("weights", pack_taps, (w, width)),
            Packed("start", pack_start, (w, zero, edges, width, "int32")),
        ],
        unseen=(2,) if site.has(2) else (),
        by_channels=typical(geo.batch) == 1 and not near,
        detail=f"{row.name}, tile {plan}{', padding of zero points' * (edges != NO_EDGES)}",
    )


def pack_taps(w: Array, width: int) -> Array:
    """Pack int8 weights [C, 1, *taps] as [block of `width` channels][kernel row][four
    taps][channel], flat, the four taps in the bytes of an int32. Channels and taps that do not
    exist are zeros."""
    across = w.shape[-1]
    rows = whole_blocks(w, width).reshape(-1, across)
    wide = np.pad(rows, [(0, 0), (0, -across % GROUP)])
    lanes = wide.reshape(-1, width, w[0].size // across, wide.shape[1] // GROUP, GROUP)
    lanes = lanes.transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(lanes).view(np.int32).reshape(-1)


@cached(1024)
def _tiling(target: Target, geo: Geometry) -> Tiling:
    """The cheapest cut of a plane of outputs into tiles; its cost is in vector instructions. The
    outputs of a tile share reordered pixels, above all in tiles of several rows."""
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
    """Vector instructions of a tile of high x wide outputs: to reorder pixels, to multiply, to
    finish results, and to begin the tile."""
    groups = -(-geo.kernel[2] // GROUP)
    lines = reach(high, geo.stride[1], geo.kernel[1], geo.dilation[1])
    each = geo.kernel[1] * groups + ORDER
    return ORDER * lines * reach(wide, geo.stride[2], groups, GROUP) + high * wide * each + START


def _emit(em: Emit, geo: Geometry, plan: Tiling, count: int, edges: Edges) -> None:
    """Emit the kernel; its tiles are those of `each_block`."""
    line, width = image_of(em.input(0), geo).step[1], block_of(em.target)
    each = geo.kernel[1] * -(-geo.kernel[2] // GROUP) * width

    def block_sums(block: Val | int) -> Sums:
        weights = (em.packed[0].cast(I32) + block * each).fixed()
        begin = (em.packed[1].cast(I32) + block * (width * edges.places)).fixed()

        def sums(corner: Ptr, first: tuple[Val | int, Val | int], extent: Extent) -> list[Val]:
            start = edges.start(em.b, begin, width, first, extent)
            return _sums(em, geo, corner, line, weights, start, extent[1])

        return sums

    each_block(em, geo, plan, (-(-geo.channels // width), count), block_sums)


def _sums(
    em: Emit, geo: Geometry, corner: Ptr, line: int, weights: Ptr, start: list[Val], wide: int
) -> list[Val]:
    """Emit all taps of a tile whose rows have `wide` outputs; returns its sums, row by row, added
    to `start`. The first window begins at `corner`, the channel block's weights at `weights`; input
    rows are `line` elements apart."""
    width, acc = block_of(em.target), list(start)
    row = product_of(em.target, "uint8", "int8")
    groups = -(-geo.kernel[2] // GROUP)
    for i, read in rows_read(geo, len(start) // wide):
        ordered: dict[int, Val] = {}
        for p in range(wide):
            for g in range(groups):
                place = p * geo.stride[2] + g * GROUP
                if place not in ordered:
                    ordered[place] = _ordered(corner + (i * line + place * width), width)
                for q, k in read:
                    w = (weights + (k * groups + g) * width).load(width)
                    acc[q * wide + p] = row.step(acc[q * wide + p], ordered[place], w)
    return acc


def _ordered(at: Ptr, width: int) -> Val:
    """Load the bytes of four pixels, [pixel][channel] in memory, as 32-bit lanes, one for each
    channel, with its four bytes. First whole lanes change places, then bytes within 16."""
    lanes = at.cast(I32).load(width)
    each = width // GROUP  # lanes of a pixel
    if each > 1:
        lanes = lanes.shuffle(None, [p * each + g for g in range(each) for p in range(GROUP)])
    sixteen = [GROUP * p + c for c in range(GROUP) for p in range(GROUP)]
    places = [GROUP * GROUP * g + i for g in range(each) for i in sixteen]
    own = lanes.bitcast(at.elem.x(GROUP * width)).shuffle(None, places)
    return own.bitcast(I32.x(width))
