"""A matrix times one column: the product of each row and the column is summed along k."""

from __future__ import annotations

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, elem, kernel, one_phase
from tinsmith.kernels.dot.batched import at_item, problem
from tinsmith.kernels.dot.panels import each_row_panel
from tinsmith.kernels.dot.tiles import split_rows
from tinsmith.kernels.fold import SUM, fold_row
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.sharing import PARTS
from tinsmith.kernels.walk import Position, share, shifted_to
from tinsmith.sizes import typical

ROWS = 4
"""The most rows that are multiplied in one pass over the column. Estimated."""


@kernel("MatMul", Tier.SHAPED, dtypes="float32 float64 int32 int64 uint32 uint64")
def matvec(site: Site) -> Choice:
    """Rows times one column (or vector), in vectors along k."""
    p = problem(site)
    items, m, k = map(typical, (p.items, p.m, p.k))
    if p.n != 1:
        raise Skip(f"the right operand has {p.n} columns")
    target, ty = site.target, elem(site.input(0))
    rows, itemsize = split_rows(p.m, ROWS), ty.nbytes
    flops, nbytes = 2.0 * items * m * k, itemsize * items * (m * k + k + m)
    cost = target.time(flops * itemsize / 4, nbytes, 0.5)
    groups = min(typical(rows.count), max(1, PARTS // items)) if cost > 5e-6 else 1
    nothing = (0,) * len(site.out.dims)
    first, last = p.row_dims

    def emit(em: Emit) -> None:
        b = em.b
        lanes = lanes_of(target, itemsize)

        with b.loop(em.begin, em.end) as t:
            left, right, here = at_item(em, p, t // groups)
            lo, hi = share(t % groups, groups, rows.count)

            def panel(row: Position, height: int) -> None:
                a = (left + row * p.k).fixed()

                def step(at: Position, size: int, mask: Val | None, accs: list[Val]) -> list[Val]:
                    x = (right + at).load(size, mask)
                    return [
                        (a + at + i * p.k).load(size, mask).fma(x, acc)
                        for i, acc in enumerate(accs)
                    ]

                chains = max(1, 8 // height)
                sums = fold_row(b, p.k, lanes, [SUM] * height, step, chains, ty)
                for i, total in enumerate(sums):
                    shifted_to(here, first, last, row + i).finish(total, nothing)

            each_row_panel(b, rows, lo, hi, panel)

    return Choice(
        cost=cost + 1e-7, reads=site.reads((PLAIN, PLAIN), PLAIN), writes=(PLAIN,),
        phases=one_phase(p.items * groups, emit),
        detail=f"{rows.size} rows at a time, batch {p.items}",
    )  # fmt: skip
