"""Attention in one pass: a block of queries at a time, whose scores never leave L1.

For each item (a head of a batch element, or of a window) keys are transposed into panels and
values copied, once; then, for each block of rows: scores, exponentials in place, and the product
with the values, divided by the sums on the way out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Packed,
    Site,
    Skip,
    Tier,
    kernel,
    one_phase,
)
from tinsmith.kernels.attention.pack import copy_queries, pack_keys, pack_values
from tinsmith.kernels.attention.softmax import Term, exponentials
from tinsmith.kernels.attention.tables import Book, RowMap, Start, row_map
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, part
from tinsmith.kernels.dot.skeleton import Operands, Tile, offsets, product
from tinsmith.kernels.dot.tiles import Columns, Rows, choose, split_columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import Position
from tinsmith.kernels.rowfold import parts
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.records import dataclass

TILE_VECTORS = 2
"""Columns of a tile in vectors: tall tiles serve both products with the same rows."""


@dataclass(frozen=True)
class Added:
    """A bias or mask [slabs, queries or 1, keys or 1]: input number, or a constant that is packed
    (already in units of log2); `at`: where in the book the slab of each item begins."""

    index: int
    const: np.ndarray[Any, Any] | None
    dims: tuple[int, ...]
    at: int

    @property
    def step(self) -> int:
        """Elements from one query's row to the next."""
        return self.dims[2] if self.dims[1] > 1 else 0


@dataclass(frozen=True)
class Shape:
    """Extents, tiles, and where everything lies in the workspace (in elements)."""

    items: int
    queries: int
    keys: int
    width: int
    value_width: int
    rows: Rows
    columns: Columns
    value_columns: Columns
    score_row: int

    @property
    def places(self) -> tuple[int, int, int, int, int]:
        """Keys, values, queries, scores, reciprocals of sums; all begin on a cache line."""
        sizes = (
            self.width * self.columns.padded,
            self.keys * self.value_columns.padded,
            self.rows.size * self.width,
            self.rows.size * self.score_row,
        )
        found = [0]
        for size in sizes:
            found.append(found[-1] + -(-size // 16) * 16)
        return found[0], found[1], found[2], found[3], found[4]

    @property
    def workspace(self) -> int:
        return 4 * (self.places[-1] + self.rows.size + 16)


@dataclass(frozen=True)
class Maps:
    q: RowMap
    k: RowMap
    v: RowMap
    y: RowMap


def _table(site: Site, index: int) -> np.ndarray[Any, Any]:
    table = site.const(index, "the table of rows")
    if table.size == 0:
        raise Skip("there are no rows")
    return table


def _shape(site: Site) -> Shape:
    (items, queries), keys = _table(site, 3).shape, _table(site, 4).shape[1]
    width, value_width = site.attr("width"), site.attr("value_width")
    if min(width, value_width) == 0:
        raise Skip("the rows are empty")
    target, lanes = site.target, block_of(site.target)
    tiling = choose(target, queries, keys, width, most_vectors=TILE_VECTORS)
    vectors = len(tiling.columns.widths) if tiling.columns.full else TILE_VECTORS
    values = split_columns(value_width, lanes, vectors, exact=not target.has_masks)
    score_row = -(-tiling.columns.padded // lanes) * lanes
    if score_row * 4 % 1024 == 0:
        score_row += 16
    return Shape(
        items, queries, keys, width, value_width, tiling.rows, tiling.columns, values, score_row
    )


def _added(site: Site, index: int, book: Book) -> Added | None:
    if not site.has(index):
        return None
    at = site.const(index + 1, "the table of slabs").astype(np.int64)
    value = site.input(index)
    array = value.const
    if array is not None:
        array, first = np.unique(array, axis=0, return_inverse=True)
        at = first.reshape(-1)[at]
        array = (array.astype(np.float64) * LOG2E).astype(np.float32)
    dims = value.dims if array is None else array.shape
    return Added(index, array, tuple(dims), book.put(at * (dims[1] * dims[2])))


@kernel("RowAttention", Tier.SHAPED, dtypes="float32")
def attention_rows(site: Site) -> Choice:
    """Scores, softmax and the product with values by blocks of queries that stay in L1."""
    shape = _shape(site)
    book = Book()
    maps = Maps(*(row_map(book, _table(site, i)) for i in (3, 4, 5, 6)))
    added = [a for a in (_added(site, i, book) for i in (7, 9)) if a is not None]
    flops = 2.0 * shape.items * shape.queries * shape.keys * (shape.width + shape.value_width)
    scores = shape.items * shape.queries * shape.keys
    target = site.target
    cost = target.time(flops, 4.0 * site.out.type.size * 4, 0.85) + target.time(
        20.0 * scores, 0, 0.5
    )
    groups = min(shape.rows.count, -(-parts_for(PARTS, cost) // shape.items))
    constants = [a for a in added if a.const is not None]

    def emit(em: Emit) -> None:
        _emit(em, shape, maps, added, groups)

    reads: list[Any] = [PLAIN, PLAIN, PLAIN, None, None, None, None]
    for i in (7, 9):
        if len(site.inputs) > i:
            is_read = any(a.index == i and a.const is None for a in added)
            reads += [PLAIN if is_read else None, None]
    reads = reads[: len(site.inputs)]
    return Choice(
        cost=cost,
        reads=site.reads(reads, PLAIN),
        writes=(PLAIN,),
        phases=one_phase(shape.items * groups, emit),
        packed=(book.packed(), *(Packed("bias", _keep(a.const)) for a in constants)),
        workspace=shape.workspace,
        detail=f"{shape.items} items of {shape.queries} x {shape.keys}, "
        f"tile {shape.rows.size}x{TILE_VECTORS}",
    )


def _keep(array: Any) -> Any:
    return lambda: array


def _emit(em: Emit, s: Shape, maps: Maps, added: list[Added], groups: int) -> None:
    b = em.b
    book = em.packed[0]
    q, k, v = (em.ins[i].pointer for i in range(3))  # type: ignore[union-attr]
    y = em.outs[0].pointer
    work = em.workspace.cast(F32)
    keys, values, queries, scores, sums = ((work + p).fixed() for p in s.places)
    packed = iter(em.packed[1:])
    biases = [
        (a, em.ins[a.index].pointer if a.const is None else next(packed))  # type: ignore[union-attr]
        for a in added
    ]
    scale = em.site.attr("scale") * LOG2E
    with b.loop(em.begin, em.end) as t:
        item, group = t // groups, b.index(t % groups)

        def pack() -> None:
            pack_keys(b, k, maps.k.start(book, item), s.width, s.columns, keys)
            pack_values(b, v, maps.v.start(book, item), s.keys, s.value_columns, values)

        if groups == 1:
            pack()
        else:
            with b.when(group.eq(0) | t.eq(em.begin)):
                pack()
        q_rows, y_rows = maps.q.start(book, item), maps.y.start(book, item)
        slabs = [(a, (p + (book + a.at + item).load()).fixed()) for a, p in biases]

        def block(row: Position, height: int) -> None:
            copy_queries(b, q, q_rows, row, height, s.width, scale, queries)
            _scores(em, s, height, queries, keys, scores)
            _softmax(em, s, row, height, scores, sums, slabs)
            _values(em, s, row, height, scores, values, sums, y, y_rows)

        lo, hi = part(group, groups, s.rows.count)
        each_row_panel(b, s.rows, lo, hi, block)


def _scores(em: Emit, s: Shape, height: int, queries: Ptr, keys: Ptr, scores: Ptr) -> None:
    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right = (keys + c * (s.width * s.columns.size)).fixed()
        tile = product(
            em.b, Operands(queries, s.width, right, sum(widths), s.width), height, widths
        )
        place = (scores + column).fixed()
        for i, row in enumerate(tile):
            for at, value in offsets(row):
                (place + (i * s.score_row + at)).store(value)

    each_column_panel(em.b, s.columns, 0, s.columns.count, panel)


def _softmax(
    em: Emit,
    s: Shape,
    row: Position,
    height: int,
    scores: Ptr,
    sums: Ptr,
    slabs: list[tuple[Added, Ptr]],
) -> None:
    b = em.b
    with b.loop(0, height) as i:
        terms = []
        for a, slab in slabs:
            at = (slab + (b.index(row) + i) * a.step).fixed() if a.step else slab
            terms.append(Term(at, a.dims[2] > 1, 1.0 if a.const is not None else LOG2E))
        line = (scores + i * s.score_row).fixed()
        (sums + i).store(exponentials(b, line, s.keys, block_of(em.target), terms))


def _values(
    em: Emit,
    s: Shape,
    row: Position,
    height: int,
    scores: Ptr,
    values: Ptr,
    sums: Ptr,
    y: Ptr,
    y_rows: Start,
) -> None:
    b = em.b

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right = (values + c * (s.keys * s.value_columns.size)).fixed()
        at = Operands(scores, s.score_row, right, sum(widths), s.keys)
        tile: Tile = product(b, at, height, widths)
        for i, line in enumerate(tile):
            out = (y + y_rows.at(b.index(row) + i) + column).fixed()
            factor = (sums + i).load()
            for offset, value in offsets(line):
                lanes = value.ty.lanes
                last = offset + lanes == sum(widths)
                _store(em, out + offset, value * factor.splat(lanes), valid if last else lanes)

    each_column_panel(b, s.value_columns, 0, s.value_columns.count, panel)


def _store(em: Emit, at: Ptr, value: Val, valid: int) -> None:
    lanes = value.ty.lanes
    if valid == lanes:
        at.store(value)
    elif em.target.has_masks:
        at.store(value, em.b.first_lanes(valid, lanes))
    else:
        for start, size in parts(lanes, valid):
            some = (
                value.lane(start) if size == 1 else value.shuffle(None, range(start, start + size))
            )
            (at + start).store(some)
