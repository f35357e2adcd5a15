"""Running sums and products along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinsmith.codegen.builder import Val
from tinsmith.codegen.types import from_dtype
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, kernel
from tinsmith.kernels.fold import PRODUCT, SUM, Fold, combine
from tinsmith.kernels.layout import around, lanes_of
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.walk import Blocks, Part, Position, finish_run, shifted, shifted_to
from tinsmith.sizes import typical

VECTORS = 4
"""Vectors of neighbours that are summed side by side, which hides the latency of an addition
(estimated)."""


def _scan(site: Site, fold: Fold) -> Choice:
    """The choice for running folds along one axis, the constant input 1: vectors run along the
    dimensions after it, and floats are folded in double precision."""
    x = site.input(0)
    dims, ty = site.need_same_shape(), from_dtype(x.dtype)
    axis = int(site.const(1, "the axis").reshape(-1)[0]) % len(dims)
    split = around(dims, axis)
    n, inner = split.n, split.inner
    exclusive, reverse = site.attr("exclusive"), site.attr("reverse")
    lanes = lanes_of(site.target, x.dtype.itemsize)
    size, nbytes = typical(prod(dims)), typical(x.type.nbytes)
    cost = site.target.time(8.0 * size, 2.0 * nbytes, 0.25 / lanes) + 1e-7
    blocks = Blocks(inner, lanes if inner > 1 else 1, VECTORS)
    wide = "f64" if x.dtype.name == "float32" else ty.kind

    def emit(em: Emit, unit: Val) -> None:
        b, outer = em.b, unit // blocks.number
        here = shifted_to(em, 0, axis, outer)
        source = (em.input(0).pointer + outer * (n * inner)).fixed()

        def columns(first: Position, parts: Sequence[Part]) -> None:
            start = [b.const(fold.identity, ty.x(p.lanes).of(wide)) for p in parts]
            with b.loop(0, n, 1, start) as loop:
                row = b.index(n - 1) - loop.index if reverse else loop.index
                line = (source + row * inner + first).fixed()
                there, sums = shifted(here, [*(0,) * axis, row]), []
                for before, p in zip(loop.vars, parts, strict=True):
                    value = (line + p.offset).load(p.lanes, p.mask).to(wide)
                    sums.append(combine(fold, before, value))
                    y = (before if exclusive else sums[-1]).to(ty.kind)
                    finish_run(there, y, axis + 1, first + p.offset, p.mask)
                loop.next(sums)

        blocks.emit(b, unit % blocks.number, columns)

    return Choice(
        cost=cost, reads=site.reads((PLAIN, None), PLAIN), writes=(PLAIN,),
        phases=each_unit(split.outer * blocks.number, cost, emit), inplace=0, detail=str(split),
    )  # fmt: skip


@kernel("CumSum", Tier.VECTOR, dtypes="float32 float64 int32 int64")
def cumsum(site: Site) -> Choice:
    """Running sums along one axis, in double precision for floats."""
    return _scan(site, SUM)


@kernel("CumProd", Tier.VECTOR, dtypes="float32 float64 int32 int64")
def cumprod(site: Site) -> Choice:
    """Running products along one axis, in double precision for floats."""
    return _scan(site, PRODUCT)
