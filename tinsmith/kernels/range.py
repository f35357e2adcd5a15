"""Ranges of whole numbers whose bounds are sizes that only a call tells."""

from __future__ import annotations

from typing import Any

from tinsmith.codegen.builder import Val
from tinsmith.codegen.types import I64, from_dtype
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.walk import Position, finish_run
from tinsmith.sizes import Number, typical


def _number(site: Site, place: int) -> Number:
    const: Any = site.input(place).const
    if const is None:
        raise Skip("its bounds are known only when it runs")
    return const.reshape(-1).tolist()[0]


@kernel("Range", Tier.VECTOR, dtypes="int32 int64")
def range_sized(site: Site) -> Choice:
    """The numbers first + i * step, in vectors; first, step and their count may be free sizes."""
    first, step = _number(site, 0), _number(site, 2)
    ty, count = from_dtype(site.out.dtype), site.out.dims[0]
    lanes = lanes_of(site.target, site.out.dtype.itemsize)
    cost = site.target.time(0.0, 2.0 * typical(site.out.type.nbytes), 0.25) + 1e-8

    def emit(em: Emit) -> None:
        b = em.b

        def run(at: Position, size: int, mask: Val | None) -> None:
            places, wide = b.index(at).splat(size), I64.x(size)
            if size > 1:
                places = places + b.vector(range(size), I64)
            numbers = places * b.const(step, wide) + b.const(first, wide)
            finish_run(em, numbers.to(ty.kind), 0, at, mask)

        b.vectors(count, lanes, run)

    return Choice(
        cost=cost, reads=(None, None, None), writes=(PLAIN,), phases=one_phase(1, emit),
        detail=str(count),
    )  # fmt: skip
