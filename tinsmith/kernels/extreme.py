"""Where the largest or smallest element along an axis is."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import I32, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, elem, kernel, one_phase
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.places import Position, at_outer, each_vector, finish_run
from tinsmith.kernels.sharing import parts_for
from tinsmith.kernels.short_rows import short_rows

Pair = tuple[Val, Val]
"""Values, and their indices as i32."""


class Search:
    """Which of two (value, index) pairs wins. NaN is the extreme; ties go to the first index, or
    with `last` to the last."""

    def __init__(self, dtype: np.dtype, ty: Ty, largest: bool, last: bool) -> None:
        self.ty, self.largest, self.last = ty, largest, last
        self.worst: float = float("-inf") if largest else float("inf")
        if dtype.kind != "f":
            info = np.iinfo(dtype)
            self.worst = int(info.min if largest else info.max)

    def wins(self, x: Val, i: Val, y: Val, j: Val) -> Val:
        """Whether (y, j) beats (x, i)."""
        better = y > x if self.largest else y < x
        later = j > i if self.last else j < i
        if not self.ty.is_float:
            return better | (y.eq(x) & later)
        x_nan, y_nan = x.is_nan(), y.is_nan()
        among_numbers = better | (y.eq(x) & later)
        return x_nan.select(y_nan & later, y_nan | among_numbers)

    def advance(self, held: Pair, value: Val, index: Val) -> Pair:
        """`pick` against a later element, where indices rise: they need no comparison."""
        x, i = held
        if not self.ty.is_float:
            wins = value > x if self.largest else value < x
            wins = wins | value.eq(x) if self.last else wins
        elif self.last:
            wins = (value >= x if self.largest else value <= x) | value.is_nan()
        else:
            behind = value <= x if self.largest else value >= x  # false where either is NaN
            wins = (behind ^ 1) & x.eq(x)
        return wins.select(value, x), wins.select(index, i)

    def pick(self, held: Pair, other: Pair) -> Pair:
        """The winner of two pairs, lane by lane."""
        (x, i), (y, j) = held, other
        wins = self.wins(x, i, y, j)
        return wins.select(y, x), wins.select(j, i)

    def start(self, b: Builder, size: int) -> Pair:
        """A pair that loses against every other."""
        index = -1 if self.last else 2**31 - 1
        return b.const(self.worst, self.ty.x(size)), b.const(index, I32.x(size))


@kernel("ArgReduce", Tier.VECTOR, dtypes="float32 float64 int8 uint8 int32 int64")
def arg_reduce(site: Site) -> Choice:
    """The index of the extreme along one axis, in vectors along the innermost dimensions."""
    x = site.input(0)
    dims, nbytes = x.dims, x.dtype.itemsize
    axis = site.attr("axis") % len(dims)
    outer, n, inner = prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])
    if prod(dims) == 0 or site.out.type.size != outer * inner:
        raise Skip("the input is empty, or the output has another size")
    if n >= 1 << 31:
        raise Skip("the axis has 2^31 elements or more")
    search = Search(x.dtype, elem(x), site.attr("kind") == "max", bool(site.attr("select_last")))
    target = site.target
    lanes = lanes_of(target, max(nbytes, 4))
    size = outer * n * inner
    cost = target.time(8.0 * size, float(nbytes * size), 0.5) + 1e-7
    short = short_rows(outer, n, lanes) if inner == 1 else None
    blocks = 1 if inner == 1 else -(-inner // lanes)
    units = short.units if short else outer * blocks
    tiles = parts_for(units, cost)

    def emit(em: Emit) -> None:
        b = em.b
        with b.loop(em.begin * units // tiles, em.end * units // tiles) as unit:
            if short:
                short.emit(em, unit, partial(_place_across, search))
            elif inner == 1:
                _row(em, search, unit, n, lanes)
            else:
                _vectors(em, search, unit // blocks, unit % blocks, n, inner, lanes)

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN,), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(tiles, emit),
        repeats=short is not None and short.overlap,
        detail=f"{outer} x {n} x {inner}",
    )


def _row(em: Emit, search: Search, row: Position, n: int, lanes: int) -> None:
    b = em.b
    x = (em.ins[0].pointer + row * n).fixed()  # type: ignore[union-attr]
    steps = b.vector(list(range(lanes)), I32)
    best = (x.load(lanes), steps) if n >= lanes else search.start(b, lanes)

    def step(at: Position, count: int, best: Pair) -> Pair:
        base = at.to("i32").splat(lanes) if isinstance(at, Val) else b.const(at, I32.x(lanes))
        value, where = (x + at).load(lanes, count=count), base + steps
        if count == lanes:
            return search.advance(best, value, where)
        mask = b.first_lanes(count, lanes)
        lost_value, lost_where = search.start(b, lanes)
        value, where = mask.select(value, lost_value), mask.select(where, lost_where)
        return search.pick(best, (value, where))

    full, rest = divmod(n, lanes)
    if full > 1:
        with b.loop(lanes, full * lanes, lanes, best) as loop:
            loop.next(step(loop.index, lanes, (loop.vars[0], loop.vars[1])))
        best = loop.out[0], loop.out[1]
    if rest:
        best = step(full * lanes, rest, best)
    value, where = best
    half = lanes
    while half > 1:
        half //= 2
        low, high = ((value.part(at, half), where.part(at, half)) for at in (0, half))
        value, where = search.pick(low, high)
    rank = len(em.site.out.dims)
    at_outer(em, rank, row).finish(where.to("i64"), [0] * rank)


def _place_across(search: Search, columns: list[Val]) -> Val:
    """In which of the columns the extreme of each lane is."""
    value, *later = columns
    b, index = value.b, I32.x(value.ty.lanes)
    best = value, b.zero(index)
    for i, value in enumerate(later, start=1):
        best = search.advance(best, value, b.const(i, index))
    return best[1].to("i64")


def _vectors(
    em: Emit, search: Search, outer: Position, block: Position, n: int, inner: int, lanes: int
) -> None:
    b = em.b
    x = (em.ins[0].pointer + outer * (n * inner)).fixed()  # type: ignore[union-attr]

    def column(first: Position, size: int, mask: Val | None) -> None:
        here = (x + first).fixed()
        best = here.load(size, mask), b.zero(I32.x(size))
        if n == 1:
            finish_run(em, best[1].to("i64"), 0, outer * inner + first, mask)
            return
        with b.loop(1, n, 1, best) as loop:
            value = (here + loop.index * inner).load(size, mask)
            where = loop.index.to("i32").splat(size)
            loop.next(search.advance((loop.vars[0], loop.vars[1]), value, where))
        finish_run(em, loop.out[1].to("i64"), 0, outer * inner + first, mask)

    each_vector(b, block, inner, lanes, column)
