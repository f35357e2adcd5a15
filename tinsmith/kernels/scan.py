"""Running sums and products along one axis."""

from __future__ import annotations

from math import prod

from tinsmith.codegen.types import from_dtype
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.places import Position, Sizes, at_outer, each_block, finish_run, shifted
from tinsmith.kernels.rowfold import PRODUCT, SUM, Fold, combine
from tinsmith.kernels.sharing import parts_for

VECTORS = 4
"""Vectors of neighbours that are summed side by side."""


def _scan(site: Site, fold: Fold) -> Choice:
    x = site.input(0)
    dims = x.dims
    axis = int(site.const(1, "the axis").reshape(-1)[0]) % len(dims)
    outer, n, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    if prod(dims) == 0 or site.out.dims != dims:
        raise Skip("the input is empty, or the output has another shape")
    exclusive, reverse = site.attr("exclusive"), site.attr("reverse")
    target = site.target
    lanes = lanes_of(target, x.dtype.itemsize)
    cost = target.time(8.0 * prod(dims), 2.0 * x.type.nbytes, 0.25 / lanes) + 1e-7
    vectors = min(VECTORS, -(-inner // lanes))
    blocks = -(-inner // (lanes * vectors))
    units = outer * blocks
    tiles = parts_for(units, cost)
    wide = "f64" if x.dtype.name == "float32" else from_dtype(x.dtype).kind

    def emit(em: Emit) -> None:
        b, ty = em.b, from_dtype(x.dtype)
        with b.loop(em.begin * units // tiles, em.end * units // tiles) as unit:
            outer_index = unit // blocks
            here = at_outer(em, axis, outer_index)
            source = (em.ins[0].pointer + outer_index * (n * inner)).fixed()  # type: ignore[union-attr]

            def columns(first: Position, sizes: Sizes) -> None:
                start = [b.const(fold.identity, ty.x(size).of(wide)) for size, _ in sizes]
                with b.loop(0, n, 1, start) as loop:
                    row = b.index(n - 1) - loop.index if reverse else loop.index
                    line = (source + row * inner + first).fixed()
                    place = [*(0,) * axis, row, *(0,) * (len(dims) - axis - 1)]
                    there, offset, sums = shifted(here, place), 0, []
                    for before, (size, mask) in zip(loop.vars, sizes, strict=True):
                        value = (line + offset).load(size, mask).to(wide)
                        sums.append(combine(fold, before, value))
                        y = (before if exclusive else sums[-1]).to(ty.kind)
                        finish_run(there, y, axis + 1, first + offset, mask)
                        offset += size
                    loop.next(sums)

            each_block(b, unit % blocks, inner, lanes if inner > 1 else 1, vectors, columns)

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN, None), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(tiles, emit),
        inplace=0,
        detail=f"{outer} x {n} x {inner}",
    )


@kernel("CumSum", Tier.VECTOR, dtypes="float32 float64 int32 int64")
def cumsum(site: Site) -> Choice:
    """Running sums along one axis, in double precision for floats."""
    return _scan(site, SUM)


@kernel("CumProd", Tier.VECTOR, dtypes="float32 float64 int32 int64")
def cumprod(site: Site) -> Choice:
    """Running products along one axis, in double precision for floats."""
    return _scan(site, PRODUCT)
