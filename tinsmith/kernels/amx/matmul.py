"""Products with a constant right operand on matrix registers."""

from __future__ import annotations

from functools import partial

from tinsmith.codegen.builder import Val
from tinsmith.codegen.matrix import SIDE
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Site, Skip, Tier, kernel
from tinsmith.kernels.amx.emit import Results, Work, each_position
from tinsmith.kernels.amx.plan import Axis, Plan, best_plan
from tinsmith.kernels.amx.split import Source
from tinsmith.kernels.amx.weights import can_be_split, need_halves, pack_columns, packed_bytes
from tinsmith.kernels.dot.matmul import FEW_ROWS, flat_rows, right_matrix
from tinsmith.kernels.walk import shifted, walk_of


@kernel("MatMul", Tier.SHAPED, dtypes="float32", isas="amx", numbers=True)
def matmul_amx(site: Site) -> Choice:
    """Product with a constant right operand by bfloat16 halves on matrix registers."""
    w = right_matrix(site)
    need_halves(site, w)
    k, n = w.shape
    m = flat_rows(site, n)
    if m <= FEW_ROWS:
        raise Skip(f"{m} rows: gemv_packed streams the weights")
    if k < SIDE:
        raise Skip(f"{k} products for a result do not fill a register's row")
    draft = Plan(1, k, -(-n // SIDE), Axis(m), Axis(1))
    plan, seconds = best_plan(site.target, draft, 4.0 * m * (k + n), site.threads)
    work = Work(plan, partial(_source, k), partial(_finish, n))
    return Choice(
        cost=seconds,
        reads=site.reads((PLAIN, None), PLAIN),
        writes=(PLAIN,),
        phases=work.phases,
        packed=(Packed("weights", pack_columns, (w,), packed_bytes(n, k, 1), can_be_split),),
        workspace=work.workspace,
        scratch=work.scratch,
        by_channels=plan.by_channels,
        detail=str(plan),
    )


def _source(k: int, em: Emit) -> Source:
    view = em.input(0)
    return Source(view.pointer, 0, SIDE, k, k, True)


def _finish(n: int, em: Emit, results: Results) -> None:
    b, dims = em.b, em.site.out.dims
    rows = walk_of(em, 0, len(dims) - 1)
    valid = n - results.vector * SIDE
    mask = b.first_lanes(valid, SIDE) if n % SIDE else None
    nothing = [0] * len(dims)

    def place(row: Val) -> list[Val | int]:
        return [*rows.index(row), results.vector * SIDE]

    def one(i: Val, k: int) -> None:
        acc = (results.sums + (i - results.first) * SIDE + k * SIDE).load(SIDE)
        row = results.row + i
        if rows.outer:
            shifted(em, place(row + k)).finish(acc, nothing, mask)
        else:
            shifted(em, place(row)).finish(acc, [*rows.index(k), 0], mask)

    each_position(b, results.first, results.last, one)
