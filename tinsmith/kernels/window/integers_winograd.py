"""Convolutions of bytes, 3x3 of stride 1, by Winograd's method F(2x2, 3x3), exact in int32.

A tile of 2x2 results takes 16 products for each pair of channels rather than 36. Along one axis

    y0, y1 = m0 + m1 + m2, m1 - m2 - m3,   4 y = A (U * V) A'
    v = x0 - x2, x1 + x2, x2 - x1, x1 - x3,   u = 2 w0, w0 + w1 + w2, w0 - w1 + w2, 2 w2

where u is twice what it is for floats, so that all are whole numbers: v has 11 bits, u 12, and
what comes out is a multiple of 4. Sums are modulo 2^32, in which 4 y fits.

Phases: the input is packed with its padding, tiles of it are transformed, and a panel of channels
at a time is multiplied and transformed back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import PRODUCTS, packed_lanes, product_of
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.dot.zeros import known, side_of
from tinsmith.kernels.layout import LINE, Layout, block_of
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.geometry import conv_geometry
from tinsmith.kernels.window.integers_pack import pack_input
from tinsmith.kernels.window.integers_plan import Plan, cut_groups
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]

TILE, WINDOW = 2, 4  # extents of a tile of results, and of the input that it needs
POINTS = WINDOW * WINDOW  # products of a tile
SCALE = 2  # log2 of what results are too large by
MOST = (1 << 31) // (36 * 255 * 255)
"""Input channels up to which 4 y fits into 32 bits, whatever the bytes are."""
STAY = 2
"""Second-level caches that transformed tiles and products may fill while panels of weights, which
take more, pass by. Estimated."""
AROUND = 3.0
"""Vector instructions for each vector of transformed input or of products, to make it or to use it.
Estimated."""


@dataclass(frozen=True)
class Tiles:
    """How the results of a convolution are cut; distances are in lanes.

    high, wide   tiles of an image along its axes
    band         rows of tiles that are multiplied together
    first        where transformed tiles begin in scratch: [point][image][tile][lane]
    point        from a point's tiles to the next point's
    """

    plan: Plan
    high: int
    wide: int
    band: int
    first: int
    point: int

    @property
    def bands(self) -> int:
        return self.high // self.band

    @property
    def together(self) -> int:
        """Tiles that are multiplied together."""
        return self.band * self.wide

    @property
    def lanes(self) -> int:
        return self.plan.cut.lanes


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_integer_winograd(site: Site) -> Choice:
    """Winograd's F(2x2, 3x3) on bytes, exact in int32."""
    geo, target = conv_geometry(site), site.target
    x, w = site.input(0), site.const(1, "the weights")
    row, block = product_of(target, x.dtype.name, w.dtype.name), block_of(target)
    if not row.centred:
        raise Skip(f"{row.name} multiplies bytes, which transformed input does not fit")
    if geo.kernel != (1, 3, 3) or geo.stride[1:] != (1, 1) or geo.dilation[1:] != (1, 1):
        raise Skip("it is not 3x3 of stride 1")
    if site.attr("group") > 1 or geo.channels % block or geo.channels > MOST:
        raise Skip(f"{site.attr('group')} groups of {geo.channels} channels: not one of whole "
                   f"blocks, at most {MOST}")  # fmt: skip
    zero = site.const(3) if site.has(3) else None
    cut = cut_groups(geo, 1, row, block)
    left, right = side_of(site, 0, row, 1), side_of(site, 1, row, geo.out_channels)
    high, wide = -(-geo.out[1] // TILE), -(-geo.out[2] // TILE)
    band = _band(STAY * target.l2, high, wide * POINTS * 4 * (cut.lanes + 2 * block))
    tiling = choose(target, band * wide, cut.columns, cut.lanes, most_vectors=row.vectors(target))
    plan = Plan(geo, cut, row, tiling, left, right, 1, False, block, True, False, False)
    beyond = (plan.size[2] + WINDOW) * cut.lanes  # of the last tiles, where extents are odd
    first = -(-(plan.weights_at + beyond) // LINE) * LINE
    point = (-(-geo.batch * high * wide * cut.lanes // LINE) + 1) * LINE
    tiles = Tiles(plan, high, wide, band, first, point)
    count = geo.batch * high * wide * POINTS
    flops = 2.0 * count * cut.lanes * row.group * cut.columns / row.rate
    flops += AROUND * count * (cut.lanes + cut.columns)
    moved = x.type.nbytes + site.out.type.nbytes + 4.0 * POINTS * cut.lanes * cut.columns
    layout = Layout(block)
    return Choice(
        cost=target.time(flops, moved, tiling.efficiency) + 1e-6,
        reads=site.reads([layout, None, PLAIN if site.has(2) else None, None][: len(site.inputs)],
                         layout),
        writes=(layout,),
        phases=(
            Phase(plan.images * plan.size[1], lambda em: pack_input(em, plan)),
            Phase(geo.batch * high, lambda em: _transform(em, tiles)),
            Phase(geo.batch * tiles.bands * tiling.columns.count, lambda em: _multiply(em, tiles)),
        ),
        packed=(Packed("weights", pack_weights, (w, zero, row.name, tiling)),),
        workspace=4 * POINTS * tiles.together * tiling.columns.size,
        scratch=4 * (first + POINTS * point),
        detail=f"{row.name}, {tiling}, {tiles.bands} bands",
    )  # fmt: skip


def _band(room: int, high: int, nbytes: int) -> int:
    """How many rows of tiles, of `nbytes` bytes each, are multiplied together: the largest divisor
    of `high` for which they fit `room` bytes, or 1."""
    return max((n for n in range(1, high + 1) if high % n == 0 and n * nbytes <= room), default=1)


def pack_weights(w: Array, zero: Array | None, name: str, tiling: Tiling) -> Array:
    """The weights w [outputs, inputs, 3, 3], less their zero points, as 4 G w G' in the order
    [panel][point][lane][columns of the panel]; lanes are those of the row `name`."""
    row = PRODUCTS[name]
    outputs, inputs = w.shape[:2]
    flat = known(w.reshape(outputs, -1).T, zero, row).elements.T
    taps = flat.reshape(outputs, inputs, 3, 3)
    g = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
    points = np.einsum("ia,jb,ocab->ijco", g, g, taps).reshape(POINTS, inputs, outputs)
    wide = np.zeros((POINTS, inputs, tiling.columns.padded), np.int64)
    wide[..., :outputs] = points
    lanes = np.stack([packed_lanes(point, row) for point in wide])
    return pack_columns(lanes.reshape(-1, tiling.columns.padded), tiling.columns)


# ---- transforms


def _forward(x: list[Val]) -> list[Val]:
    return [x[0] - x[2], x[1] + x[2], x[2] - x[1], x[1] - x[3]]


def _backward(m: list[Val]) -> list[Val]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _both(lines: list[list[Val]], change: Any) -> list[list[Val]]:
    """The transform `change` of one axis, applied to the columns, then to the rows, of `lines`."""
    columns = [change(list(column)) for column in zip(*lines, strict=True)]
    return [change(list(line)) for line in zip(*columns, strict=True)]


def _transform(em: Emit, tiles: Tiles) -> None:
    """The phase that transforms the packed input; a tile of work is one row of tiles."""
    b, plan, group = em.b, tiles.plan, tiles.plan.row.group
    pixel = tiles.lanes * group
    row = plan.size[2] * pixel
    width = 2 * plan.block if pixel % (2 * plan.block) == 0 else plan.block
    source = em.scratch.cast(plan.left.packed)
    with b.loop(em.begin, em.end) as t:
        image, r = t // tiles.high, t % tiles.high
        line = (source + (image * plan.size[1] + r * TILE) * row).fixed()
        sink = (source + t * (tiles.wide * pixel) + tiles.first * group).fixed()
        with b.loop(0, tiles.wide) as c, b.loop(0, pixel, width) as k:
            at = (line + c * (TILE * pixel) + k).fixed()
            to = (sink + c * pixel + k).fixed()
            window = [[(at + (i * row + j * pixel)).load(width) for j in range(WINDOW)]
                      for i in range(WINDOW)]  # fmt: skip
            for i, values in enumerate(_both(window, _forward)):
                for j, v in enumerate(values):
                    (to + (i * WINDOW + j) * (tiles.point * group)).store(v)


# ---- products


def _multiply(em: Emit, tiles: Tiles) -> None:
    """The phase that multiplies; its tiles are (image, band, panel of columns)."""
    b, plan, lanes = em.b, tiles.plan, tiles.lanes
    columns, rows = plan.tiling.columns, plan.tiling.rows
    with b.loop(em.begin, em.end) as t:
        place, c = t // columns.count, t % columns.count
        band = (em.scratch.cast(I32) + place * (tiles.together * lanes) + tiles.first).fixed()

        def panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
            size = sum(widths)
            weights = (em.packed[0].cast(I32) + column * (POINTS * lanes)).fixed()
            buffer = em.workspace.cast(I32)
            with b.loop(0, POINTS) as point:
                a, w = (band + point * tiles.point).fixed(), (weights + point * (lanes * size))
                to = (buffer + point * (tiles.together * size)).fixed()

                def tile(p: Position, height: int) -> None:
                    at = Operands((a + p * lanes).fixed(), lanes, w.fixed(), size, lanes,
                                  row=plan.row)  # fmt: skip
                    first = (to + p * size).fixed()
                    for i, line in enumerate(product(b, at, height, widths)):
                        for j, v in enumerate(line):
                            (first + (i * size + j * plan.block)).store(v)

                each_row_panel(b, rows, 0, rows.count, tile)
            with b.loop(0, tiles.together) as p, b.loop(0, len(widths)) as j:
                block = b.index(column // plan.block) + j
                _finish(em, tiles, (place, p, block), (buffer + p * size + j * plan.block), size)

        each_column_panel(b, columns, c, b.index(c) + 1, panel)


def _finish(em: Emit, tiles: Tiles, where: tuple[Val, Val, Val], sums: Ptr, size: int) -> None:
    """Transform the sums of one tile back, and store those of its 2x2 results that lie in the
    output. `where` is (number of image and band, tile's number in the band, output block)."""
    b, plan = em.b, tiles.plan
    place, p, block = where
    sums, point = sums.fixed(), tiles.together * size
    lines = [[(sums + (i * WINDOW + j) * point).load(plan.block) for j in range(WINDOW)]
             for i in range(WINDOW)]  # fmt: skip
    r = place % tiles.bands * tiles.band + p // tiles.wide
    y, x = r * TILE, p % tiles.wide * TILE
    _, height, width = plan.geo.out
    for i, line in enumerate(_both(lines, _backward)):
        for j, v in enumerate(line):
            index = plan.geo.place((place // tiles.bands, block, 0, y + i, x + j))
            inside = None
            for at, extent, more in ((y + i, height, i), (x + j, width, j)):
                if more and extent % TILE:
                    on = b.index(at) < extent
                    inside = on if inside is None else inside & on
            if inside is None:
                em.finish(v >> SCALE, index)
            else:
                with b.when(inside):
                    em.finish(v >> SCALE, index)
