"""Convolutions of bytes, 3x3 of stride 1, by Winograd's methods, exact in int32
(`window/integers_forms.py`).

The input of each row of tiles is packed with its padding and transformed. The tiles of a band, some
rows, are multiplied by one panel of weights after another, and transformed back. These are two
phases, or one (`Tiles.at_once`) where weights take less memory than transformed tiles.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial, reduce
from operator import and_

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import PRODUCTS, Product, packed_lanes, product_of
from tinsmith.codegen.target import overlap
from tinsmith.codegen.types import I32
from tinsmith.graph import Array
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.dot.zeros import elements, side_of
from tinsmith.kernels.layout import LINE, Layout, block_of
from tinsmith.kernels.walk import Position, store_rows
from tinsmith.kernels.window.geometry import Geometry, conv_geometry
from tinsmith.kernels.window.integers_forms import FORMS, Axis, Form, most_of_one_sign
from tinsmith.kernels.window.integers_pack import pack_row
from tinsmith.kernels.window.integers_plan import Cut, Plan, Shares, cut_groups
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, largest, typical

STAY = 2
"""Second-level caches that transformed tiles and products may fill while panels of weights, which
take more, pass by. Estimated."""
EFFICIENCY = 0.85
"""Of products, beside that of their tiles. Fitted with `Form.around` to nine layers of 32 to 512
channels at 7x7 to 256x256 on Zen 4 (VNNI), one thread: within 12 %. The command was not recorded.
"""


@dataclass(frozen=True)
class Tiles:
    """How the outputs of a convolution are cut into Winograd's tiles; sizes and distances are in
    32-bit lanes.

    form         the method, which gives the size and the transforms of tiles
    plan         the plan of a convolution whose outputs are rounded up to whole tiles
    geo          the geometry of the convolution itself
    high, wide   tiles of an image along height and width
    band         rows of tiles that are multiplied together
    at_once      whether one phase transforms and multiplies a band
    """

    form: Form
    plan: Plan
    geo: Geometry
    high: int
    wide: int
    band: int
    at_once: bool

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

    @property
    def row(self) -> int:
        """Distance from a row of the packed input to the next."""
        return self.plan.size[2] * self.lanes

    @property
    def point(self) -> int:
        """Distance from a point's transformed tiles to the next point's, in [point][tile][lane] of
        a band (`at_once`) or of all images. A cache line more than needed, so that points are in
        different cache sets."""
        tiles = self.together if self.at_once else self.geo.batch * self.high * self.wide
        return (-(-tiles * self.lanes // LINE) + 1) * LINE

    @property
    def sums_at(self) -> int:
        """The offset of sums in a thread's workspace, behind the packed input of a row of tiles
        and, with `at_once`, the transformed tiles of a band."""
        rows = -(-self.form.window * self.row // LINE) * LINE
        return rows + self.at_once * self.form.points * self.point

    @property
    def tiles_at(self) -> int:
        """With `at_once`: the offset of the transformed tiles of a band in a thread's workspace."""
        return self.sums_at - self.form.points * self.point


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_integer_winograd(site: Site) -> list[Choice]:
    """Winograd's F(2x2, 3x3) and F(4x4, 3x3) on bytes, exact in int32."""
    geo, target = conv_geometry(site), site.target
    x, w = site.input(0), site.const(1, "the weights")
    row, block = product_of(target, x.dtype.name, "int16"), block_of(target)
    if geo.kernel != (1, 3, 3) or geo.stride[1:] != (1, 1) or geo.dilation[1:] != (1, 1):
        raise Skip("it is not 3x3 of stride 1")
    if (geo.begin[0], geo.size[0], geo.out[0]) != (0, 1, 1):
        raise Skip("it has several planes")
    if site.attr("group") > 1 or geo.channels < block:
        raise Skip(f"{site.attr('group')} groups of {geo.channels} channels: not one of at least "
                   f"{block}")  # fmt: skip
    zero = site.const(3) if site.has(3) else None
    forms = [form for form in FORMS.values() if _fits(form, zero, row, w)]
    if not forms:
        raise Skip("sums of products by these weights may have too many bits")
    return [_choice(site, _tiles(site, form, geo, row), zero) for form in forms]


def _centred(w: Array, zero: Array | None, row: Product) -> Array:
    """The weights less their zero points (None: 0), as int16 [outputs, inputs * taps]. `row` must
    be `centred`: one that takes zero points off before it multiplies."""
    return elements(w.reshape(len(w), -1), None if zero is None else zero.reshape(-1, 1), row)


def _fits(form: Form, zero: Array | None, row: Product, w: Array) -> bool:
    """Whether results of `form` are right for the weights w (`Packed.fits`, which is asked about
    the array of zero points, too: w then has less than 3 dimensions, and always fits)."""
    return w.ndim < 3 or form.fits(most_of_one_sign(_centred(w, zero, row)))


def _weight_bytes(form: Form, cut: Cut) -> int:
    """Bytes of the transformed weights of all points, with padding."""
    return 4 * form.points * cut.lanes * cut.columns


def _tiles(site: Site, form: Form, geo: Geometry, row: Product) -> Tiles:
    """How a convolution is cut into tiles of a form; `row` of the table of products multiplies."""
    target, block = site.target, block_of(site.target)
    high, wide = (-(-n // form.tile) for n in geo.out[1:])
    cut = cut_groups(geo, 1, row, block)
    cut = replace(cut, lanes=-(-cut.inputs // block) * block // row.group)
    left, right = side_of(site, 0, row, 1), side_of(site, 1, row, geo.out_channels)
    weights = _weight_bytes(form, cut)
    line = wide * form.points * 4 * (cut.lanes + 2 * block)
    at_once = 2 * weights < target.l2 and typical(geo.batch * high * line) > STAY * target.l2
    band = _band(target.l2 - weights if at_once else STAY * target.l2, high, line)
    high = -(-high // band) * band
    tiling = choose(target, band * wide, cut.columns, cut.lanes, most_vectors=row.vectors(target))
    out = 1, high * form.tile, wide * form.tile
    after = [n + 2 - size - begin for n, size, begin in zip(out, geo.size, geo.begin, strict=True)]
    whole = replace(geo, out=out, most_after=(0, after[1], after[2]))
    plan = Plan(whole, cut, row, tiling, left, right, Shares(), block, True, False, False)
    return Tiles(form, plan, geo, high, wide, band, at_once)


def _choice(site: Site, tiles: Tiles, zero: Array | None) -> Choice:
    plan, form, target = tiles.plan, tiles.form, site.target
    cut, tiling, row, geo = plan.cut, plan.tiling, plan.row, plan.geo
    count = typical(geo.batch * tiles.high * tiles.wide) * form.points
    flops = 2.0 * count * cut.lanes * row.group * cut.columns / row.rate / EFFICIENCY
    around = target.time(form.around * count * (cut.lanes + cut.columns), 0)
    weights = _weight_bytes(form, cut)
    growth = weights / site.input(1).type.nbytes
    busy = target.time(flops, 0, tiling.efficiency) + around
    arriving = weights / target.weights_rate(site.threads, growth)
    layout = Layout(plan.block)
    return Choice(
        cost=overlap(busy, arriving) + 1e-6,
        reads=site.reads([layout, None, PLAIN if site.has(2) else None, None][: len(site.inputs)],
                         layout),
        writes=(layout,),
        phases=_phases(tiles),
        packed=(Packed("weights", pack_weights,
                       (site.input(1).const, zero, row.name, form.tile, cut.lanes, tiling),
                       fits=partial(_fits, form, zero, row)),),
        workspace=4 * (tiles.sums_at + form.points * tiles.together * tiling.columns.size),
        scratch=0 if tiles.at_once else 4 * form.points * tiles.point,
        detail=f"F({form.tile}, 3), {row.name}, {tiling}, {tiles.bands} bands"
        f"{' at once' * tiles.at_once}",
    )  # fmt: skip


def _phases(tiles: Tiles) -> tuple[Phase, ...]:
    images, panels = tiles.geo.batch, tiles.plan.tiling.columns.count
    if tiles.at_once:
        return (Phase(images * tiles.bands, lambda em: _bands(em, tiles)),)
    return (
        Phase(images * tiles.high, lambda em: _transform_all(em, tiles)),
        Phase(images * tiles.bands * panels, lambda em: _multiply_all(em, tiles)),
    )


def _bands(em: Emit, tiles: Tiles) -> None:
    """Emit the phase that transforms and multiplies each band; a tile of work is one band."""
    b, columns = em.b, tiles.plan.tiling.columns
    moved = (em.workspace.cast(I32) + tiles.tiles_at).fixed()
    with b.loop(em.begin, em.end) as place:
        with b.loop(0, tiles.band) as r:
            to = moved + r * (tiles.wide * tiles.lanes)
            _transform(em, tiles, place * tiles.band + r, to.fixed())
        with b.loop(0, columns.count) as c:
            _multiply(em, tiles, place, c, moved)


def _transform_all(em: Emit, tiles: Tiles) -> None:
    """Emit the phase that transforms all tiles; a tile of work is one row of tiles."""
    with em.b.loop(em.begin, em.end) as t:
        to = em.scratch.cast(I32) + t * (tiles.wide * tiles.lanes)
        _transform(em, tiles, t, to.fixed())


def _multiply_all(em: Emit, tiles: Tiles) -> None:
    """Emit the phase that multiplies; its tiles of work are (image, band, panel of columns)."""
    panels = tiles.plan.tiling.columns.count
    with em.b.loop(em.begin, em.end) as t:
        place = t // panels
        band = em.scratch.cast(I32) + place * (tiles.together * tiles.lanes)
        _multiply(em, tiles, place, t % panels, band.fixed())


def _band(room: int, high: Number, nbytes: Number) -> Number:
    """How many of `high` rows of tiles are a band, if a row takes `nbytes` bytes and `room` bytes
    are there: the largest divisor of `high` that fits, or 1. Of free sizes: as many as fit, or
    fewer, so that all bands have about equally many."""
    if isinstance(high, Size) or isinstance(nbytes, Size):
        return -(-high // -(-high // largest(room // nbytes, 1)))
    return max((n for n in range(1, high + 1) if high % n == 0 and n * nbytes <= room), default=1)


def pack_weights(
    w: Array, zero: Array | None, name: str, tile: int, lanes: int, tiling: Tiling
) -> Array:
    """Pack weights w [outputs, inputs, 3, 3], less their zero points and transformed for tiles of
    `tile`, as [panel][point][lane][column of the panel], flat. A point has `lanes` lanes of the row
    `name` of the table of products."""
    row, form = PRODUCTS[name], FORMS[tile]
    outputs, inputs = w.shape[:2]
    taps = _centred(w, zero, row).reshape(outputs, inputs, 3, 3)
    wide = np.zeros((form.points, lanes * row.group, tiling.columns.padded), np.int16)
    wide[:, :inputs, :outputs] = form.transformed(taps)
    packed = np.stack([packed_lanes(point, row) for point in wide])
    return pack_columns(packed.reshape(-1, tiling.columns.padded), tiling.columns)


# ---- transforms


def _both(lines: list[list[Val]], change: Axis) -> list[list[Val]]:
    """Emit the transform `change` for the columns, then for the rows, of a square of `lines`;
    returns the lines of the result."""
    columns = [change(list(column)) for column in zip(*lines, strict=True)]
    return [change(list(line)) for line in zip(*columns, strict=True)]


def _transform(em: Emit, tiles: Tiles, t: Val, to: Ptr) -> None:
    """Emit the packing of the input of row of tiles t, counted over all images, and the transform
    of its tiles to `to`, the address of point 0 of the first."""
    b, plan, form, group = em.b, tiles.plan, tiles.form, tiles.plan.row.group
    pixel, row = tiles.lanes * group, tiles.row * group
    width = 2 * plan.block if pixel % (2 * plan.block) == 0 else plan.block
    source, sink = em.workspace.cast(plan.left.packed), to.cast(plan.left.packed)
    zero = plan.left.zeros(em, 0, 1)
    first = t // tiles.high * plan.size[1] + t % tiles.high * form.tile
    with b.loop(0, form.window) as i:
        pack_row(em, plan, first + i, (source + i * row).fixed(), zero)
    with b.loop(0, tiles.wide) as c, b.loop(0, pixel, width) as k:
        at = (source + c * (form.tile * pixel) + k).fixed()
        here = (sink + c * pixel + k).fixed()
        window = [[(at + (i * row + j * pixel)).load(width) for j in range(form.window)]
                  for i in range(form.window)]  # fmt: skip
        for i, values in enumerate(_both(window, form.forward)):
            for j, v in enumerate(values):
                (here + (i * form.window + j) * (tiles.point * group)).store(v)


# ---- products


def _multiply(em: Emit, tiles: Tiles, place: Val, c: Val, band: Ptr) -> None:
    """Emit the products of the transformed tiles at `band` and panel c of the weights, their
    transform to results, and the stores of these. `place`: the band's number among those of all
    images."""
    b, plan, lanes = em.b, tiles.plan, tiles.lanes
    columns, rows = plan.tiling.columns, plan.tiling.rows
    buffer = (em.workspace.cast(I32) + tiles.sums_at).fixed()

    def panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
        size = sum(widths)
        weights = (em.packed[0].cast(I32) + column * (tiles.form.points * lanes)).fixed()
        with b.loop(0, tiles.form.points) as point:
            a, w = (band + point * tiles.point).fixed(), (weights + point * (lanes * size))
            to = (buffer + point * (tiles.together * size)).fixed()

            def tile(p: Position, height: int) -> None:
                at = Operands((a + p * lanes).fixed(), lanes, w.fixed(), size, lanes, row=plan.row)
                store_rows((to + p * size).fixed(), product(b, at, height, widths), size)

            each_row_panel(b, rows, 0, rows.count, tile)
        with b.loop(0, tiles.together) as p, b.loop(0, len(widths)) as j:
            block = b.index(column // plan.block) + j
            _finish(em, tiles, (place, p, block), (buffer + p * size + j * plan.block), size)

    each_column_panel(b, columns, c, b.index(c) + 1, panel)


def _finish(em: Emit, tiles: Tiles, where: tuple[Val, Val, Val], sums: Ptr, size: int) -> None:
    """Emit the transform of one tile's sums to results, and store the results that lie inside the
    output. `where`: (the band's number among those of all images, the tile's number in the band,
    the output block). `size`: distance from a tile to the next in `sums`."""
    b, plan, form = em.b, tiles.plan, tiles.form
    place, p, block = where
    sums, point = sums.fixed(), tiles.together * size
    lines = [[(sums + (i * form.window + j) * point).load(plan.block) for j in range(form.window)]
             for i in range(form.window)]  # fmt: skip
    r = place % tiles.bands * tiles.band + p // tiles.wide
    y, x = r * form.tile, p % tiles.wide * form.tile
    _, height, width = tiles.geo.out
    rows, columns = (  # of the last tiles
        n - (count - 1) * form.tile for n, count in ((height, tiles.high), (width, tiles.wide))
    )
    for i, line in enumerate(_both(lines, form.backward)):
        for j, v in enumerate(line):
            index = tiles.geo.place((place // tiles.bands, block, 0, y + i, x + j))
            inside = [
                b.index(at) < extent
                for at, extent, more, last in ((y + i, height, i, rows), (x + j, width, j, columns))
                if isinstance(last, Size) or more >= last
            ]
            with b.when(reduce(and_, inside)) if inside else nullcontext():
                em.finish(form.result(i, j, v), index)
