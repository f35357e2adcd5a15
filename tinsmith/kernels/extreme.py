"""Where the largest or smallest element along an axis is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.types import I32, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, elem, kernel
from tinsmith.kernels.fold import short_rows
from tinsmith.kernels.layout import Around, around, lanes_of
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.walk import Blocks, Part, Position, finish_run, shifted_to
from tinsmith.sizes import typical

Pair = tuple[Val, Val]
"""Values, and their indices as i32."""


class Search:
    """The rule of a search for the largest or (without `largest`) the smallest element of type `ty`
    (`dtype` in numpy): which of two (value, index) pairs wins. NaN beats all numbers; of equal
    values the first index wins, or with `last` the last. The methods emit code."""

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
        """The winner, lane by lane, of the pair `held` and a pair with a higher index. Takes fewer
        instructions than `pick`: indices need not be compared."""
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
        """The winner, lane by lane, of two pairs with indices in any order."""
        (x, i), (y, j) = held, other
        wins = self.wins(x, i, y, j)
        return wins.select(y, x), wins.select(j, i)

    def start(self, b: Builder, size: int) -> Pair:
        """A pair of `size` lanes that loses against every other."""
        index = -1 if self.last else 2**31 - 1
        return b.const(self.worst, self.ty.x(size)), b.const(index, I32.x(size))


@kernel("ArgReduce", Tier.VECTOR, dtypes="float32 float64 int8 uint8 int32 int64")
def arg_reduce(site: Site) -> Choice:
    """The index of the extreme along one axis, in vectors along the innermost dimensions.

    Declines an empty input, and an axis of 2^31 elements or more.
    """
    x = site.input(0)
    dims, nbytes = x.dims, x.dtype.itemsize
    split = around(dims, site.attr("axis"))
    n, inner = split.n, split.inner
    if prod(dims) == 0 or site.out.type.size != split.outer * inner:
        raise Skip("the input is empty, or the output has another size")
    if n >= 1 << 31:
        raise Skip("the axis has 2^31 elements or more")
    search = Search(x.dtype, elem(x), site.attr("kind") == "max", bool(site.attr("select_last")))
    lanes = lanes_of(site.target, max(nbytes, 4))
    size = typical(prod(dims))
    cost = site.target.time(8.0 * size, float(nbytes * size), 0.5) + 1e-7
    short = short_rows(split.outer, n, lanes) if inner == 1 else None
    blocks = Blocks(inner, lanes, 1)
    units = short.units if short else split.outer * blocks.number

    def emit(em: Emit, unit: Val) -> None:
        if short:
            short.emit(em, unit, partial(_place_across, search))
        elif inner == 1:
            _row(em, search, unit, n, lanes)
        else:
            _vectors(em, search, split, blocks, unit)

    return Choice(
        cost=cost, reads=site.reads((PLAIN,), PLAIN), writes=(PLAIN,),
        phases=each_unit(units, cost, emit), repeats=short is not None and short.overlap,
        detail=str(split),
    )  # fmt: skip


def _row(em: Emit, search: Search, row: Position, n: int, lanes: int) -> None:
    """Emit the search in one contiguous row of n elements, in vectors of `lanes`, and store the
    index that it finds."""
    b = em.b
    x = (em.input(0).pointer + row * n).fixed()
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
    shifted_to(em, 0, rank, row).finish(where.to("i64"), [0] * rank)


def _place_across(search: Search, columns: list[Val]) -> Val:
    """For each lane, the number of the vector in `columns` that has the extreme there, as int64."""
    value, *later = columns
    b, index = value.b, I32.x(value.ty.lanes)
    best = value, b.zero(index)
    for i, value in enumerate(later, start=1):
        best = search.advance(best, value, b.const(i, index))
    return best[1].to("i64")


def _vectors(em: Emit, search: Search, split: Around, blocks: Blocks, unit: Val) -> None:
    """Emit the searches along an axis that is not the innermost for one block of neighbours, and
    store their indices. A unit is (outer index, block)."""
    b, inner, outer = em.b, split.inner, unit // blocks.number
    x = (em.input(0).pointer + outer * (split.n * inner)).fixed()

    def column(first: Position, parts: Sequence[Part]) -> None:
        here = (x + first).fixed()
        best: list[Val] = []
        for p in parts:
            best += [(here + p.offset).load(p.lanes, p.mask), b.zero(I32.x(p.lanes))]
        with b.loop(1, b.index(split.n), 1, best) as loop:  # n may be 1: no number for the loop
            line, held = here + loop.index * inner, []
            for p, value, where in zip(parts, loop.vars[::2], loop.vars[1::2], strict=True):
                later = (line + p.offset).load(p.lanes, p.mask)
                row = loop.index.to("i32").splat(p.lanes)
                held += search.advance((value, where), later, row)
            loop.next(held)
        for p, where in zip(parts, loop.out[1::2], strict=True):
            finish_run(em, where.to("i64"), 0, outer * inner + first + p.offset, p.mask)

    blocks.emit(b, unit % blocks.number, column)
