"""Matrix products with a constant right operand, packed once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Packed,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, grid, part
from tinsmith.kernels.dot.skeleton import Operands, buffer_bytes, finish_tile, product
from tinsmith.kernels.dot.tiles import Columns, Tiling, choose
from tinsmith.kernels.places import Position

FEW_ROWS = 4


def pack_columns(w: np.ndarray[Any, Any], columns: Columns) -> np.ndarray[Any, Any]:
    """A (k, n) matrix as [panel][k][columns of the panel], the last panel padded with zeros."""
    k = w.shape[0]
    body = columns.full * columns.size
    full = w[:, :body].reshape(k, columns.full, columns.size).transpose(1, 0, 2)
    tail = np.zeros((k, sum(columns.tail)), w.dtype)
    tail[:, : w.shape[1] - body] = w[:, body:]
    return np.concatenate([full.reshape(-1), tail.reshape(-1)])


def right_matrix(site: Site) -> np.ndarray[Any, Any]:
    """The constant right operand as a (k, n) matrix, or Skip."""
    w = site.const(1, "the right operand")
    if w.ndim == 1:
        raise Skip("the right operand is a vector")
    if prod(w.shape[:-2]) != 1:
        raise Skip(f"the right operand has batch dimensions {w.shape[:-2]}")
    if w.ndim > max(2, site.input(0).rank or 0):
        raise Skip("the right operand has a higher rank than the left one")
    return w.reshape(w.shape[-2:])


def flat_rows(site: Site, n: int) -> int:
    """Rows of the left operand with its leading dimensions as one."""
    left = site.input(0)
    lead = left.dims[:-1]
    if site.out.dims != (*lead, n):
        raise Skip(f"the output {site.out.dims} is not the product's shape {(*lead, n)}")
    m = prod(lead)
    if m == 0 or n == 0:
        raise Skip("the result is empty")
    return m


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def matmul_packed(site: Site) -> Choice:
    """Register-tiled product with a constant right operand that is packed in panels."""
    w = right_matrix(site)
    k, n = w.shape
    m = flat_rows(site, n)
    if m <= FEW_ROWS:
        raise Skip(f"{m} rows: gemv_packed streams the weights")
    target = site.target
    return packed_choice(site, w, m, choose(target, m, n, k), stream=m < 48)


def packed_choice(
    site: Site, w: np.ndarray[Any, Any], m: int, tiling: Tiling, stream: bool
) -> Choice:
    """The choice for m flat rows times a packed w; `stream` prefetches the packed panels."""
    target = site.target
    k, n = w.shape
    nbytes = 4.0 * (m * k + k * tiling.columns.padded + m * n)
    cost = target.time(2.0 * m * n * k, nbytes, tiling.efficiency) + 1e-7
    cells = grid(target, tiling, k, cost)
    lead = len(site.out.dims) - 1

    def emit(em: Emit) -> None:
        b = em.b
        a, weights = em.ins[0].pointer, em.packed[0]  # type: ignore[union-attr]
        buffer = em.workspace.cast(F32)

        def tile(row: Position, height: int, lo: Position, hi: Position) -> None:
            rows = (a + row * k).fixed()

            def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
                at = Operands(rows, k, _panel(weights, c, k, tiling.columns), sum(widths), k,
                              stream=stream)  # fmt: skip
                sums = product(b, at, height, widths)
                finish_tile(em, sums, row, column, valid, buffer, lead)

            each_column_panel(b, tiling.columns, lo, hi, panel)

        with b.loop(em.begin, em.end) as t:
            rlo, rhi = part(t % cells.rows, cells.rows, tiling.rows.count)
            clo, chi = part(t // cells.rows, cells.columns, tiling.columns.count)
            each_row_panel(b, tiling.rows, rlo, rhi, lambda row, h: tile(row, h, clo, chi))

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN, None), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(cells.count, emit),
        packed=(Packed("w", lambda: pack_columns(w, tiling.columns)),),
        workspace=buffer_bytes(site, tiling.rows.size, max(tiling.columns.size, 1)),
        detail=str(tiling),
    )


def _panel(weights: Ptr, c: Position, depth: int, columns: Columns) -> Ptr:
    return (weights + c * (depth * columns.size)).fixed()
