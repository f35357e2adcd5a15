"""The operands of an attention: rows that lie anywhere in their arrays, and biases and masks that
are added to scores.

A cache of keys and values has room for more keys than it holds, and a mask hides the others. Keys
before the first and after the last that the mask shows to any query of an item are not read
(`Reach`).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.types import F32, I64, U8
from tinsmith.kernels._kernel import PLAIN, Emit, Layout, Packed, Site, Skip
from tinsmith.kernels.attention.softmax import Cap, Change, Term, Window
from tinsmith.kernels.attention.tables import Book, EvenMap, RowMap, distinct, even_map, row_map
from tinsmith.kernels.walk import Position
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import Number, same, typical

HIDDEN = -1e30
"""A key whose mask adds this or less counts as hidden: after the softmax its weight is 0 beside any
key that is seen, unless scores have about this size themselves."""


class Reach(NamedTuple):
    """The `count` consecutive keys from number `first` on, out of all keys of an item."""

    first: Val
    count: Val


def reach_of(b: Builder, slab: Ptr, step: Number, queries: Number, keys: Number) -> Reach:
    """Emit the search for the keys from the first to the last that some query sees, and return
    them; all keys if any query sees none, because its result depends on all. `slab` points to a
    mask, whose rows, one a query, are `step` elements apart (0: one row for all queries)."""
    last, zero = b.index(keys), b.const(0, I64)
    with b.loop(0, queries if step else 1, 1, [last, zero]) as loop:
        row, (low, high) = (slab + loop.index * step).fixed(), loop.vars
        first = _seen(b, row, last, False)
        none = first.eq(last)
        stop = none.select(last, last - _seen(b, row, last, True))
        loop.next([low.min(none.select(zero, first)), high.max(stop)])
    low, high = loop.out
    return Reach(low, high - low)


def _seen(b: Builder, row: Ptr, count: Val, back: bool) -> Val:
    """Emit a search along one row of a mask, and return how many hidden keys precede the first that
    is seen (`back`: follow the last that is seen); `count`, that of all keys, if all are hidden."""
    lanes = b.target.lanes * (F32.nbytes // row.elem.nbytes)
    whole = count // lanes

    def on(at: Val, size: int) -> Val:
        """Whether any of `size` keys is seen, `at` keys from where the search begins."""
        value = (row + ((count - size) - at if back else at)).load(size)
        seen = value.ne(0) if row.elem == U8 else (value > HIDDEN) | value.is_nan()
        return seen.any()

    vectors = b.find(whole, lambda vector: on(vector * lanes, lanes)) * lanes
    return vectors + b.find((count - vectors).min(lanes), lambda k: on(vectors + k, 1))


FARTHEST = np.finfo(np.float32).max
"""Masks often hide a key by adding minus this number. A query all of whose keys are hidden so
attends to all of them evenly, if masks stay finite when they are scaled to units of log2: numbers
that would overflow are left unscaled."""
Slab = tuple["Added", Ptr]
"""A bias or mask, and a pointer to one of its slabs (see `Added`)."""


@dataclass(frozen=True)
class Extents:
    """The sizes of an attention: `items` (heads of all batch elements or windows); for each, how
    many `queries` and `keys` (and as many values); and how many elements the row of a query or key
    (`width`) and of a value (`value_width`) has."""

    items: int
    queries: int
    keys: int
    width: int
    value_width: int

    def typical(self) -> Extents:
        """The same extents, with the numbers of the example call in place of free sizes."""
        return Extents(*(typical(getattr(self, name)) for name in self.__annotations__))

    @property
    def scores(self) -> int:
        return self.items * self.queries * self.keys

    @property
    def flops(self) -> float:
        """Operations of the two products."""
        return 2.0 * self.scores * (self.width + self.value_width)

    @property
    def nbytes(self) -> float:
        """Bytes of queries, keys, values and results."""
        rows = self.queries * (self.width + self.value_width)
        return 4.0 * self.items * (rows + self.keys * (self.width + self.value_width))

    def __str__(self) -> str:
        return f"{self.items} items of {self.queries} x {self.keys}"


@dataclass(frozen=True)
class Added:
    """A bias or mask that is added to scores: an array of `dims` (slabs, queries or 1, keys or 1),
    of which each item adds one slab. It is input number `index`; `const` is its array if constant,
    packed and already in units of log2, else None. `at` tells where the slab of each item begins:
    the place in the book of a table of offsets, or a formula."""

    index: int
    const: np.ndarray[Any, Any] | None
    dims: tuple[int, ...]
    at: int | EvenMap

    @property
    def step(self) -> int:
        """Elements from one query's row of a slab to the next; 0 if all queries share one row."""
        return 0 if same(self.dims[1], 1) else self.dims[2]

    @property
    def is_wide(self) -> bool:
        """Whether a row has a number for each key, not one for all."""
        return not same(self.dims[2], 1)

    def term(self, slab: Ptr, row: Position, i: Val) -> Term:
        """What is added to the scores of query `row` + `i` of the item with this slab."""
        at = (slab + (slab.b.index(row) + i) * self.step).fixed() if self.step else slab
        return Term(at, self.is_wide, 1.0 if self.const is not None else LOG2E)


@dataclass(frozen=True)
class Maps:
    """Where the rows of queries (q), keys (k), values (v) and results (y) lie."""

    q: RowMap | EvenMap
    k: RowMap | EvenMap
    v: RowMap | EvenMap
    y: RowMap | EvenMap


@dataclass(frozen=True)
class RowOperands:
    """Where the rows of all operands lie, and how scores change before the softmax.

    book       the tables of `maps` and of `added`: the first packed array
    added      the biases and masks
    softcap    scores are limited softly to +-softcap, in units of log2; 0: they are not
    low, high  query r sees the keys from r + low to r + high; None: no bound on that side
    """

    book: Book
    maps: Maps
    added: tuple[Added, ...]
    softcap: float
    low: Number | None
    high: Number | None

    @property
    def packed(self) -> tuple[Packed, ...]:
        """The packed arrays: the tables, then each constant bias or mask."""
        constants = [a.const for a in self.added if a.const is not None]
        return (self.book.packed(), *(Packed("bias", np.asarray, (c,)) for c in constants))

    def reads(self, site: Site) -> list[Layout | None]:
        """The layout in which each input is read; None if it is not read at run time."""
        live = {a.index for a in self.added if a.const is None}
        return [PLAIN if i < 3 or i in live else None for i in range(len(site.inputs))]

    def slabs(self, em: Emit) -> list[Slab]:
        """Each bias or mask with a pointer to its first slab."""
        packed = iter(em.packed[1:])
        return [
            (a, em.input(a.index).pointer if a.const is None else next(packed)) for a in self.added
        ]

    def slabs_of(self, em: Emit, slabs: list[Slab], item: Val) -> list[Slab]:
        """Each bias or mask of `slabs` with a pointer to the slab of one item."""

        def at(a: Added) -> Val:
            if isinstance(a.at, EvenMap):
                return a.at.offset(item)
            return (em.packed[0] + a.at + item).load()

        return [(a, (p + at(a)).fixed()) for a, p in slabs]

    @property
    def mask(self) -> int | None:
        """The index in `added` of the last bias or mask that is not constant and has a number for
        each key, by which `reach` finds the keys that are seen; None if there is none."""
        found = [k for k, a in enumerate(self.added) if a.const is None and a.is_wide]
        return found[-1] if found else None

    def reach(self, b: Builder, of: Extents, slabs: list[Slab]) -> tuple[Reach, list[Slab]]:
        """Emit the search for the keys that the queries of an item see, and return these with the
        item's `slabs`, moved to the first of these keys. `mask` must not be None."""
        mask, slab = slabs[self.mask or 0]
        reach = reach_of(b, slab, mask.step, of.queries, of.keys)
        return reach, [(a, (p + reach.first).fixed() if a.is_wide else p) for a, p in slabs]

    def changes(
        self, slabs: list[Slab], row: Position, i: Val, reach: Reach | None
    ) -> list[Change]:
        """The changes to the scores of one query before their softmax, in order: the soft cap, each
        bias and mask, the window of keys. The query is number `row` + `i` of its item; `slabs` are
        those of the item (`slabs_of`), or of its `reach` if that is not None."""
        changes: list[Change] = [Cap(self.softcap)] if self.softcap > 0 else []
        changes += [a.term(slab, row, i) for a, slab in slabs]
        if (self.low, self.high) != (None, None):
            number = i.b.index(row) + i
            number = number if reach is None else number - reach.first
            changes.append(Window(number, self.low, self.high))
        return changes


def extents_of(site: Site) -> Extents:
    """The sizes of a site's attention. Raises Skip if rows have no elements, or a table of rows is
    empty or not constant."""
    if site.attr("even"):
        q = even_map(site.const(3))
        items, queries = prod(extent for extent, _ in q.items), q.rows
        keys = even_map(site.const(4)).rows
    else:
        (items, queries), keys = _table(site, 3).shape, _table(site, 4).shape[1]
    width, value_width = site.attr("width"), site.attr("value_width")
    if min(width, value_width) == 0:
        raise Skip("the rows are empty")
    return Extents(items, queries, keys, width, value_width)


def operands_of(site: Site) -> RowOperands:
    """Where the rows of a site's attention lie, and how its scores change. Raises Skip if a table
    of rows is empty or not constant."""
    book = Book()
    if site.attr("even"):
        maps = Maps(*(even_map(site.const(i)) for i in (3, 4, 5, 6)))
    else:
        maps = Maps(*(row_map(book, _table(site, i)) for i in (3, 4, 5, 6)))
    added = [a for a in (_added(site, i, book) for i in (7, 9)) if a is not None]
    softcap, low, high = (site.attr(name) for name in ("softcap", "low", "high"))
    return RowOperands(book, maps, tuple(added), softcap * LOG2E, low, high)


def _table(site: Site, index: int) -> np.ndarray[Any, Any]:
    table = site.const(index, "the table of rows")
    if table.size == 0:
        raise Skip("there are no rows")
    return table


def _added(site: Site, index: int, book: Book) -> Added | None:
    """The bias or mask that is input `index`, whose slab for each item the next input tells; None
    if it is absent. A table of the slabs' offsets is added to `book`."""
    if not site.has(index):
        return None
    even, at = site.attr("even"), site.const(index + 1, "the table of slabs")
    value = site.input(index)
    array = value.const
    if array is not None:
        if not even:
            array, which = distinct(array)
            at = which[at]
        if array.dtype != np.bool_:
            scaled = array.astype(np.float64) * LOG2E
            array = np.where(abs(scaled) > FARTHEST, array, scaled).astype(np.float32)
    *lead, rows, columns = value.dims if array is None else array.shape
    dims = prod(lead), rows, columns
    size = dims[1] * dims[2]
    if not even:
        return Added(index, array, dims, book.put(at.astype(np.int64) * size))
    slabs = even_map(at)
    items = tuple((extent, stride * size) for extent, stride in slabs.items)
    return Added(index, array, dims, EvenMap(1, slabs.first * size, 0, items))
