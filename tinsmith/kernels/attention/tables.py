"""Where the rows of an attention's operands lie in their arrays.

A table [items, rows] of offsets is stored as a first offset for each item, plus a pattern: the
distances of the item's rows from the first. Items with equal distances share a pattern; a pattern
of even distances that all items share is a stride, and needs no table.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Packed, packed_table
from tinsmith.kernels.walk import Position, digits
from tinsmith.ops.attention_rows import items_of
from tinsmith.records import dataclass
from tinsmith.sizes import Number, same


@dataclass
class Book:
    """Tables of whole numbers, `size` in all, which are packed one after the other as int64."""

    parts: list[Array] = field(default_factory=list)
    size: int = 0

    def put(self, part: Array) -> int:
        """Add a table, flattened. Return its place: the index of its first element in the array."""
        self.parts.append(np.asarray(part, np.int64).reshape(-1))
        self.size += self.parts[-1].size
        return self.size - self.parts[-1].size

    def packed(self) -> Packed:
        """All tables as one packed array, with a 0 at the end."""
        array = np.concatenate([*self.parts, np.zeros(1, np.int64)])
        return packed_table("tables", array)


@dataclass(frozen=True)
class RowMap:
    """Where the rows of an operand lie, by tables in the book. Offsets are in elements; a "place"
    is the index in the book of a table's first element.

    rows      how many rows an item has
    first     the place of the items' first offsets
    stride    the distance between neighbouring rows; None: distances are patterns
    patterns  the place of the patterns, [pattern][row]
    which     the place of the number of each item's pattern; None: all items have the first one
    """

    rows: int
    first: int
    which: int | None
    patterns: int
    stride: int | None

    def start(self, base: Ptr, book: Ptr, item: Val) -> Start:
        """Where the rows of item number `item` (one batch and head) lie in the array at `base`;
        `book` points to the packed tables. Emits loads: keep it out of loops."""
        first = (book + self.first + item).load()
        if self.stride is not None:
            return Start(base, first, None, self.stride)
        if self.which is None:
            return Start(base, first, (book + self.patterns).fixed(), 0)
        which = (book + self.which + item).load()
        return Start(base, first, (book + self.patterns + which * self.rows).fixed(), 0)


@dataclass(frozen=True)
class EvenMap:
    """Where the rows of an operand lie, by a formula (see `RowAttention`), in elements. Items are
    numbered through the axes `items`, each (extent, stride), the last fastest:

        offset of row r of the item (i_0, i_1, ...) = first + sum of i_k stride_k + r stride
    """

    rows: Number
    first: Number
    stride: Number
    items: tuple[tuple[Number, Number], ...]

    def offset(self, item: Val) -> Val:
        """Emit and return the offset of the first row of an item."""
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
    """The rows of one item in the array at `base`, while code is emitted: row r begins at element
    first + r stride, or first + distances[r] if `distances` is not None."""

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
        """A pointer to the first element of row number `row`. With `distances`, emits the load of
        the row's offset."""
        if self.distances is None:
            return self.base + (self.first + row * self.stride)
        return self.base + (self.first + (self.distances + row).load())


def even_map(formula: Array) -> EvenMap:
    """The map that a formula of `RowAttention` tells: a constant array of first offset, rows of an
    item, stride, then the axes of items."""
    first, rows, step = formula[:3].tolist()
    return EvenMap(rows, first, step, items_of(formula))


def distinct(parts: Array) -> tuple[Array, Array]:
    """The different entries of `parts` along its first axis, in the order of their first
    occurrence, and for each entry the index of its equal among these. Compared bit by bit.

    distinct(["b", "a", "b"]) is (["b", "a"], [0, 1, 0])."""
    seen: dict[bytes, int] = {}
    which = np.array([seen.setdefault(part.tobytes(), len(seen)) for part in parts], np.int64)
    return parts[np.unique(which, return_index=True)[1]], which


def row_map(book: Book, table: Array) -> RowMap:
    """The map of a table [items, rows] of offsets; what it needs is added to `book`."""
    table = np.asarray(table, np.int64)
    first = table[:, 0]
    distances = table - first[:, None]
    rows, at_first, steps = table.shape[1], book.put(first), np.diff(distances[0])
    shared = bool(np.all(distances == distances[0]))
    if shared and np.all(steps == steps[:1]):
        return RowMap(rows, at_first, None, 0, int(steps[0]) if len(steps) else 0)
    patterns, which = distinct(distances)
    at_which = None if shared else book.put(which)
    return RowMap(rows, at_first, at_which, book.put(patterns), None)
