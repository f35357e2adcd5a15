"""The code of a product by Strassen's method, panel of rows by panel of rows.

All left factors of a panel (of a slab of K) are made once; then, panel of columns by panel of
columns, one product after the other. Each starts from the sums that it is added to, and leaves
its own for those that follow (`steps.py`), or ends a unit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import DISTANCE, Operands, Tile, offsets, product
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position
from tinsmith.kernels.strassen.form import left_factors
from tinsmith.kernels.strassen.plain import plain, zeros
from tinsmith.kernels.strassen.shape import Shape
from tinsmith.kernels.strassen.steps import FIELDS, Room

LARGE = 1e15  # from here on sums, or products of sums, might overflow
CHAINS = 4  # accumulators of the squares of a row
SMALL = 2.0**-13
"""Rows this much smaller than the largest of their panel are computed again: sums with larger rows
round what they hold away, and a row of zeros would not give zeros."""
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
    table: Ptr
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
    def room(self) -> Room:
        return Room(self.shape)

    def partial(self, c: Position) -> Ptr:
        """Results of the slabs so far for panel c of columns."""
        s = self.shape
        at = (self.b.index(c) - self.b.index(self.lo)) * (s.side**2 * s.tile)
        return (self.left + self.room.partial + at).fixed()

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


def clear(b: Builder, shape: Shape, workspace: Ptr) -> None:
    """Zero the zeros: before anything else."""
    lanes = block_of(b.target)
    at = (workspace.cast(F32) + Room(shape).zeros).fixed()
    with b.loop(0, -(-shape.tile // lanes) * lanes, lanes) as i:
        (at + i).store(b.zero(F32.x(lanes)))


def rows(w: Work, lo: Position, hi: Position) -> None:
    """The panels [lo, hi) of rows."""
    b, s = w.b, w.shape

    def products(row: Position, height: int) -> None:
        if s.slabs == 1:
            slab(row, height, 0)
            return
        with b.loop(0, s.slabs) as number:
            _left_factors(w, row, height, number)
            slab(row, height, number)

    def slab(row: Position, height: int, number: Position) -> None:
        def columns(c: Position, column: Position, widths: tuple[int, ...]) -> None:
            right = w.right(c, number)
            unit = _Unit(w, row, height, column, widths, w.partial(c), number)
            with b.loop(0, s.products) as q:
                unit.product(q, right)

        w.each_column_panel(columns)

    def panel(unit: Position, height: int) -> None:
        row = unit * s.side
        squares = _left_factors(w, row, height, 0) if s.slabs == 1 else _squares(w, row, height)

        def sums() -> None:
            products(row, height)
            _repair(w, row, height * s.side)

        b.choose(squares < LARGE**2, sums, lambda: plain(w, row, height * s.side))

    each_row_panel(b, s.tiling.rows, lo, hi, panel)


def _repair(w: Work, row: Position, height: int) -> None:
    """Compute the rows of a panel again that are small beside the others."""
    b, count = w.b, w.real(row, height)
    with b.loop(0, count, 1, [b.zero(F32), b.const(LARGE, F32)]) as loop:
        size = _largest(w, loop.index + row)
        most, least = loop.vars
        loop.next([most.max(size), least.min(size)])
    most, least = loop.out
    limit = most * SMALL

    def rows() -> None:
        with b.loop(0, count) as i:
            size = _largest(w, i + row)
            with b.when(size <= limit):
                b.choose(
                    size.eq(0.0),
                    lambda: zeros(w, i + row),
                    lambda: plain(w, i + row, 1),
                )

    with b.when(least <= limit):
        rows()


def _largest(w: Work, row: Position) -> Val:
    """The largest magnitude in a row of the left operand."""
    b, s, lanes = w.b, w.shape, w.lanes
    line, full = w.ends.source(row).fixed(), s.k // lanes
    with b.loop(0, full, 1, [b.zero(F32.x(lanes))]) as vectors:
        value = (line + vectors.index * w.ends.step).load(lanes)
        vectors.next([vectors.vars[0].max(value.abs())])
    largest = vectors.out[0].reduce("max") if lanes > 1 else vectors.out[0]
    if s.k % lanes:
        with b.loop(full * lanes, s.k, 1, [largest]) as singles:
            singles.next([singles.vars[0].max((line + singles.index).load().abs())])
        largest = singles.out[0]
    return largest


def _squares(w: Work, row: Position, height: int) -> Val:
    """The sum of the squares of the rows of a panel: not below LARGE ** 2 if any element is large,
    infinite or NaN."""
    b, s, lanes = w.b, w.shape, w.lanes
    full = s.k // lanes
    chains = max(c for c in range(1, CHAINS + 1) if full % c == 0)
    start = [b.zero(F32.x(lanes)) for _ in range(chains)]
    with b.loop(0, w.real(row, height * s.side), 1, [*start, b.zero(F32)]) as loop:
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
    return one


def _left_factors(w: Work, row: Position, height: int, slab: Position) -> Val:
    """The left factors of the rows from `row` on; the last row stands in for those that a panel
    lacks. The sum of the squares of what was read."""
    b, s, lanes = w.b, w.shape, w.lanes
    full = s.depth // lanes
    first = slab * _away(w, s.side)

    def factors(lines: list[Ptr], out: Ptr, size: int, squares: list[Val]) -> list[Val]:
        """All that comes from `size` elements of each block."""
        grid = [[(line + _away(w, part)).load(size) for part in range(s.side)] for line in lines]
        for q, value in enumerate(left_factors(grid)):
            place = out + q * s.left
            place.store(value)
            if s.level > 1:
                (place + AHEAD * lanes).prefetch(write=True)
        for values in grid:
            squares = [v.fma(v, t) for v, t in zip(values, squares, strict=True)]
        return squares

    zeros = [b.zero(F32.x(lanes))] * s.side, [b.zero(F32)] * s.side
    with b.loop(0, height, 1, [*zeros[0], *zeros[1]]) as loop:
        i, many, ones = loop.index, loop.vars[: s.side], loop.vars[s.side :]
        starts = [b.index(row) + unit * height + i for unit in range(s.side)]
        if s.lacks:
            starts = [b.index(b.minimum(at, s.m - 1)) for at in starts]
        lines = [(w.ends.source(at) + first).fixed() for at in starts]
        out = (w.left + i * s.pitch).fixed()
        if full:
            with b.loop(0, full, 1, many) as vectors:
                j = vectors.index
                here = [(at + j * w.ends.step).fixed() for at in lines]
                vectors.next(factors(here, (out + j * lanes).fixed(), lanes, vectors.vars))
            many = vectors.out
        if s.depth % lanes:
            with b.loop(full * lanes, s.depth, 1, ones) as singles:
                k = singles.index
                here = [(at + k).fixed() for at in lines]
                singles.next(factors(here, (out + k).fixed(), 1, singles.vars))
            ones = singles.out
        loop.next([*many, *ones])
    total = b.zero(F32)
    for value in (v.reduce("add") if v.ty.lanes > 1 else v for v in loop.out):
        total = total + value
    return total


def _away(w: Work, part: int) -> int:
    """Where part `part` of a row of the left operand begins."""
    depth = w.shape.depth
    if w.ends.step == w.lanes:
        return part * depth
    assert depth % w.lanes == 0, "parts of blocked rows are whole blocks"
    return part * (depth // w.lanes) * w.ends.step


@dataclass(frozen=True)
class _Unit:
    """The products of a panel of rows and one of columns."""

    w: Work
    row: Position
    height: int
    column: Position
    widths: tuple[int, ...]
    partial: Ptr
    slab: Position

    def product(self, q: Val, right: Ptr) -> None:
        """Product number q: from what it is added to, to what needs it."""
        w, s, b = self.w, self.w.shape, self.w.b
        line = (w.table + q * len(FIELDS)).fixed()
        field = {name: (line + i).load() for i, name in enumerate(FIELDS)}
        size = sum(self.widths)
        left = (w.left + q * s.left).fixed()
        factor = (right + q * (s.depth * size)).fixed()
        at = Operands(left, s.pitch, factor, size, s.depth, later=(factor + DISTANCE).fixed())
        start = self._load(field["start"])
        sums = product(b, at, self.height, self.widths, add=start)
        with b.when(field["keep"].ne(0)):
            self._keep(field["keep"], sums)
        with b.when(field["done"].ne(0)):
            sums = self._plus(sums, field["add"])
            if s.level == 1:
                self._end(sums, field["row"], field["column"])
            else:
                sums = self._plus(sums, field["outer"])
                with b.when(field["outer_keep"].ne(0)):
                    self._keep(field["outer_keep"], sums)
                with b.when(field["final"].ne(0)):
                    sums = self._plus(sums, field["outer_add"])
                    self._end(sums, field["row"], field["column"])

    def _load(self, at: Position) -> Tile:
        place, size = (self.w.left + at).fixed(), sum(self.widths)
        return [
            [(place + (i * size + offset)).load(width) for offset, width in places(self.widths)]
            for i in range(self.height)
        ]

    def _keep(self, at: Position, sums: Tile) -> None:
        place, size = (self.w.left + at).fixed(), sum(self.widths)
        for i, line in enumerate(sums):
            for offset, value in offsets(line):
                (place + (i * size + offset)).store(value)

    def _plus(self, sums: Tile, at: Position) -> Tile:
        more = self._load(at)
        return [
            [x + y for x, y in zip(*pair, strict=True)] for pair in zip(sums, more, strict=True)
        ]

    def _end(self, sums: Tile, at_row: Val, at_column: Val) -> None:
        """Finish a unit of the result, row by row, or leave it for the next slab."""
        w, s, b = self.w, self.w.shape, self.w.b
        size = sum(self.widths)
        self._keep(w.room.result, sums)
        unit = at_row * self.height + self.row
        source = (w.left + w.room.result).fixed()
        partial = (self.partial + (at_row * s.side + at_column) * s.tile).fixed()

        def rows(last: bool) -> None:
            with b.loop(0, w.real(unit, self.height)) as i:
                line = (source + i * size).fixed()
                values = [(line + offset).load(width) for offset, width in places(self.widths)]
                if s.slabs > 1:
                    values = self._with_slabs((partial + i * size).fixed(), values, last)
                if last:
                    w.ends.store(unit + i, at_column * size + self.column, values)

        if isinstance(self.slab, int):
            rows(True)
        else:
            b.choose(self.slab.eq(s.slabs - 1), lambda: rows(True), lambda: rows(False))

    def _with_slabs(self, sums: Ptr, values: list[Val], last: bool) -> list[Val]:
        """What the slabs before have left is added; before the last slab the sums are left."""
        assert isinstance(self.slab, Val)
        first, found = self.slab.eq(0), []
        for (offset, width), value in zip(places(self.widths), values, strict=True):
            before = (sums + offset).load(width)
            if not last:
                before = first.select(self.w.b.zero(value.ty), before)
                (sums + offset).store(value + before)
            found.append(value + before)
        return found


def places(widths: Sequence[int]) -> list[tuple[int, int]]:
    """(first element, lanes) of neighbouring vectors."""
    return [(sum(widths[:j]), width) for j, width in enumerate(widths)]
