"""Products with a constant right operand on matrix registers."""

from __future__ import annotations

from functools import partial

from tinsmith.codegen.builder import Val
from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.products import MATRICES
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.amx.pack_left import Source
from tinsmith.kernels.amx.pack_right import packed_weights
from tinsmith.kernels.amx.phases import Results, Work
from tinsmith.kernels.amx.tiling import AmxPlan, Axis, best_plan
from tinsmith.kernels.dot.matmul import FEW_ROWS, flat_rows, right_matrix
from tinsmith.kernels.float_products import float_product
from tinsmith.kernels.walk import shifted, walk_of


@kernel("MatMul", Tier.SHAPED, dtypes="float32", isas="amx", numbers=True)
def matmul_amx(site: Site) -> Choice:
    """Product of float32 by a constant, both as bfloat16 (split or not), on matrix registers.

    Takes more than FEW_ROWS rows, of 16 elements or more.
    """
    w = right_matrix(site)
    row = float_product(site, MATRICES, w)
    k, n = w.shape
    m = flat_rows(site, n)
    if m <= FEW_ROWS:
        raise Skip(f"{m} rows: gemv_packed streams the weights")
    if k < SIDE:
        raise Skip(f"{k} products for a result do not fill a register's row")
    draft = AmxPlan(1, k, -(-n // SIDE), Axis(m), Axis(1), row=row)
    plan, seconds = best_plan(site.target, draft, 4.0 * m * (k + n), site.threads)
    return Choice(
        cost=seconds, reads=site.reads((PLAIN, None), PLAIN), writes=(PLAIN,),
        packed=(packed_weights(w, row, columns=True),),
        **Work(plan, partial(_source, k), partial(_finish, n)).fields,
    )  # fmt: skip


def _source(k: int, em: Emit) -> Source:
    """Where the left operand lies: a row is a position, its k elements are channels."""
    view = em.input(0)
    return Source(view.pointer, 0, SIDE, k, k, True)


def _finish(n: int, em: Emit, results: Results) -> None:
    """Emit the epilogue and the stores of some results of a product with n columns. Positions are
    rows of the product, lanes columns."""
    b, dims = em.b, em.site.out.dims
    rows = walk_of(em, 0, len(dims) - 1)
    valid = n - results.vector * SIDE
    mask = b.first_lanes(valid, SIDE) if n % SIDE else None
    nothing = [0] * len(dims)

    def place(row: Val) -> list[Val | int]:
        return [*rows.index(row), results.vector * SIDE]

    def one(i: Val, k: int, acc: Val) -> None:
        row = results.row + i
        if rows.outer:
            shifted(em, place(row + k)).finish(acc, nothing, mask)
        else:
            shifted(em, place(row)).finish(acc, [*rows.index(k), 0], mask)

    results.each(b, results.first, results.last, one)
