"""Matrix products with a constant right operand by Strassen's method, of one level or two."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, kernel
from tinsmith.kernels.dot.matmul import flat_rows, right_matrix
from tinsmith.kernels.dot.skeleton import finish_row, offsets
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.strassen.choice import choice_of, shapes
from tinsmith.kernels.walk import Position, shifted_to


@kernel("MatMul", Tier.SHAPED, dtypes="float32", numbers=True)
def matmul_strassen(site: Site) -> list[Choice]:
    """Seven products of half size instead of eight, or 49 instead of 64."""
    w = right_matrix(site)
    k, n = w.shape
    found = shapes(site, flat_rows(site, n), w, levels=(1, 2), unit=1)
    return [choice_of(site, w, s, PLAIN, lambda em: PlainEnds(em, k)) for s in found]


class PlainEnds:
    """`Ends` for rows of plain arrays, `k` elements each."""

    def __init__(self, em: Emit, k: int) -> None:
        self.em, self.k, self.input = em, k, em.input(0).pointer
        self.step = block_of(em.target)
        self.lead = len(em.site.out.dims) - 1

    def source(self, row: Position) -> Ptr:
        return self.input + row * self.k

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        em, scales = self.em, (self.em.packed[2] + column).fixed()
        values = [v * (scales + first).load(v.ty.lanes) for first, v in offsets(values)]
        here = shifted_to(em, 0, self.lead, row, column)
        finish_row(here, values, [0] * (self.lead + 1), values[-1].ty.lanes)
