"""The code of a product by Strassen's method, panel of rows by panel of rows.

At one level the seven left factors of a panel are made once; then, panel of columns by panel of
columns, seven tiles go through L1 and their sums are finished. At two levels each of the seven
outer products is one such round over all columns of a group, whose results wait in L2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, offsets, product
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position
from tinsmith.kernels.strassen.form import PRODUCTS, SIGNS, left_factors, results, upper
from tinsmith.kernels.strassen.plain import plain
from tinsmith.kernels.strassen.shape import Shape

STREAM_ROWS = 100  # up to so many rows, right operands come from memory: prefetch them
LARGE = 1e15  # from here on sums, or products of sums, might overflow
CHAINS = 4  # accumulators of the squares of a row


class Ends(Protocol):
    """Where the rows of the left operand and of the result lie."""

    step: int
    """Elements from one vector of the left operand's row to the next."""

    def source(self, row: Position) -> Ptr:
        """The first element of a row of the left operand."""
        ...

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        """Finish vectors of neighbouring results."""
        ...


@dataclass(frozen=True)
class Work:
    """The emission of one kernel: the panels [lo, hi) of columns, for any rows."""

    b: Builder
    shape: Shape
    ends: Ends
    weights: Ptr
    workspace: Ptr
    lo: Position
    hi: Position

    @property
    def lanes(self) -> int:
        return block_of(self.b.target)

    @property
    def left(self) -> Ptr:
        """The seven left factors."""
        return self.workspace.cast(F32)

    @property
    def below(self) -> Ptr:
        """The seven tiles of the lowest level."""
        return (self.left + PRODUCTS * self.shape.left).fixed()

    def tiles(self, c: Position) -> Ptr:
        """The seven tiles of the highest level for panel c of columns."""
        s = self.shape
        if s.level == 1:
            return self.below
        at = (self.b.index(c) - self.b.index(self.lo)) * (PRODUCTS * s.sums)
        return (self.below + PRODUCTS * s.tile + at).fixed()

    def right(self, c: Position) -> Ptr:
        """The right factors of panel c of columns."""
        s = self.shape
        return (self.weights + c * (s.products * s.depth * s.tiling.columns.size)).fixed()

    def real(self, row: Position, height: int) -> Position:
        """How many of the `height` rows from `row` on there are."""
        if not self.shape.lacks:
            return height
        left = self.b.index(self.shape.m) - self.b.index(row)
        return self.b.minimum(self.b.maximum(left, 0), height)

    def each_column_panel(
        self, body: Callable[[Position, Position, tuple[int, ...]], None]
    ) -> None:
        """`body(panel, first column, widths of a unit)`."""
        side = self.shape.side
        each_column_panel(
            self.b, self.shape.tiling.columns, self.lo, self.hi,
            lambda c, column, widths, _: body(c, column * side, widths),
        )  # fmt: skip


def rows(w: Work, lo: Position, hi: Position) -> None:
    """The panels [lo, hi) of rows."""
    b, s = w.b, w.shape

    def products(row: Position, height: int) -> None:
        if s.level == 1:
            _left_factors(w, row, height, None)
            w.each_column_panel(
                lambda c, column, widths: _one_level(w, row, height, c, column, widths)
            )
            return
        with b.loop(0, PRODUCTS) as outer:
            _left_factors(w, row, height, outer)
            w.each_column_panel(lambda c, _, widths: _inner(w, height, outer, c, widths))
        w.each_column_panel(lambda c, column, widths: _finish(w, row, height, c, column, widths))

    def panel(unit: Position, height: int) -> None:
        row = unit * s.side
        b.choose(
            _finite(w, row, height * s.side),
            lambda: products(row, height),
            lambda: plain(w, row, height * s.side),
        )

    each_row_panel(b, s.tiling.rows, lo, hi, panel)


def _finite(w: Work, row: Position, height: int) -> Val:
    """Whether no element of the rows is large, infinite or NaN."""
    b, s, lanes = w.b, w.shape, w.lanes
    full = s.k // lanes
    chains = max(c for c in range(1, CHAINS + 1) if full % c == 0)
    start = [b.zero(F32.x(lanes)) for _ in range(chains)]
    with b.loop(0, w.real(row, height), 1, [*start, b.zero(F32)]) as loop:
        *many, one = loop.vars
        line = w.ends.source(loop.index + row).fixed()
        if full:
            with b.loop(0, full, chains, many) as vectors:
                here = (line + vectors.index * w.ends.step).fixed()
                values = [(here + c * w.ends.step).load(lanes) for c in range(chains)]
                vectors.next([v.fma(v, t) for v, t in zip(values, vectors.vars, strict=True)])
            many = vectors.out
        if s.k % lanes:
            with b.loop(full * lanes, s.k, 1, [one]) as singles:
                x = (line + singles.index).load()
                singles.next([x.fma(x, singles.vars[0])])
            one = singles.out[0]
        loop.next([*many, one])
    *many, one = loop.out
    for value in many:
        one = one + value.reduce("add")
    return one < LARGE**2


def _left_factors(w: Work, row: Position, height: int, outer: Val | None) -> None:
    """The seven left factors of the rows from `row` on (of one of the outer products); the last
    row stands in for those that a panel lacks."""
    b, s, lanes = w.b, w.shape, w.lanes
    full = s.depth // lanes
    signs = None if outer is None else [_sign(b, outer, k) for k in range(4)]

    def factors(lines: list[Ptr], out: Ptr, size: int) -> None:
        """All that comes from `size` elements of each block."""
        grid: Any = [
            [(line + _away(w, part)).load(size) for part in range(s.side)] for line in lines
        ]
        if signs is not None:
            grid = _outer_factor(grid, [x.splat(size) for x in signs])
        for q, value in enumerate(left_factors(grid)):
            (out + q * s.left).store(value)

    with b.loop(0, height) as i:
        starts = [b.index(row) + unit * height + i for unit in range(s.side)]
        if s.lacks:
            starts = [b.index(b.minimum(at, s.m - 1)) for at in starts]
        lines = [w.ends.source(at).fixed() for at in starts]
        out = (w.left + i * s.pitch).fixed()
        if full:
            with b.loop(0, full) as j:
                here = [(at + j * w.ends.step).fixed() for at in lines]
                factors(here, (out + j * lanes).fixed(), lanes)
        if s.depth % lanes:
            with b.loop(full * lanes, s.depth) as k:
                factors([(at + k).fixed() for at in lines], (out + k).fixed(), 1)


def _away(w: Work, part: int) -> int:
    """Where part `part` of a row of the left operand begins."""
    depth = w.shape.depth
    if w.ends.step == w.lanes:
        return part * depth
    assert depth % w.lanes == 0, "parts of blocked rows are whole blocks"
    return part * (depth // w.lanes) * w.ends.step


def _sign(b: Builder, outer: Val, quarter: int) -> Val:
    """1, 0 or -1: how a quarter of the left operand enters the left factor of an outer product."""
    sign = b.const(0.0, F32)
    for number, signs in enumerate(SIGNS):
        if signs[quarter]:
            sign = outer.eq(number).select(b.const(float(signs[quarter]), F32), sign)
    return sign


def _outer_factor(grid: list[list[Val]], signs: list[Val]) -> list[list[Val]]:
    """The 2 x 2 blocks of an outer left factor, from 4 x 4."""
    found = []
    for i in range(2):
        line = []
        for j in range(2):
            quarters = (grid[i][j], grid[i][j + 2], grid[i + 2][j], grid[i + 2][j + 2])
            total = quarters[0] * signs[0]
            for value, sign in zip(quarters[1:], signs[1:], strict=True):
                total = value.fma(sign, total)
            line.append(total)
        found.append(line)
    return found


def _seven(w: Work, height: int, right: Ptr, widths: tuple[int, ...]) -> None:
    """The seven products of left factors with those from `right` on, to the lowest tiles."""
    b, s, size = w.b, w.shape, sum(widths)
    left, below = w.left, w.below
    with b.loop(0, PRODUCTS) as one:
        a, factor = (left + one * s.left).fixed(), (right + one * (s.depth * size)).fixed()
        at = Operands(a, s.pitch, factor, size, s.depth, stream=s.m < STREAM_ROWS)
        out = (below + one * s.tile).fixed()
        for i, line in enumerate(product(b, at, height, widths)):
            for offset, value in offsets(line):
                (out + (i * size + offset)).store(value)


def _one_level(
    w: Work, row: Position, height: int, c: Position, column: Position, widths: tuple[int, ...]
) -> None:
    _seven(w, height, w.right(c), widths)
    _finish(w, row, height, c, column, widths)


def _inner(w: Work, height: int, outer: Val, c: Position, widths: tuple[int, ...]) -> None:
    """The seven inner products of an outer one, and what they add up to: its four quarters."""
    s, size = w.shape, sum(widths)
    _seven(w, height, (w.right(c) + outer * (PRODUCTS * s.depth * size)).fixed(), widths)
    source, to = w.below, (w.tiles(c) + outer * s.sums).fixed()
    with w.b.loop(0, height) as i:
        for offset, width in places(widths):
            at, out = (source + i * size + offset).fixed(), (to + i * size + offset).fixed()
            found = results([(at + q * s.tile).load(width) for q in range(PRODUCTS)])
            for q, value in enumerate(found):
                (out + q * s.tile).store(value)


def _finish(
    w: Work, row: Position, height: int, c: Position, column: Position, widths: tuple[int, ...]
) -> None:
    """Add the tiles of the highest level up, row by row, and finish the results."""
    b, s, size = w.b, w.shape, sum(widths)
    half, tiles = s.side // 2, w.tiles(c)

    def unit(q: Position) -> None:
        """Unit q of each quarter."""
        upper_row, lower_row = q // half * height, (q // half + half) * height
        left_column, right_column = q % half * size, (q % half + half) * size
        source = (tiles + q * s.tile).fixed()

        def line(i: Position, both: bool) -> None:
            made: list[tuple[Val, ...]] = []
            for offset, width in places(widths):
                at = (source + i * size + offset).fixed()
                values = [(at + p * s.sums).load(width) for p in range(PRODUCTS)]
                made.append(results(values) if both else upper(values))
            for k, values in enumerate(zip(*made, strict=True)):
                place = (lower_row if k >= 2 else upper_row) + i + row
                w.ends.store(place, (right_column if k % 2 else left_column) + column, values)

        below = w.real(lower_row + row, height)
        with b.loop(0, below) as i:
            line(i, True)
        if s.lacks:
            with b.loop(below, w.real(upper_row + row, height)) as i:
                line(i, False)

    if s.level == 1:
        unit(0)
    else:
        with b.loop(0, half * half) as q:
            unit(q)


def places(widths: Sequence[int]) -> list[tuple[int, int]]:
    """(first element, lanes) of neighbouring vectors."""
    return [(sum(widths[:j]), width) for j, width in enumerate(widths)]
