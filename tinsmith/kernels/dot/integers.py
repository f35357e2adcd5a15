"""Matrix products of packed elements, by any row of the table `codegen/products.py`: of bytes,
exact in int32, and (`dot/bfloat16.py`) of float32 as bfloat16.

A thread packs a panel of rows of A into its own workspace before it multiplies these, a hundredth
of the work: the products then read from the first cache. Panels of B are packed into scratch by a
phase of their own, or, if B is constant, when the model is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import MATRICES, Product, joined, product_of
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.dot import matrices
from tinsmith.kernels.dot.batched import index_of, offset, problem
from tinsmith.kernels.dot.integers_plan import Plan, constant_matrix
from tinsmith.kernels.dot.matmul import spread_stride
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, grid, vectors_of
from tinsmith.kernels.dot.saturating import (
    LONGER,
    Places,
    Rest,
    added,
    is_sparse_matrix,
    row_sums,
    saturating_row,
    split_matrix,
)
from tinsmith.kernels.dot.skeleton import Operands, buffer_bytes, finish_tile, finisher, product
from tinsmith.kernels.dot.tiles import choose
from tinsmith.kernels.dot.zeros import (
    Side,
    leaves_zeros,
    pack_lanes,
    pack_table,
    side_of,
    taken_off,
)
from tinsmith.kernels.float_products import fits_of
from tinsmith.kernels.layout import LINE, block_of, lanes_of
from tinsmith.kernels.walk import Position, share
from tinsmith.sizes import Size, typical

SUMMED = 4  # lanes of the vector in which the sum of a row is computed; all become equal


@kernel("MatMulInteger", Tier.SHAPED, dtypes="int8 uint8")
def matmul_integer(site: Site) -> Choice:
    """Register-tiled products of bytes, exact in int32, with zero points of rows and columns."""
    a, b = site.input(0), site.input(1)
    return packed_product(site, product_of(site.target, a.dtype.name, b.dtype.name))


@kernel("MatMulInteger", Tier.SHAPED, dtypes="int8 uint8", numbers=True)
def matmul_integer_saturating(site: Site) -> Choice:
    """Register-tiled sums of two products in 16 bits, of constant weights split to fit; exact."""
    row, block = saturating_row(site.target), block_of(site.target)
    w, p = constant_matrix(site), problem(site)
    if w is None or w.dtype != np.int8:
        raise Skip("the weights are not a constant matrix of int8")
    if p.k % block or p.n % block or p.m < block:
        raise Skip("the weights are no whole blocks, or the input has fewer rows than lanes")
    if leaves_zeros(w, site.input(3).const if site.has(3) else None, row):
        raise Skip("zero points of weights are not 0")
    if not is_sparse_matrix(w):
        raise Skip("too many weights do not fit")
    return packed_product(site, row, rest=Rest(p.m, p.n, p.k, block))


def packed_product(
    site: Site, row: Product, sides: tuple[Side, Side] | None = None, rest: Rest | None = None
) -> Choice:
    """The choice for a product whose operands A and B are packed for `row` of the table of
    products; B in a phase of its own, unless it is constant. `sides`: how they are packed; None: as
    those of a MatMulInteger. `rest`: of split weights, which are then constant."""
    p, target = problem(site), site.target
    a, b = site.input(0), site.input(1)
    each = prod(a.dims[-2:-1])
    left, right = sides or (side_of(site, 0, row, each), side_of(site, 1, row, p.n))
    w = constant_matrix(site)
    zero = site.input(3).const if site.has(3) else None
    if row.unit == MATRICES:
        tiling = matrices.tiling(p.m, p.n, row.depth(p.k))
    else:
        most = row.vectors(target)
        tiling = choose(target, p.m, p.n, row.depth(p.k), most_vectors=most, kept=row.kept)
    stride = spread_stride(row.depth(p.k), tiling.rows.size)
    off_rows = not right.is_zero
    if w is not None:
        off_rows = leaves_zeros(w, zero, row)
    items, m, k, n = map(typical, (p.items, p.m, p.k, p.n))
    moved = typical(a.type.nbytes) + 4.0 * items * m * n
    if w is None:
        moved += typical(b.type.nbytes) + 8.0 * typical(b.type.size) / row.group
    busy = 2.0 * items * m * n * k / row.rate
    cost = target.time(busy, moved, tiling.efficiency) + 1e-7
    cost += 0.0 if rest is None else LONGER * rest.seconds(target)
    cells = grid(target, tiling, row.depth(p.k), cost / items, items)
    cells = cells if rest is None else rest.grouped(cells, tiling, site.threads)
    plan = Plan(
        p, row, tiling, cells, left, right, each, prod(b.dims[:-2]), stride, w is not None,
        off_rows, not left.is_zero,
    )  # fmt: skip
    phases: list[Phase] = []
    room = buffer_bytes(site, tiling.rows.size, tiling.columns.size)
    room = 4 * plan.buffer_at + (matrices.ROOM if row.unit == MATRICES else room)
    if rest is not None:
        sums = row_sums(rest, tiling, cells, bool(left.shift), room)
        room = sums.room(-(-tiling.columns.count // cells.columns) * tiling.columns.size)
        plan, phases = replace(plan, sums=sums), [sums.phase()]
    packed: tuple[Packed, ...] = ()
    if w is not None:
        args = (w, zero, row.name, tiling.columns)
        lanes = Packed("lanes", pack_lanes, args, 4 * plan.panels, fits_of(row))
        packed = (lanes,) if rest is None else split_matrix(lanes)
        packed += (Packed("table", pack_table, args),) if plan.has_table else ()
    else:
        panels = plan.matrices * tiling.columns.count
        phases.append(Phase(panels, lambda em: _pack_panels(em, plan)))
    phases.append(Phase(p.items * cells.count, lambda em: _multiply(em, plan)))
    read = [PLAIN if site.has(i) else None for i in range(len(site.inputs))]
    if w is not None:
        read[1::2] = [None] * len(read[1::2])
    return Choice(
        cost=cost, reads=site.reads(read, PLAIN), writes=(PLAIN,), phases=tuple(phases),
        packed=packed, unseen=tuple(i for i in (2, 3) if site.has(i) and read[i] is not None),
        workspace=room, scratch=plan.scratch, detail=f"{row.name}, {tiling}, batch {p.items}",
    )  # fmt: skip


# ---- packing


def _pack_rows(em: Emit, plan: Plan, source: Ptr, row: Position, height: int) -> Ptr:
    """Emit code that packs `height` rows of A, from number `row` on, into the workspace. Return a
    pointer to the first packed row, in lanes. `source` points to row 0 of A."""
    group, to = plan.row.group, em.workspace.cast(plan.left.packed)
    with em.b.loop(0, height) as i:
        zero = plan.left.zeros(em, (row + i) % plan.each, 1) if plan.left.centred else None
        sink = (to + i * (plan.stride * group)).fixed()
        _pack_row(em, plan, (source + (row + i) * plan.problem.k).fixed(), sink, zero)
    return em.workspace.cast(I32)


def _pack_row(em: Emit, plan: Plan, source: Ptr, to: Ptr, zero: Val | None) -> None:
    """Emit code that packs one row of A at `source`, less its zero point `zero` (None: 0); lanes
    end with zeros beyond k."""
    depth, k, group = plan.depth, plan.problem.k, plan.row.group
    if isinstance(k, Size):  # its last lane may end with zeros
        (to + (depth - 1) * group).store(em.b.zero(to.elem.x(group)))

    def move(at: Position, lanes: int, mask: Val | None) -> None:
        value = plan.left.stored((source + at).load(lanes, mask), zero)
        (to + at).store(value, mask)

    em.b.vectors(k, lanes_of(em.target, to.elem.nbytes), move)
    if not isinstance(k, Size):
        for at in range(k, depth * group):
            (to + at).store(em.b.zero(to.elem))


def _pack_panels(em: Emit, plan: Plan) -> None:
    """Emit the phase that packs panels of B and writes their tables; a tile is one panel."""
    b, columns, p = em.b, plan.tiling.columns, plan.problem
    source, scratch = em.input(1).pointer, em.scratch.cast(I32)

    def panel(
        matrix: Position, c: Position, column: Position, widths: tuple[int, ...], valid: int
    ) -> None:
        right = (source + matrix * (p.k * p.n) + column).fixed()
        to = scratch + matrix * plan.panels + column * plan.depth
        table = scratch + matrix * (2 * columns.padded) + column
        to, table = to.fixed(), (table + plan.tables_at).fixed()
        cut: Cut = []
        for at, width, count in vectors_of(widths, valid):
            cut.append((at, width, count, plan.right.zeros(em, b.index(column) + at, width, count)))
        _pack_panel(em, plan, right, to, cut)
        if plan.has_table:
            _fill_table(em, plan, to, table, cut)

    with b.loop(em.begin, em.end) as t:
        matrix, c = t // columns.count, t % columns.count
        each_column_panel(b, columns, c, b.index(c) + 1, lambda *of: panel(matrix, *of))


Cut = list[tuple[int, int, Any, "Val | None"]]
"""`vectors_of` a panel, each with its zero points."""


def _pack_panel(em: Emit, plan: Plan, right: Ptr, to: Ptr, cut: Cut) -> None:
    """Emit code that packs one panel of B, whose first element is at `right`, to `to` as lanes
    [k-group][column]. The last k-group is filled up with zeros; for matrix registers, k-groups of
    zeros follow, up to `plan.depth`."""
    k, n, group = plan.problem.k, plan.problem.n, plan.row.group
    size = _size(cut)

    def lanes(i: Position, elements: int) -> None:
        sink = (to + i * size).fixed()
        for at, width, count, zero in cut:
            found = []
            for e in range(elements):
                x = (right + i * (group * n) + (e * n + at)).load(width, count=count)
                found.append(plan.right.element(x, zero))
            (sink + at).store(joined(found, plan.row))

    if isinstance(k, Size) or k >= group:
        with em.b.loop(0, k // group) as i:
            lanes(i, group)
    for rest in range(1, group):  # of which one holds
        if isinstance(k, Size):
            with em.b.when(em.b.index(k % group).eq(rest)):
                lanes(k // group, rest)
        elif k % group == rest:
            lanes(k // group, rest)
    written = -(-k // group)
    if plan.row.unit == MATRICES and written < plan.depth:
        with em.b.loop(written, plan.depth) as i:
            for at in range(0, size, LINE):
                (to + (i * size + at)).store(em.b.zero(I32.x(LINE)))


def _size(cut: Cut) -> int:
    """Columns of a panel, padding included."""
    return sum(width for _, width, *_ in cut)


def _fill_table(em: Emit, plan: Plan, panel: Ptr, table: Ptr, cut: Cut) -> None:
    """Emit code that writes, for each column of a packed panel, its zero point (0 if it has none)
    to `table`, and its sum over k of (element - zero point) `plan.tiling.columns.padded` lanes
    after it."""
    ones = Operands(panel, 0, panel, _size(cut), plan.depth, row=plan.row)
    for total, (at, _, _, zero) in zip(_summed(ones, cut), cut, strict=True):
        zero = em.b.zero(total.ty) if zero is None else zero
        (table + at).store(zero)
        (table + (at + plan.tiling.columns.padded)).store(total - zero * plan.problem.k)


def _summed(at: Operands, cut: Cut) -> list[Val]:
    """Emit and return the sums of the columns of the packed panel at `at.b`, as vectors."""
    b, row = at.a.b, at.row.fold
    start = [b.zero(row.sums.x(w)) for _, w, *_ in cut]
    with b.loop(0, at.depth, carry=start) as loop:
        line, sums = at.b + loop.index * at.b_row, []
        for acc, (place, w, *_) in zip(loop.vars, cut, strict=True):
            one = b.const(row.one(row.left), row.lane.x(w))
            sums.append(row.step(acc, one, (line + place).load(w)))
        loop.next(sums)
    return loop.out


# ---- products


def _multiply(em: Emit, plan: Plan) -> None:
    """Emit the phase of products; its tiles are (product of the batch, cell), cells innermost."""
    b, columns = em.b, plan.tiling.columns
    lanes = em.scratch.cast(I32)
    ready = matrices.configured(b, plan.row, _buffer(em, plan))
    with ready, b.loop(em.begin, em.end) as t:
        item, cell = t // plan.cells.count, t % plan.cells.count
        a_row, matrix, here = _item(em, plan, item)
        rows = (em.input(0).pointer + a_row * plan.problem.k).fixed()
        if plan.constant:
            panels, table = em.packed[0].cast(I32), em.packed[-1].cast(I32)
        else:
            panels = (lanes + matrix * plan.panels).fixed()
            table = (lanes + plan.tables_at + matrix * (2 * columns.padded)).fixed()
        clo, chi = share(cell // plan.cells.rows, plan.cells.columns, columns.count)
        tile = partial(_row_panel, here, plan, rows, (panels, table), (clo, chi))
        parts = plan.tiling.rows.count if plan.sums is None else plan.sums.chunks
        lo, hi = share(cell % plan.cells.rows, plan.cells.rows, parts)
        if plan.sums is None:
            each_row_panel(b, plan.tiling.rows, lo, hi, tile)
        else:
            each = columns.size // plan.sums.rest.block
            plan.sums.each_row_panel(em, (lo, hi), (clo * each, chi * each), tile)


def _row_panel(
    em: Emit, plan: Plan, rows: Ptr, right: tuple[Ptr, Ptr], panels: tuple[Position, Position],
    row: Position, height: int, rest: Places | None = None,
) -> None:  # fmt: skip
    """Emit the products of `height` rows of A by some panels of B. The rows, from number `row` on
    of the matrix at `rows`, are packed first. `right`: pointers to the first panel of B and to its
    table; `panels`: (first, last + 1) of the panels; `rest`: of split weights."""
    b, p, columns = em.b, plan.problem, plan.tiling.columns
    a = _pack_rows(em, plan, rows, row, height)
    base = Operands(a, plan.stride, a, 0, plan.depth, row=plan.row)
    if plan.row.unit == MATRICES:
        _row_panel_in_matrices(em, plan, base, right, panels, row, height)
        return
    totals = lefts = None
    if plan.off_rows:
        ones = replace(base, ones=True)
        totals = [line[0].lane(0) for line in product(b, ones, height, (SUMMED,))]
    if plan.off_columns:
        places = [row + i if plan.left.count == 1 else (row + i) % plan.each for i in range(height)]
        lefts = [plan.left.zeros(em, at, 1) for at in places]

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        at = replace(base, b=(right[0] + column * plan.depth).fixed(), b_row=sum(widths))
        sums = product(b, at, height, widths, plan.tiling.accumulators)
        table = right[1] + column
        if rest is not None:
            sums = added(sums, rest(row, column, len(widths)))
        sums = taken_off(sums, totals, lefts, table, columns.padded)
        finish_tile(em, sums, row, column, valid, _buffer(em, plan), p.row_dims)

    each_column_panel(b, columns, *panels, panel)


def _buffer(em: Emit, plan: Plan) -> Ptr:
    """A pointer to the workspace after the packed rows of A."""
    return em.workspace.cast(plan.row.sums) + plan.buffer_at


def _row_panel_in_matrices(
    em: Emit, plan: Plan, base: Operands, right: tuple[Ptr, Ptr],
    panels: tuple[Position, Position], row: Position, height: int,
) -> None:  # fmt: skip
    """Emit `_row_panel` on matrix registers, after the rows were packed at `base.a`. Sums are
    corrected for zero points and finished in a loop over rows."""
    b, columns, room = em.b, plan.tiling.columns, _buffer(em, plan)
    numbers = matrices.Registers(b, room, height, 1).numbers
    if plan.off_rows:
        with b.loop(0, height) as i:
            a = (base.a + i * plan.stride).fixed()
            ones = replace(base, a=a, row=plan.row.fold, ones=True)
            (numbers + i).store(product(b, ones, 1, (SUMMED,))[0][0].lane(0))

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        at = replace(base, b=(right[0] + column * plan.depth).fixed(), b_row=sum(widths))
        tile = matrices.Registers(b, room, height, len(widths))
        tile.clear()
        tile.add(at)
        tile.store()
        finish = finisher(em, row, column, valid, plan.problem.row_dims)
        with b.loop(0, height) as i:
            totals = [(numbers + i).load()] if plan.off_rows else None
            place = row + i if plan.left.count == 1 else (row + i) % plan.each
            lefts = [plan.left.zeros(em, place, 1)] if plan.off_columns else None
            table = right[1] + column
            (line,) = taken_off([tile.line(i)], totals, lefts, table, columns.padded)
            finish(i, line)

    each_column_panel(b, columns, *panels, panel)


def _item(em: Emit, plan: Plan, item: Position) -> tuple[Position, Position, Emit]:
    """For product number `item` of the batch: the number of its first row among all of A, that of
    its matrix B, and `em` shifted to its place in the output."""
    p = plan.problem
    index, here = index_of(em, p, item)
    right = tuple(s // (p.k * p.n) for s in p.right)
    return offset(index, tuple(s // p.k for s in p.left)), offset(index, right), here
