"""Convolutions of elements that are packed in groups, such as four bytes in 32 bits, by any
row of `codegen/products.py`. Those of bytes are exact in int32; `window/bfloat16.py` has those of
float32 as bfloat16.

The phases, of which only the last is always there: weights that the run computes are packed; the
input is packed with its padding, unless it is read in place; inputs are summed over each window,
where zero points of weights need that; tiles of pixels by output channels are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import MATRICES, Product, product_of
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.dot import matrices
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.saturating import Places, added, is_sparse, pack_rest, saturating_row
from tinsmith.kernels.dot.skeleton import HEAVY_FLOPS, Ahead, Tile, epilogue_flops
from tinsmith.kernels.dot.tiles import choose
from tinsmith.kernels.dot.zeros import Side, side_of, taken_off
from tinsmith.kernels.float_products import fits_of
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.sharing import by_positions, whole_shares
from tinsmith.kernels.walk import Position, Walk, load_row, run, share, store_rows
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, steps
from tinsmith.kernels.window.integers_pack import pack_computed, pack_input
from tinsmith.kernels.window.integers_plan import (
    Cut,
    Plan,
    Shares,
    cut_groups,
    pack_start,
    pack_tables,
    pack_weights,
    tile_room,
)
from tinsmith.kernels.window.integers_saturating import (
    Chunk,
    chunks,
    pack_fitting,
    room_of_sums,
)
from tinsmith.kernels.window.integers_windows import Stretches, contract, source_of, sum_windows
from tinsmith.kernels.window.tiles import Sink, bands
from tinsmith.sizes import Size, estimate, typical

Spot = tuple[Position, ...]  # indices (depth, height, width)
FORM = 0.01  # longer layers of bytes may take for each form of tile less (estimated)


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_integer(site: Site) -> Choice:
    """Direct convolution of bytes, exact in int32, with zero points of inputs and of weights."""
    left, right = (site.input(i).dtype.name for i in range(2))
    return byte_conv(site, product_of(site.target, left, right))


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_integer_saturating(site: Site) -> Choice:
    """Direct convolution by sums of two products in 16 bits, of weights split to fit; exact."""
    target = site.target
    row, geo = saturating_row(target), conv_geometry(site)
    if any(isinstance(n, Size) for n in (geo.batch, *geo.out)):
        raise Skip("it needs numbers for sizes")
    if site.attr("group") > 1:
        raise Skip("it has several groups")
    if geo.channels % block_of(target):
        raise Skip("input channels are no whole blocks")
    if prod(geo.out) < block_of(target):
        raise Skip("it has less pixels than lanes")
    w, left = site.const(1, "the weights"), side_of(site, 0, row, 1)
    plan = plan_of(site, geo, row, left, side_of(site, 1, row, geo.out_channels), split=True)
    if not plan.constant or plan.has_table:
        raise Skip("zero points of weights are not 0, or that of the input is not constant")
    if not is_sparse(w):
        raise Skip("too many weights do not fit")
    return packed_conv(site, plan)


def byte_conv(site: Site, row: Product) -> Choice:
    """The `Choice` of a ConvInteger that multiplies by a row of the table of products."""
    geo = conv_geometry(site)
    left, right = side_of(site, 0, row, 1), side_of(site, 1, row, geo.out_channels)
    return packed_conv(site, plan_of(site, geo, row, left, right))


def packed_conv(site: Site, plan: Plan, start: Packed | None = None) -> Choice:
    """The `Choice` of a convolution of packed elements. `start`: an array of what the sums of each
    group's columns begin with, such as a bias; None: with what corrects them for the input's zero
    point (`Plan.zero`), or 0."""
    geo, row, cut, target = plan.geo, plan.row, plan.cut, site.target
    x, w, layout = site.input(0), site.input(1), Layout(plan.block)
    work = 2.0 * typical(plan.images * plan.runs * plan.pixels) * plan.panels * row.group
    moved = float(typical(x.type.nbytes + site.out.type.nbytes))
    if not plan.direct:
        moved += 8.0 * typical(plan.images * plan.image)
    cost = target.time(work / row.rate, moved, plan.tiling.efficiency) + 1e-6
    if plan.split:
        cost += plan.images * plan.rest.seconds(target)
    packed: list[Packed] = []
    if plan.constant:
        args = (w.const, site.input(3).const if site.has(3) else None, row.name, cut)
        pack, fits = (pack_fitting, is_sparse) if plan.split else (pack_weights, fits_of(row))
        packed.append(Packed("weights", pack, (*args, plan.tiling, plan.pixel), fits=fits))
        if plan.split:
            packed.append(Packed("rest", pack_rest, (w.const, cut.columns), fits=is_sparse))
        if plan.has_table:
            packed.append(Packed("tables", pack_tables, args))
        if start is not None:
            packed.append(start)
        elif plan.zero:
            packed.append(Packed("start", pack_start, (*args, plan.zero)))
    first = Layout(plan.block, geo.halo) if plan.direct else layout
    read: list[Layout | None] = [first, *(PLAIN if site.has(i) else None for i in (1, 2, 3))]
    if plan.constant:
        read[1] = read[3] = None
        read[2] = read[2] if plan.off_columns or not plan.direct else None
    room = tile_room(site, plan)
    room = room_of_sums(plan, room) if plan.split else room
    return Choice(
        cost=cost,
        reads=site.reads(read[: len(site.inputs)], layout),
        writes=(layout,),
        phases=_phases(plan),
        packed=tuple(packed),
        unseen=(2,) if site.has(2) and read[2] is None else (),
        workspace=matrices.ROOM if row.unit == MATRICES else room,
        scratch=plan.scratch,
        by_channels=typical(geo.batch) == 1 and not plan.shares.near,
        detail=f"{row.name}{' in place' * plan.direct}, {plan.tiling}, "
        f"{cut.groups} groups of {cut.inputs} channels",
    )


def plan_of(
    site: Site, geo: Geometry, row: Product, left: Side, right: Side, split: bool = False
) -> Plan:
    """The plan of a convolution that multiplies by a row of the table of products. `left` and
    `right` tell how the input and the weights are packed for it, and of their zero points; `split`:
    whether weights are split (`dot/saturating.py`). For a kernel of one tap, with known sizes and
    no padding, packing leaves out the pixels that the stride skips."""
    block = block_of(site.target)
    w, zero = site.input(1).const, None
    constant = w is not None
    if site.has(3):
        zero = site.input(3).const
        constant = constant and zero is not None
    cut = cut_groups(geo, site.attr("group"), row, block, constant)
    off_rows = not right.is_zero
    if constant and off_rows:
        off_rows = bool(right.shift) or bool(zero is not None and zero.any())
    taken = _known_zero(site, left) if constant and not off_rows else None
    direct = (
        constant and row.unit != MATRICES and not split
        and not left.centred and not left.shift and geo.channels >= block
        and (not any(map(any, geo.halo)) or _known_zero(site, left) == 0)  # padding is 0
        and (cut.groups == 1 or not cut.inputs % block)
    )  # fmt: skip
    every = (1, 1, 1)
    if not direct and geo.taps == 1 and not geo.is_free and not any(map(any, geo.halo)):
        geo, every = replace(geo, size=geo.out, stride=every), geo.stride
    flat = not direct and geo.is_pointwise and not any(geo.after)
    if direct:
        cut = replace(cut, lanes=-(-cut.inputs // block) * block // row.group)
    pixels, rows = (prod(geo.out), 1) if flat else (geo.out[2], geo.out[0] * geo.out[1])
    depth = geo.taps * cut.lanes
    vectors, form = row.vectors(site.target), FORM if row.is_whole else 0.0
    if row.unit == MATRICES:
        tiling = matrices.tiling(pixels, cut.columns, depth)
    else:
        tiling = choose(
            site.target, pixels, cut.columns, depth, most_vectors=vectors, form=form, kept=row.kept
        )
    most = tiling.rows.count if flat else rows
    shares = Shares() if split else _shares(site, geo, cut, row, most, tiling.columns.count)
    shares = replace(shares, runs=1, panels=shares.runs) if flat else shares
    plan = Plan(
        geo, cut, row, tiling, left, right, shares, block, constant, off_rows,
        taken is None and not left.is_zero, direct, flat, taken or 0, split, every,
    )  # fmt: skip
    return replace(plan, shares=chunks(plan, site.threads)) if split else plan


@estimate
def _shares(site: Site, geo: Geometry, cut: Cut, row: Product, most: int, panels: int) -> Shares:
    """The shares of a convolution with `panels` panels of columns in each group. `most`: into how
    many parts its pixels may be cut, as runs."""
    sets, lanes = geo.batch * cut.groups * panels, cut.groups * geo.taps * cut.lanes * cut.columns
    flops = 2.0 * typical(geo.batch * prod(geo.out)) * lanes * row.group / row.rate
    x, most = site.input(0), typical(most)
    near = by_positions(
        site, x, typical(x.type.nbytes), flops, (most, sets * bands(sets, most, flops=flops)),
        planes=geo.batch * (geo.channels + geo.out_channels) // block_of(site.target),
        weights=4.0 * lanes,
    )  # fmt: skip
    count = bands(sets, most, site.threads if near else 1, flops)
    runs = min(most, whole_shares(count, site.threads)) if near else count
    return Shares(panels, runs, near=near)


def _known_zero(site: Site, left: Side) -> int | None:
    """The zero point that elements of the input have when they are packed as `left` says: 0 if
    packing takes it off, otherwise its value plus the shift of packing. None if only the run knows
    it."""
    if left.centred:
        return 0
    if left.zero is None:
        return left.shift
    zero = site.input(left.zero).const
    return None if zero is None else int(zero.reshape(())) + left.shift


def _phases(plan: Plan) -> tuple[Phase, ...]:
    rows = plan.images * plan.size[0] * plan.size[1]
    found = []

    def generic(tiles: int, emit: Callable[[Emit, Plan], None]) -> Phase:
        """A phase whose code layers of other sizes share."""
        return Phase(tiles, lambda em, *n: emit(em, plan.sized(n)), generic=plan.numbers)

    if not plan.constant:
        columns = plan.cut.groups * plan.cut.columns
        found.append(Phase(columns, lambda em: pack_computed(em, plan), barrier=False))
    if not plan.direct:
        found.append(generic(rows, pack_input))
    if plan.off_rows:
        found.append(Phase(plan.images * plan.runs, lambda em: sum_windows(em, plan)))
    tiles = plan.images * plan.shares.columns * plan.shares.parts
    sweep = plan.shares.parts if plan.shares.near else 0
    found.append(Phase(tiles, lambda em: _multiply(em, plan), sweep=sweep))
    return tuple(found)


# ---- products


def _multiply(em: Emit, plan: Plan) -> None:
    """Emit the phase that multiplies; its tiles are (image, group, part of the panels of columns,
    part of the runs, part of the panels of rows), the last innermost."""
    b, rows, columns, shares = em.b, plan.tiling.rows, plan.tiling.columns, plan.shares
    with matrices.configured(b, plan.row, em.workspace), b.loop(em.begin, em.end) as t:
        part, rest = t % shares.parts, t // shares.parts
        panels = share(part % shares.panels, shares.panels, rows.count)
        runs = share(part // shares.panels, shares.runs, plan.runs)
        image, of = rest // shares.columns, rest % shares.columns
        chunk = Chunk(em, plan, image, runs[0], panels[0]) if plan.split else None

        def panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
            sums = None if chunk is None else chunk.sums(column, len(widths))
            one = _Panel(em, plan, image, column, widths, sums)
            each = partial(each_row_panel, b, rows, *panels)
            run(b, *runs, lambda at: each(lambda pixel, height: one.tile(at, pixel, height)))

        each_column_panel(b, columns, *share(of, shares.columns, columns.count), panel)


def _weights(em: Emit, plan: Plan, group: Position, column: Position) -> tuple[Ptr, Ptr]:
    """The addresses of a group's panel of weights that begins with `column`, and of that column in
    the group's table (`pack_tables`). Without a table, nobody may read at the second address."""
    columns, depth = plan.cut.columns, plan.geo.taps * plan.cut.lanes
    if plan.constant:
        weights, table = em.packed[0].cast(I32), em.packed[-1].cast(I32)
    else:
        scratch = em.scratch.cast(I32)
        weights, table = scratch + plan.weights_at, scratch + plan.tables_at
    weights = weights + group * plan.panels + column * depth
    return weights.fixed(), (table + group * (2 * columns) + column).fixed()


class _Panel:
    """One panel of weights, columns of a group from `column` on in vectors of `widths` lanes, and
    what it multiplies: `image`, a number among the groups of all images. `weights`, `table`: as of
    `_weights`; `left`: the input's zero point if it corrects finished sums, else None; `rest`: of
    split weights."""

    def __init__(
        self, em: Emit, plan: Plan, image: Position, column: Position, widths: tuple[int, ...],
        rest: Places | None,
    ) -> None:  # fmt: skip
        self.em, self.plan, self.image, self.widths, self.rest = em, plan, image, widths, rest
        self.column, group = column, image % plan.cut.groups
        self.weights, self.table = _weights(em, plan, group, column)
        self.left = plan.left.zeros(em, 0, 1) if plan.off_columns else None
        first = group * (plan.cut.columns // plan.block)
        self.start = None
        if plan.starts:
            first_sum = group * plan.cut.columns + column
            self.start = (em.packed[-1].cast(plan.row.sums) + first_sum).fixed()
        self.place = image // plan.cut.groups, first + column // plan.block

    def tile(self, run: Position, pixel: Position, height: int) -> None:
        """Emit the tile of `height` pixels of a run, from number `pixel` on, with its stores."""
        em, plan = self.em, self.plan
        a = source_of(em, plan).at(plan, self.image, run, pixel)
        if plan.row.unit == MATRICES:
            self._in_matrices(a, run, pixel, height)
            return
        start, ahead = self._start(), self._ahead(pixel)
        ways = Stretches(em, plan, a, self.weights, sum(self.widths))
        sums = contract(ways, height, self.widths, start=start, ahead=ahead)
        if self.rest is not None:
            at = self.rest(run * plan.pixels + pixel, self.column, len(self.widths))
            sums = added(sums, at)
        sums = self._taken_off(sums, range(height), run, pixel)
        self._finish(sums, run, pixel)

    def _start(self) -> list[Val] | None:
        """The vectors with which the sums of each pixel begin; None: with 0."""
        if self.start is None:
            return None
        return load_row(self.start, self.widths)

    def _taken_off(
        self, sums: Tile, pixels: Sequence[Position], run: Position, pixel: Position
    ) -> Tile:
        """The `sums` of some pixels, corrected for zero points. `pixels` are their numbers, counted
        from number `pixel` of a run."""
        em, plan, rows = self.em, self.plan, None
        if plan.off_rows:
            at = (self.image * plan.runs + run) * plan.pixels + pixel
            totals = (em.scratch.cast(I32) + at + plan.sums_at).fixed()
            rows = [(totals + i).load() for i in pixels]
        lefts = None if self.left is None else [self.left] * len(sums)
        return taken_off(sums, rows, lefts, self.table, plan.cut.columns)

    def _in_matrices(self, a: Ptr, run: Position, pixel: Position, height: int) -> None:
        """Emit the tile of `height` pixels of a run, from number `pixel` on, on matrix registers.
        Its first window begins at `a`. A loop over pixels corrects and stores the sums."""
        em, plan, b = self.em, self.plan, self.em.b
        ways = Stretches(em, plan, a, self.weights, sum(self.widths))
        tile = matrices.Registers(b, em.workspace, height, len(self.widths))
        tile.clear()
        with b.loop(0, ways.count) as t:
            tile.add(ways.first.at(ways.places(t)))
        tile.store()
        start, place = self._start(), self._places(run, pixel)
        with b.loop(0, height) as i:
            line = tile.line(i)
            if start is not None:
                line = [x + y for x, y in zip(line, start, strict=True)]
            (line,) = self._taken_off([line], [i], run, pixel)
            _put(line, *place(i))

    def _ahead(self, pixel: Position) -> tuple[Ahead, ...]:
        """What the tile at `pixel` prefetches: its share of the next panel of weights, if all
        pixels of an image are one run of several tiles (a known number) and the weights are
        constant and outgrow the second-level cache. Otherwise nothing."""
        plan, size, tiles = self.plan, sum(self.widths), self.plan.tiling.rows.count
        far = 4 * plan.cut.groups * plan.panels > self.em.target.l2
        if not (plan.flat and plan.constant and far) or isinstance(tiles, Size) or tiles == 1:
            return ()
        panel = plan.depth * size
        at = self.weights + panel + pixel * (panel // plan.pixels)
        return (Ahead(at.fixed(), size, tiles, 2),)

    def _finish(self, sums: Tile, run: Position, pixel: Position) -> None:
        """Emit epilogue and stores of the `sums` of a tile, from number `pixel` of a run on: in a
        loop over pixels if the epilogue takes HEAVY_FLOPS or more."""
        em, place = self.em, self._places(run, pixel)
        if len(sums) == 1 or epilogue_flops(em.site.epilogue) < HEAVY_FLOPS:
            for i, line in enumerate(sums):
                _put(line, *place(i))
            return
        buffer, size = em.workspace.cast(self.plan.row.sums), sum(self.widths)
        store_rows(buffer, sums, size)
        with em.b.loop(0, len(sums)) as i:
            _put(load_row((buffer + i * size).fixed(), self.widths), *place(i))

    def _places(self, run: Position, pixel: Position) -> Callable[[Position], tuple[Sink, Spot]]:
        """For the tile whose first pixel is number `pixel` of a run: a function that takes i, for
        pixel `pixel` + i, and returns where its results go: a sink, and the index (depth, height,
        width) to add to the sink's own."""
        out, views = self.plan.geo.out, (*self.em.extras, self.em.outs[0])
        panel = Sink(self.em, self.plan.geo).at(*self.place)
        if self.plan.flat:
            walk = Walk(out, [steps(v.spec)[2] for v in views])
            if walk.outer:
                return lambda i: (panel.at(0, 0, *walk.index(pixel + i)), (0, 0, 0))
            start, along = walk.index(pixel), walk.lane
        else:
            rows = [0, run] if out[0] == 1 else [run // out[1], run % out[1]]
            start, along = [*rows, pixel], 2
        first = panel.at(0, 0, *start)

        def place(i: Position) -> tuple[Sink, Spot]:
            spot = (*(0,) * along, i, *(0,) * (2 - along))
            return (first, spot) if isinstance(i, int) else (first.at(0, 0, *spot), (0, 0, 0))

        return place


def _put(line: list[Val], sink: Sink, spot: Spot) -> None:
    for j, v in enumerate(line):
        sink.put(v, 0, j, *spot)
