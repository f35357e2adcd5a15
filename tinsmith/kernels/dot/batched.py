"""Matrix products of two operands that are both known only at run time, with batches."""

from __future__ import annotations

from math import prod

from tinsmith.codegen.builder import Builder, Ptr
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.dot.matmul import copy_spread, spread_stride
from tinsmith.kernels.dot.panels import Grid, each_column_panel, each_row_panel, grid, vectors_of
from tinsmith.kernels.dot.skeleton import Operands, buffer_bytes, finish_tile, product
from tinsmith.kernels.dot.tiles import Columns, Tiling, choose
from tinsmith.kernels.layout import plain_strides
from tinsmith.kernels.walk import Position, Walk, share, shifted, walk_of
from tinsmith.records import dataclass
from tinsmith.sizes import typical

PACK_ROWS = 48
"""With this many rows of A or more, packing B pays if B does not fit in L1."""


@dataclass(frozen=True)
class Problem:
    """A batch of products A B, of (m, k) by (k, n).

    batch        the batch dimensions of the output; () where there is one product
    left, right  the strides of A and B along each of `batch`, in elements; 0 where they broadcast
    row_dims     (first, last + 1) of the output's dimensions through which the m rows run: two
                 or more where leading dimensions of A are taken as rows of one product
    """

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    left: tuple[int, ...]
    right: tuple[int, ...]
    row_dims: tuple[int, int]

    @property
    def items(self) -> int:
        """How many products the batch has."""
        return prod(self.batch)


def problem(site: Site) -> Problem:
    """The products of a MatMul site: a single one, of all rows of A, if B has no batch. Raises Skip
    if an operand or the result is empty, or the output has not the product's shape."""
    a, b = site.input(0).dims, site.input(1).dims
    if 0 in (prod(a), prod(b), site.out.type.size):
        raise Skip("an operand or the result is empty")
    m, k = prod(a[-2:-1]), a[-1]
    columns = b[-1:] if len(b) > 1 else ()
    n = prod(columns)
    lead_a, lead_b = a[:-2], b[:-2]
    rank = max(len(lead_a), len(lead_b))
    batch = tuple(map(max, _wide(lead_a, rank), _wide(lead_b, rank)))
    want = (*batch, *a[-2:-1], *columns)
    if site.out.dims != want:
        raise Skip(f"the output {site.out.dims} is not the product's shape {want}")
    if prod(lead_b) == 1 and prod(lead_a) == prod(batch) and len(a) > 1:
        return Problem((), prod(batch) * m, k, n, (), (), (0, rank + 1))
    rows = (rank, rank + (len(a) > 1))
    return Problem(batch, m, k, n, _strides(a, batch), _strides(b, batch), rows)


def _wide(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`dims` with ones in front, so that there are `rank` of them."""
    return (1,) * (rank - len(dims)) + dims


def _strides(dims: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides along `batch` of an operand of shape (batch..., rows, columns), in elements; 0 where
    it broadcasts."""
    own = plain_strides(dims)[:-2]
    own = (0,) * (len(batch) - len(own)) + own
    lead = _wide(dims[:-2], len(batch))
    return tuple(0 if d == 1 else s for d, s in zip(lead, own, strict=True))


def offset(index: list[Position], strides: tuple[int, ...]) -> Position:
    """The sum of index * stride: the offset of an element."""
    total: Position = 0
    for i, s in zip(index, strides, strict=True):
        total = i * s + total
    return total


def index_of(em: Emit, p: Problem, item: Position) -> tuple[list[Position], Emit]:
    """The index of product `item` along each of `p.batch`, and `em` shifted to its output."""
    if not p.batch:
        return [], em
    views = walk_of(em, 0, len(p.batch)).strides
    index = Walk(p.batch, [p.left, p.right, *views]).index(item)
    return index, shifted(em, index)


def at_item(em: Emit, p: Problem, item: Position) -> tuple[Ptr, Ptr, Emit]:
    """Pointers to A and B of product `item` of the batch, and `em` shifted to its output."""
    index, here = index_of(em, p, item)
    a, b = em.input(0).pointer, em.input(1).pointer
    return (a + offset(index, p.left)).fixed(), (b + offset(index, p.right)).fixed(), here


@dataclass(frozen=True)
class Plan:
    """How a problem is computed. `tiling` cuts each product into register tiles; `cells` groups
    these into cells, the units of work that threads share (each a tile of the phase).

    packed  bytes of the panels of B that a cell packs first; 0: B is read in place
    stride  elements from one row of A to the next, or of copies of them (`spread_stride`)
    """

    problem: Problem
    tiling: Tiling
    cells: Grid
    packed: int
    stride: int

    @property
    def spread(self) -> bool:
        """Whether rows of A are copied further apart before they are multiplied."""
        return self.stride != self.problem.k

    @property
    def beside(self) -> int:
        """Bytes of workspace for copies of one panel of rows of A; 0 if rows are not copied."""
        return 4 * self.tiling.rows.size * self.stride if self.spread else 0


@kernel("MatMul", Tier.VECTOR, dtypes="float32")
def matmul_batched(site: Site) -> Choice:
    """Register-tiled products of run-time operands; large right operands are packed on the way.

    Declines right operands of one column (`matvec`), and of one constant matrix (`matmul_packed`).
    """
    p = problem(site)
    if p.n == 1:
        raise Skip("one column: matvec folds the rows")
    if site.input(1).const is not None and not p.batch and site.input(1).rank != 1:
        raise Skip("the right operand is a constant: matmul_packed packs it once")
    target = site.target
    items, m, k, n = map(typical, (p.items, p.m, p.k, p.n))
    packs = m >= PACK_ROWS and 4 * k * n > target.l1
    tiling = choose(target, p.m, p.n, p.k, exact=not packs and target.has_exact_tails)
    nbytes = 4.0 * items * (m * k + k * n * (3 if packs else 1) + m * n)
    cost = target.time(2.0 * items * m * n * k, nbytes, tiling.efficiency) + 1e-7
    cells = grid(target, tiling, k, cost / items, items)
    per_cell = -(-tiling.columns.count // cells.columns) if packs else 0
    packed = 4 * p.k * tiling.columns.size * per_cell
    stride = spread_stride(p.k, tiling.rows.size) if n >= 48 else p.k
    plan = Plan(p, tiling, cells, packed, stride)
    notes = (", B packed" if packs else "") + (", rows copied apart" if plan.spread else "")
    buffer = buffer_bytes(site, tiling.rows.size, max(tiling.columns.size, 1))
    return Choice(
        cost=cost, reads=site.reads((PLAIN, PLAIN), PLAIN), writes=(PLAIN,),
        phases=one_phase(p.items * cells.count, lambda em: emit_batched(em, plan)),
        workspace=packed + plan.beside + buffer, detail=f"{tiling}{notes}, batch {p.items}",
    )  # fmt: skip


def emit_batched(em: Emit, plan: Plan) -> None:
    """Emit the kernel; its tiles are (product of the batch, cell), the cell innermost."""
    with em.b.loop(em.begin, em.end) as t:
        a, right, here = at_item(em, plan.problem, t // plan.cells.count)
        _cell(here, plan, a, right, t % plan.cells.count)


def _cell(em: Emit, plan: Plan, a: Ptr, right: Ptr, cell: Position) -> None:
    """Emit one cell, a group of row panels by a group of column panels, of the product of the
    matrices at `a` and `right`; `em` is shifted to that product."""
    b, p, tiling, cells = em.b, plan.problem, plan.tiling, plan.cells
    columns = tiling.columns
    rlo, rhi = share(cell % cells.rows, cells.rows, tiling.rows.count)
    clo, chi = share(cell // cells.rows, cells.columns, columns.count)
    store = em.workspace.cast(F32)
    rows_at = (store + plan.packed // 4).fixed()
    buffer = (rows_at + plan.beside // 4).fixed()
    if plan.packed:
        pack_panels(b, right, p, columns, clo, chi, store)

    def row_panel(row: Position, height: int) -> None:
        rows = (a + row * p.k).fixed()
        if plan.spread:
            copy_spread(b, rows, p.k, rows_at, plan.stride, 0, height)
            rows = rows_at

        def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            if plan.packed:
                panel_at = store + (b.index(c) - b.index(clo)) * (p.k * columns.size)
                at = Operands(rows, plan.stride, panel_at.fixed(), sum(widths), p.k)
            else:
                mask = b.first_lanes(valid, widths[-1]) if valid != widths[-1] else None
                at = Operands(rows, plan.stride, (right + column).fixed(), p.n, p.k, mask)
            sums = product(b, at, height, widths, tiling.accumulators)
            finish_tile(em, sums, row, column, valid, buffer, p.row_dims)

        each_column_panel(b, columns, clo, chi, panel)

    each_row_panel(b, tiling.rows, rlo, rhi, row_panel)


def pack_panels(
    b: Builder, right: Ptr, p: Problem, columns: Columns, lo: Position, hi: Position, to: Ptr
) -> None:
    """Emit code that copies the panels [lo, hi) of columns of the matrix B at `right` to `to`, as
    [panel][k][column of the panel]; padding columns are zeros."""

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        source = (right + column).fixed()
        sink = (to + (b.index(c) - b.index(lo)) * (p.k * columns.size)).fixed()
        with b.loop(0, p.k) as k:
            line, out = (source + k * p.n).fixed(), (sink + k * sum(widths)).fixed()
            for at, width, count in vectors_of(widths, valid):
                (out + at).store((line + at).load(width, count=count))

    each_column_panel(b, columns, lo, hi, panel)
