"""The code of a product by Strassen's method, one group of row panels after the other.

First all left factors of a group are computed. Then, for each panel of columns, come the seven (or
49) products, each for all row panels of the group, so that its right factor is read from outer
caches once. A product's accumulators start from an earlier sum or 0; they end as a sum for later
products (`sums.py`), or as a finished unit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf
from typing import Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.dot.panels import each_column_panel
from tinsmith.kernels.dot.skeleton import Ahead, Operands, Tile, product
from tinsmith.kernels.float_products import LARGE
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.strassen.form import left_factors
from tinsmith.kernels.strassen.plain import plain, zeros
from tinsmith.kernels.strassen.shape import Shape
from tinsmith.kernels.strassen.sums import FIELDS, Room
from tinsmith.kernels.walk import Position, load_row, store_rows
from tinsmith.records import dataclass

SMALL = 2.0**-13
"""Rows whose norm is less than this part of the largest norm in their panel are computed by the
definition: the sums round away what they hold. docs/numerics.md has the error at this limit."""
DISTANCE = 4096
"""How far ahead right factors that are used once are prefetched, in elements (16 KiB). Set on Zen 4
(docs/kernels.md: weights from memory); the command was not recorded."""
AHEAD = 2  # how many vectors ahead lines of left factors are prefetched for writing; estimated


class Ends(Protocol):
    """Access to the rows of the left operand and of the result, in one layout: plain or blocked."""

    step: int
    """Elements from one vector to the next in a row of the left operand."""

    def source(self, row: Position) -> Ptr:
        """The address of the first element of a row of the left operand."""
        ...

    def store(self, row: Position, column: Position, values: Sequence[Val]) -> None:
        """Emit stores of the vectors `values` of one row, side by side from element `column` on,
        with column scales, bias and epilogue applied. Call it only once for an element, as the
        epilogue may read the memory to which it is stored."""
        ...


@dataclass(frozen=True)
class Work:
    """A product while its code is emitted, for column panels [lo, hi).

    ends       access to rows and results
    weights    the packed right factors (`choice.pack`)
    table      `sums.table`: where each product starts, and where its sum goes
    workspace  a thread's workspace, whose parts `Room` tells
    """

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

    def room(self, at: Position) -> Ptr:
        """The address in the workspace at an offset of `Room`."""
        return (self.workspace.cast(F32) + at).fixed()

    def element(self, k: Position) -> Position:
        """The offset, in elements, of element k of a row of the left operand from the row's first
        element: k where rows are plain, else by blocks of channels."""
        step, lanes = self.ends.step, self.lanes
        return k if step == lanes else k // lanes * step + k % lanes

    def right(self, c: Position) -> Ptr:
        """The address of the right factors of column panel c, in the order of products."""
        s = self.shape
        return (self.weights + c * (s.products * s.depth * s.tiling.columns.size)).fixed()

    def real(self, row: Position, height: int) -> Position:
        """How many of the `height` rows from `row` on exist; the others are padding."""
        if not self.shape.lacks:
            return height
        left = self.b.index(self.shape.m) - self.b.index(row)
        return self.b.minimum(self.b.maximum(left, 0), height)

    def each_column_panel(
        self, body: Callable[[Position, Position, tuple[int, ...]], None]
    ) -> None:
        """Emit `body(panel, first column, lanes of a unit's vectors)` for every column panel."""
        side = self.shape.side
        each_column_panel(
            self.b, self.shape.tiling.columns, self.lo, self.hi,
            lambda c, column, widths, _: body(c, column * side, widths),
        )  # fmt: skip


def clear(b: Builder, shape: Shape, workspace: Ptr) -> None:
    """Emit stores of zeros to the first tile of each slot, from which products start that are added
    to no earlier sum. Must come before `rows`."""
    lanes, room = block_of(b.target), Room(shape)
    with b.loop(0, shape.together) as number:
        at = (workspace.cast(F32) + room.slots + number * shape.slot).fixed()
        with b.loop(0, shape.tile, lanes) as i:
            (at + i).store(b.zero(F32.x(lanes)))


def rows(w: Work, lo: Position, hi: Position) -> None:
    """Emit the results of row panels [lo, hi) times the column panels of `w`, in groups of at most
    `Shape.together` row panels."""
    s = w.shape
    if s.together == 1 or not isinstance(lo, int) or not isinstance(hi, int) or hi > s.together:
        with w.b.loop(lo, hi, s.together) as first:
            _group(w, first, w.b.minimum(first + s.together, hi))
    else:
        _group(w, lo, hi)


def _group(w: Work, lo: Position, hi: Position) -> None:
    """Emit one group: row panels [lo, hi), at most `Shape.together`, times the column panels of
    `w`. First come their left factors, then the products, last rows that are computed by the
    definition (`_Panel.repair`)."""
    b, s = w.b, w.shape

    def each(body: Callable[[_Panel], None]) -> None:
        for first, last, height, base in s.tiling.rows.variants():
            start = b.maximum(lo, first) if first else lo
            stop = b.minimum(hi, last) if last < s.tiling.rows.count else hi
            with b.loop(start, stop) as p:
                slot = 0 if s.together == 1 else p - lo
                body(_Panel(w, slot, (p * height + base) * s.side, height))

    def columns(c: Position, column: Position, widths: tuple[int, ...]) -> None:
        right = w.right(c)
        with b.loop(0, s.products) as q:
            each(lambda panel: _Unit(panel, column, widths).product(q, right))

    each(_Panel.left_factors)
    w.each_column_panel(columns)
    each(_Panel.repair)


@dataclass(frozen=True)
class _Panel:
    """A panel of rows of the left operand, from `row` on: 2 units (at level 2: 4) of `height` rows
    each. Row i of unit u is row + u * height + i. `slot`: the panel's number in its group, which
    tells where its parts of the workspace lie."""

    w: Work
    slot: Position
    row: Position
    height: int

    @property
    def left(self) -> Ptr:
        """The address of the panel's first left factor; the next is `Shape.apart` elements on."""
        return self.w.room(self.slot * self.w.shape.left)

    @property
    def sums(self) -> Ptr:
        """The address of the panel's slot of tiles, which keep sums for later products."""
        s = self.w.shape
        return self.w.room(self.slot * s.slot + Room(s).slots)

    @property
    def sizes(self) -> Ptr:
        """The address of the sums of squares of the panel's rows, one float32 each."""
        s = self.w.shape
        return self.w.room(self.slot * (s.side * s.tiling.rows.size) + Room(s).sizes)

    @property
    def limit(self) -> Ptr:
        """The address of a float32: rows whose sum of squares is at most this need the
        definition."""
        return self.w.room(self.slot + Room(self.w.shape).limits)

    def repair(self) -> None:
        """Emit, by the definition of the product, the results of rows that `_end` leaves out: those
        that are small beside the panel's others; or all, if one may have large elements, infinities
        or NaN (`limit`)."""
        w, b = self.w, self.w.b
        limit = self.limit.load()
        with b.loop(0, w.real(self.row, self.height * w.shape.side)) as i:
            row = i + self.row
            summed = (self.sizes + i).load() > limit

            def alone() -> None:
                nothing = (limit < inf) & self._largest(row).eq(0.0)
                b.choose(nothing, lambda: zeros(w, row), lambda: plain(w, row))

            b.choose(summed, lambda: None, alone)

    def _largest(self, row: Val) -> Val:
        """The largest magnitude in one row of the left operand."""
        w, b, s, lanes = self.w, self.w.b, self.w.shape, self.w.lanes
        line, full = w.ends.source(row).fixed(), s.k // lanes
        largest = b.zero(F32)
        if full:
            with b.loop(0, full, 1, [b.zero(F32.x(lanes))]) as vectors:
                value = (line + vectors.index * w.ends.step).load(lanes)
                vectors.next([vectors.vars[0].max(value.abs())])
            largest = vectors.out[0].reduce("max")
        if s.k % lanes:
            with b.loop(full * lanes, s.k, 1, [largest]) as singles:
                singles.next([singles.vars[0].max((line + singles.index).load().abs())])
            largest = singles.out[0]
        return largest

    def left_factors(self) -> None:
        """Emit the panel's left factors, its rows' sums of squares (`sizes`), and its `limit`:
        infinity, which no row exceeds, if an element may be large or not finite. Rows beyond the
        operand's last row repeat that row."""
        w, b, s, lanes = self.w, self.w.b, self.w.shape, self.w.lanes
        full, parts = s.depth // lanes, [w.element(i * s.depth) for i in range(s.side)]

        def factors(lines: list[Ptr], out: Ptr, size: int, squares: list[Val]) -> list[Val]:
            """Emit all left factors of `size` elements of each block, from `out` on. `lines`:
            addresses in units' rows, in part 0 of K. Returns `squares` plus those of elements."""
            grid = [[(at + part).load(size) for part in parts] for at in lines]
            for q, value in enumerate(left_factors(grid)):
                place = out + q * s.apart
                place.store(value)
                if s.level > 1:
                    (place + AHEAD * lanes).prefetch(write=True)
            return [
                reduce(lambda total, value: value.fma(value, total), row, before)
                for row, before in zip(grid, squares, strict=True)
            ]

        bounds = [b.zero(F32), b.zero(F32)]
        with b.loop(0, self.height, 1, bounds) as loop:
            i = loop.index
            starts = [b.index(self.row) + unit * self.height + i for unit in range(s.side)]
            if s.lacks:
                starts = [b.index(b.minimum(at, s.m - 1)) for at in starts]
            lines = [w.ends.source(at).fixed() for at in starts]
            out = (self.left + i * s.pitch).fixed()
            sizes = [b.zero(F32)] * s.side
            if full:
                with b.loop(0, full, 1, [b.zero(F32.x(lanes))] * s.side) as vectors:
                    j = vectors.index
                    here = [(at + j * w.ends.step).fixed() for at in lines]
                    vectors.next(factors(here, (out + j * lanes).fixed(), lanes, vectors.vars))
                sizes = [v.reduce("add") for v in vectors.out]
            if s.depth % lanes:
                with b.loop(full * lanes, s.depth, 1, sizes) as singles:
                    k = singles.index
                    here = [(at + k).fixed() for at in lines]
                    singles.next(factors(here, (out + k).fixed(), 1, singles.vars))
                sizes = singles.out
            most, total = loop.vars
            for unit, size in enumerate(sizes):
                (self.sizes + unit * self.height + i).store(size)
                most, total = most.max(size), total + size
            loop.next([most, total])
        most, total = loop.out
        self.limit.store((total < LARGE**2).select(most * SMALL**2, inf))


@dataclass(frozen=True)
class _Unit:
    """One panel of rows times one panel of columns, which begins with `column`; a row of one of its
    units has vectors of `widths` lanes."""

    panel: _Panel
    column: Position
    widths: tuple[int, ...]

    def product(self, q: Val, right: Ptr) -> None:
        """Emit product number q and what row q of the table (`FIELDS`) says of its sum: it is kept
        for later products, or stored as a finished unit of the result. `right`: the right factors
        of the column panel."""
        panel, w = self.panel, self.panel.w
        b, s = w.b, w.shape
        line = (w.table + q * len(FIELDS)).fixed()
        field = {name: (line + i).load() for i, name in enumerate(FIELDS)}
        size = sum(self.widths)
        left = (panel.left + q * s.apart).fixed()
        factor = (right + q * (s.depth * size)).fixed()
        later = factor + DISTANCE
        if s.together > 1:  # each panel prefetches its share of the next right factor
            later = factor + s.depth * size + panel.slot * (s.depth * size // s.together)
        ahead = [Ahead(later.fixed(), size, s.together, locality=2 if s.together == 1 else 3)]
        if s.far(b.target) > 0.5:
            ahead.append(Ahead((left + s.left).fixed(), s.tiling.rows.size))
        at = Operands(left, s.pitch, factor, size, s.depth, ahead=tuple(ahead))
        start = self._load(field["start"])
        sums = product(b, at, panel.height, self.widths, add=start)
        with b.when(field["keep"].ne(0)):
            self._keep((panel.sums + field["keep"]).fixed(), sums)
        with b.when(field["done"].ne(0)):
            sums = self._plus(sums, field["add"])
            if s.level == 1:
                self._end(sums, field["row"], field["column"])
            else:
                sums = self._plus(sums, field["outer"])
                with b.when(field["outer_keep"].ne(0)):
                    self._keep((panel.sums + field["outer_keep"]).fixed(), sums)
                with b.when(field["final"].ne(0)):
                    sums = self._plus(sums, field["outer_add"])
                    self._end(sums, field["row"], field["column"])

    def _load(self, at: Val) -> Tile:
        place, size = (self.panel.sums + at).fixed(), sum(self.widths)
        return [load_row(place + i * size, self.widths) for i in range(self.panel.height)]

    def _keep(self, place: Ptr, sums: Tile) -> None:
        store_rows(place, sums, sum(self.widths))

    def _plus(self, sums: Tile, at: Val) -> Tile:
        more = self._load(at)
        return [
            [x + y for x, y in zip(*pair, strict=True)] for pair in zip(sums, more, strict=True)
        ]

    def _end(self, sums: Tile, at_row: Val, at_column: Val) -> None:
        """Emit epilogue and stores of the finished unit (at_row, at_column) of the result, row by
        row. Rows that `repair` computes are left out."""
        panel, w = self.panel, self.panel.w
        b, s, size = w.b, w.shape, sum(self.widths)
        source = w.room(Room(s).result)
        self._keep(source, sums)
        number = at_row * panel.height
        unit, limit = number + panel.row, panel.limit.load()
        with b.loop(0, w.real(unit, panel.height)) as i:
            values = load_row((source + i * size).fixed(), self.widths)
            with b.when((panel.sizes + (number + i)).load() > limit):
                w.ends.store(unit + i, at_column * size + self.column, values)
