"""Where rows of operands lie: tables of offsets, taken apart into what repeats.

A table [items, rows] is a first offset for each item, plus a pattern of distances from it. Patterns
are shared between items; one even pattern is a stride, and needs no table.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import Packed, packed_table
from tinsmith.kernels.walk import Position, digits
from tinsmith.ops.attention_rows import items_of
from tinsmith.records import dataclass
from tinsmith.sizes import Number, same

Array = np.ndarray[Any, Any]


@dataclass
class Book:
    """Several tables in one packed int64 array."""

    parts: list[Array] = field(default_factory=list)
    size: int = 0

    def put(self, part: Array) -> int:
        """Add a table, flat. Gives its place: the index of its first element in the packed
        array."""
        self.parts.append(np.asarray(part, np.int64).reshape(-1))
        self.size += self.parts[-1].size
        return self.size - self.parts[-1].size

    def packed(self) -> Packed:
        """All tables, one after the other, as a packed array."""
        array = np.concatenate([*self.parts, np.zeros(1, np.int64)])
        return packed_table("tables", array)


@dataclass(frozen=True)
class RowMap:
    """Where the rows of an operand lie, by tables in the book: `first` is the place of the first
    offsets of all items. With a `stride` the rows of an item follow at that distance; otherwise
    their distances are a pattern: the one at `patterns`, or the one whose number is in the table at
    `which`."""

    rows: int
    first: int
    which: int
    patterns: int
    stride: int | None
    shared: bool  # one pattern for all items

    def start(self, base: Ptr, book: Ptr, item: Val) -> Start:
        """The rows of one item in the array at `base`. Emits loads: call it once for each item,
        outside loops over rows."""
        first = (book + self.first + item).load()
        if self.stride is not None:
            return Start(base, first, None, self.stride)
        if self.shared:
            return Start(base, first, (book + self.patterns).fixed(), 0)
        which = (book + self.which + item).load()
        return Start(base, first, (book + self.patterns + which * self.rows).fixed(), 0)


@dataclass(frozen=True)
class EvenMap:
    """Where the rows of an operand lie, by a formula (see `RowAttention`): item's first row at
    `first` plus its index on each of the axes `items`, (extent, stride), times that axis's stride;
    further rows at `stride`."""

    rows: Number
    first: Number
    stride: Number
    items: tuple[tuple[Number, Number], ...]

    def offset(self, item: Val) -> Val:
        """The first offset of an item."""
        axes = [(extent, k) for k, (extent, _) in enumerate(self.items)]
        total = item.b.index(self.first)
        for k, index in digits(item, axes):
            if not same(self.items[k][1], 0):
                total = total + index * self.items[k][1]
        return total

    def start(self, base: Ptr, book: Ptr, item: Val) -> Start:
        """The rows of one item in the array at `base`."""
        return Start(base, self.offset(item), None, self.stride)


@dataclass(frozen=True)
class Start:
    """The rows of one item: their first offset in the array, and either a stride or distances."""

    base: Ptr
    first: Val
    distances: Ptr | None
    stride: Number

    def after(self, rows: Val) -> Start:
        """The same item without its first `rows` rows."""
        if self.distances is None:
            return replace(self, first=self.first + rows * self.stride)
        return replace(self, distances=(self.distances + rows).fixed())

    def at(self, row: Position) -> Ptr:
        """A pointer to the first element of a row of the item."""
        if self.distances is None:
            return self.base + (self.first + row * self.stride)
        return self.base + (self.first + (self.distances + row).load())


def even_map(formula: Array) -> EvenMap:
    """The map of rows that lie at equal distances, by the numbers of their formula."""
    first, rows, step = formula[:3].tolist()
    return EvenMap(rows, first, step, items_of(formula))


def distinct(parts: Array) -> tuple[Array, Array]:
    """The parts of an array along its first axis, each different one once, in the order in which
    they first come; and for each part the index of its equal among these. Compared bit by bit."""
    seen: dict[bytes, int] = {}
    which = np.array([seen.setdefault(part.tobytes(), len(seen)) for part in parts], np.int64)
    return parts[np.unique(which, return_index=True)[1]], which


def row_map(book: Book, table: Array) -> RowMap:
    """The `RowMap` of a table [items, rows] of offsets; what the map needs of it is added to the
    book."""
    table = np.asarray(table, np.int64)
    first = table[:, 0]
    distances = table - first[:, None]
    rows, at_first, steps = table.shape[1], book.put(first), np.diff(distances[0])
    shared = bool(np.all(distances == distances[0]))
    if shared and np.all(steps == steps[:1]):
        return RowMap(rows, at_first, 0, 0, int(steps[0]) if len(steps) else 0, True)
    patterns, which = distinct(distances)
    at_which = 0 if shared else book.put(which)
    return RowMap(rows, at_first, at_which, book.put(patterns), None, shared)
