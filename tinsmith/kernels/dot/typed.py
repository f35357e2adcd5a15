"""Matrix products of float64, and of integers of 32 and 64 bits."""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.products import multiply_adds
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, elem, kernel, one_phase
from tinsmith.kernels.dot.batched import PACK_ROWS, Problem, at_item, problem
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, buffer_bytes, finish_tile, product
from tinsmith.kernels.dot.tiles import accumulators, split_columns, split_rows
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position, share
from tinsmith.sizes import typical

VECTORS = 3
"""The most vectors of columns of a tile. Estimated."""


@kernel("MatMul", Tier.VECTOR, dtypes="float64 int32 int64 uint32 uint64")
def matmul_typed(site: Site) -> Choice:
    """Register-tiled products of float64 or whole numbers.

    Where A has many rows and B does not fit L1, each group of rows packs the panels of B.
    """
    p = problem(site)
    items, m, k, n = map(typical, (p.items, p.m, p.k, p.n))
    if p.n == 1:
        raise Skip("one column: matvec folds the rows")
    target = site.target
    ty, nbytes = elem(site.input(0)), site.input(0).dtype.itemsize
    one = multiply_adds(ty)
    lanes = lanes_of(target, nbytes)
    columns = split_columns(p.n, lanes, VECTORS, target.has_exact_tails)
    rows = split_rows(p.m, accumulators(target) // max(VECTORS, len(columns.tail)))
    moved = float(nbytes) * items * (m * k + k * n + m * n)
    # as so many operations of float32, of which vectors hold nbytes / 4 times as many
    cost = target.time(nbytes / 2 * items * m * n * k, moved, 0.7) + 1e-7
    packs = m >= PACK_ROWS and nbytes * k * n > target.l1
    shares = PARTS if not packs else 2 * site.threads if site.threads > 1 else 1
    groups = parts_for(rows.count, cost, shares)
    packed = p.k * VECTORS * lanes if packs else 0

    def emit(em: Emit) -> None:
        b, store = em.b, em.workspace.cast(ty)
        buffer = (store + packed).fixed()
        with b.loop(em.begin, em.end) as t:
            a, right, here = at_item(em, p, t // groups)
            lo, hi = share(t % groups, groups, rows.count)

            def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
                mask = b.first_lanes(valid, widths[-1]) if valid != widths[-1] else None
                start, b_row = (right + column).fixed(), p.n
                if packs:
                    _pack_panel(b, p, start, widths, mask, store)
                    start, b_row, mask = store, sum(widths), None

                def tile(row: Position, height: int) -> None:
                    at = Operands((a + row * p.k).fixed(), p.k, start, b_row, p.k, mask, row=one)
                    sums = product(b, at, height, widths)
                    finish_tile(here, sums, row, column, valid, buffer, p.row_dims)

                each_row_panel(b, rows, lo, hi, tile)

            each_column_panel(b, columns, 0, columns.count, panel)

    return Choice(
        cost=cost, reads=site.reads((PLAIN, PLAIN), PLAIN), writes=(PLAIN,),
        phases=one_phase(p.items * groups, emit),
        workspace=nbytes * packed + nbytes // 4 * buffer_bytes(site, rows.size, VECTORS * lanes),
        detail=f"{rows.size} rows at a time, batch {p.items}",
    )  # fmt: skip


def _pack_panel(
    b: Builder, p: Problem, start: Ptr, widths: tuple[int, ...], mask: Val | None, to: Ptr
) -> None:
    """Emit a copy of the panel of B at `start` to `to`: [k][column]. `mask`: of the last vector."""
    with b.loop(0, p.k) as k:
        source, sink = start + k * p.n, to + k * sum(widths)
        for i, width in enumerate(widths):
            last = mask if i == len(widths) - 1 else None
            sink.store(source.load(width, last))
            source, sink = source + width, sink + width
