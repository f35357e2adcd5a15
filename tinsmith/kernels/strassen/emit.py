"""The code of a product by Strassen's method, panel of rows by panel of rows.

All left factors of a panel (of a slab of K) are made once; then, panel of columns by panel of
columns, seven tiles at a time go through L1 and are added up. Slabs add to what the ones before
have left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, offsets, product
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position
from tinsmith.kernels.strassen.form import PRODUCTS, left_factors, results, upper
from tinsmith.kernels.strassen.plain import plain
from tinsmith.kernels.strassen.shape import Shape

STREAM_ROWS = 100  # up to so many rows, right operands come from memory: prefetch them
LARGE = 1e15  # from here on sums, or products of sums, might overflow
CHAINS = 4  # accumulators of the squares of a row
AHEAD = 2  # vectors by which lines of left factors are asked for before they are written


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
        """The left factors."""
        return self.workspace.cast(F32)

    @property
    def tiles(self) -> Ptr:
        """The seven tiles of the highest level."""
        return (self.left + self.shape.products * self.shape.left).fixed()

    @property
    def below(self) -> Ptr:
        """The seven tiles of the lowest level."""
        if self.shape.level == 1:
            return self.tiles
        return (self.tiles + PRODUCTS * self.shape.sums).fixed()

    def partial(self, c: Position) -> Ptr:
        """Results of the slabs so far for panel c of columns."""
        s = self.shape
        at = (self.b.index(c) - self.b.index(self.lo)) * (s.side**2 * s.tile)
        return (self.below + PRODUCTS * s.tile + at).fixed()

    def right(self, c: Position, slab: Position) -> Ptr:
        """The right factors of panel c of columns."""
        s = self.shape
        each = s.products * s.depth
        at = slab * (each * s.tiling.columns.total)
        return (self.weights + at + c * (each * s.tiling.columns.size)).fixed()

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
        if s.slabs == 1:
            slab(row, height, 0)
            return
        with b.loop(0, s.slabs) as number:
            slab(row, height, number)

    def slab(row: Position, height: int, number: Position) -> None:
        _left_factors(w, row, height, number)

        def columns(c: Position, column: Position, widths: tuple[int, ...]) -> None:
            right = w.right(c, number)
            if s.level == 1:
                _seven(w, height, 0, right, widths)
            else:
                with b.loop(0, PRODUCTS) as outer:
                    _seven(w, height, outer * PRODUCTS, right, widths)
                    _combine(w, height, (w.tiles + outer * s.sums).fixed(), widths)
            _Finish(w, row, height, column, widths, w.partial(c), number).emit()

        w.each_column_panel(columns)

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


def _left_factors(w: Work, row: Position, height: int, slab: Position) -> None:
    """The left factors of the rows from `row` on; the last row stands in for those that a panel
    lacks."""
    b, s, lanes = w.b, w.shape, w.lanes
    full = s.depth // lanes
    first = slab * _away(w, s.side)

    def factors(lines: list[Ptr], out: Ptr, size: int) -> None:
        """All that comes from `size` elements of each block."""
        grid = [[(line + _away(w, part)).load(size) for part in range(s.side)] for line in lines]
        for q, value in enumerate(left_factors(grid)):
            place = out + q * s.left
            place.store(value)
            if s.level > 1:
                (place + AHEAD * lanes).prefetch(write=True)

    with b.loop(0, height) as i:
        starts = [b.index(row) + unit * height + i for unit in range(s.side)]
        if s.lacks:
            starts = [b.index(b.minimum(at, s.m - 1)) for at in starts]
        lines = [(w.ends.source(at) + first).fixed() for at in starts]
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


def _seven(w: Work, height: int, first: Position, right: Ptr, widths: tuple[int, ...]) -> None:
    """Seven products from number `first` on, to the lowest tiles."""
    b, s, size = w.b, w.shape, sum(widths)
    left, below = w.left, w.below
    with b.loop(0, PRODUCTS) as one:
        q = b.index(first) + one
        a, factor = (left + q * s.left).fixed(), (right + q * (s.depth * size)).fixed()
        at = Operands(a, s.pitch, factor, size, s.depth, stream=s.m < STREAM_ROWS)
        out = (below + one * s.tile).fixed()
        for i, line in enumerate(product(b, at, height, widths)):
            for offset, value in offsets(line):
                (out + (i * size + offset)).store(value)


def _combine(w: Work, height: int, to: Ptr, widths: tuple[int, ...]) -> None:
    """Add the lowest tiles up to the four quarters of one of the highest level."""
    s, size, below = w.shape, sum(widths), w.below
    with w.b.loop(0, height) as i:
        for offset, width in places(widths):
            at, out = (below + i * size + offset).fixed(), (to + i * size + offset).fixed()
            found = results([(at + q * s.tile).load(width) for q in range(PRODUCTS)])
            for q, value in enumerate(found):
                (out + q * s.tile).store(value)


@dataclass(frozen=True)
class _Finish:
    """The end of a panel of columns: the tiles of the highest level are added up, row by row."""

    w: Work
    row: Position
    height: int
    column: Position
    widths: tuple[int, ...]
    partial: Ptr
    slab: Position

    def emit(self) -> None:
        w, s = self.w, self.w.shape

        def units(last: bool) -> None:
            half = s.side // 2
            if half == 1:
                self._unit(0, 0, last)
                return
            with w.b.loop(0, half) as down, w.b.loop(0, half) as across:
                self._unit(down, across, last)

        if isinstance(self.slab, int):
            units(True)
        else:
            w.b.choose(self.slab.eq(s.slabs - 1), lambda: units(True), lambda: units(False))

    def _unit(self, down: Position, across: Position, last: bool) -> None:
        """One unit of each quarter."""
        b, s, height = self.w.b, self.w.shape, self.height
        half = s.side // 2
        below = self.w.real(self.row + (down + half) * height, height)
        with b.loop(0, below) as i:
            self._line(down, across, i, True, last)
        if s.lacks:
            with b.loop(below, self.w.real(self.row + down * height, height)) as i:
                self._line(down, across, i, False, last)

    def _line(self, down: Position, across: Position, i: Position, both: bool, last: bool) -> None:
        """Row i of a unit of each quarter, or of the upper two."""
        w, s, size = self.w, self.w.shape, sum(self.widths)
        half = s.side // 2
        source = w.tiles + (down * half + across) * s.tile + i * size
        made: list[tuple[Val, ...]] = []
        for offset, width in places(self.widths):
            at = (source + offset).fixed()
            values = [(at + p * s.sums).load(width) for p in range(PRODUCTS)]
            made.append(results(values) if both else upper(values))
        for k, values in enumerate(zip(*made, strict=True)):
            at_row, at_column = down + k // 2 * half, across + k % 2 * half
            found = list(values)
            if s.slabs > 1:
                sums = self.partial + (at_row * s.side + at_column) * s.tile + i * size
                found = self._with_partial(sums.fixed(), found, last)
            if last:
                place = at_row * self.height + i + self.row
                w.ends.store(place, at_column * size + self.column, found)

    def _with_partial(self, sums: Ptr, values: list[Val], last: bool) -> list[Val]:
        """What the slabs before have left is added; before the last slab the sums are left."""
        assert isinstance(self.slab, Val)
        first, found = self.slab.eq(0), []
        for (offset, width), value in zip(places(self.widths), values, strict=True):
            before = (sums + offset).load(width)
            total = value + (before if last else first.select(self.w.b.zero(value.ty), before))
            if not last:
                (sums + offset).store(total)
            found.append(total)
        return found


def places(widths: Sequence[int]) -> list[tuple[int, int]]:
    """(first element, lanes) of neighbouring vectors."""
    return [(sum(widths[:j]), width) for j, width in enumerate(widths)]
