"""Matrix products with a constant right operand by Strassen's method, of one level or two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
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
from tinsmith.kernels.dot.matmul import flat_rows, right_matrix
from tinsmith.kernels.dot.panels import part
from tinsmith.kernels.dot.skeleton import finish_row
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position, shifted, strides_of, unravel
from tinsmith.kernels.strassen.emit import LARGE, Work, clear, rows
from tinsmith.kernels.strassen.form import right_factors
from tinsmith.kernels.strassen.shape import Shape, shape_of
from tinsmith.kernels.strassen.steps import Room, table

LEAST_ROWS = 24
LEAST_DEPTH = 64
LEVELS = (1, 2)


def pack(w: np.ndarray[Any, Any], columns: Columns, side: int, depth: int) -> np.ndarray[Any, Any]:
    """The right factors: [slab][panel][product][depth][columns of the panel]."""
    found = []
    for slab in range(0, len(w), side * depth):
        wide = w[slab : slab + side * depth].astype(np.float64)
        for c in range(columns.count):
            size = columns.size if c < columns.full else sum(columns.tail)
            at = side * c * columns.size
            grid = [
                [
                    wide[k * depth : (k + 1) * depth, at + n * size : at + (n + 1) * size]
                    for n in range(side)
                ]
                for k in range(side)
            ]
            found += [x.astype(np.float32).reshape(-1) for x in right_factors(grid)]
    return np.concatenate(found)


@kernel("MatMul", Tier.SHAPED, dtypes="float32")
def matmul_strassen(site: Site) -> list[Choice]:
    """Seven products of half size instead of eight, or 49 instead of 64."""
    if site.precision != "default":
        raise Skip(f"{site.precision} precision asks for the products themselves")
    w = right_matrix(site)
    k, n = w.shape
    m = flat_rows(site, n)
    if m < LEAST_ROWS or k < LEAST_DEPTH:
        raise Skip(f"{m} rows of {k}: the sums take longer than what they save")
    lanes = block_of(site.target)
    levels = [v for v in LEVELS if k % 2**v == 0 and n % (2**v * lanes) == 0]
    if not levels:
        raise Skip(f"{k} x {n} cannot be halved in whole vectors")
    if not np.all(np.abs(w) < LARGE):
        raise Skip(f"the right operand has elements of {LARGE:g} and more")
    target, threads = site.target, site.threads
    return [_choice(site, w, shape_of(target, v, m, k, n, threads)) for v in levels]


def _choice(site: Site, w: np.ndarray[Any, Any], shape: Shape) -> Choice:
    cost = shape.seconds(site.target)
    cuts, count = shape.cuts(cost), shape.tiling.rows.count
    factors = w.nbytes * shape.products // shape.side**2

    def emit(em: Emit) -> None:
        ends = PlainEnds(em, shape)
        clear(em.b, shape, em.workspace)
        with em.b.loop(em.begin, em.end) as t:
            rlo, rhi = part(t % cuts, cuts, count)
            clo, chi = part(t // cuts, shape.groups, shape.tiling.columns.count)
            work = Work(em.b, shape, ends, em.packed[0], em.packed[1], em.workspace, clo, chi)
            rows(work, rlo, rhi)

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN, None), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(cuts * shape.groups, emit),
        packed=(
            Packed("w", partial(pack, w, shape.tiling.columns, shape.side, shape.depth), factors),
            Packed("steps", partial(table, shape)),
        ),
        workspace=4 * Room(shape).end + 256,
        detail=f"{shape.products} products, {shape.tiling}, {shape.groups} groups of columns",
    )


class PlainEnds:
    """Rows of plain arrays."""

    def __init__(self, em: Emit, shape: Shape) -> None:
        self.em, self.k = em, shape.k
        self.step = block_of(em.target)
        self.lead = em.site.out.dims[:-1]

    def source(self, row: Position) -> Ptr:
        return self.em.ins[0].pointer + row * self.k  # type: ignore[union-attr]

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        em = self.em
        views = strides_of([*em.extras, em.outs[0]], 0, len(self.lead))
        here = shifted(em, [*unravel(row, self.lead, views), column])
        finish_row(here, values, [0] * (len(self.lead) + 1), values[-1].ty.lanes)
