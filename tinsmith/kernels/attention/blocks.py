"""Attention in one pass: a block of queries at a time, whose scores stay in the nearest caches.

For each item (a head of a batch element, or of a window) keys and values are packed, once; then,
for each block of queries: scores, exponentials, and the product with the values, divided by the
sums of the exponentials on the way out. The two products are a variant's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, Protocol

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32, U8
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, one_phase
from tinsmith.kernels.attention.operands import Extents, RowOperands
from tinsmith.kernels.attention.softmax import Put, exponentials
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.panels import part
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import Position

EXPONENTIAL, EFFICIENCY = 20.0, 0.5
"""Operations of a score's exponential, maximum and sum, and how much of the peak they reach."""
Rooms = Sequence[Ptr]


class Products(Protocol):
    """Both products of an attention, and what they read, packed: data of one kind of registers.

    blocks   of queries
    rooms    bytes that each part of the workspace takes: packed keys, packed values, packed queries
             of a block, its scores, the reciprocals of its sums, and whatever else is needed
    pitch    elements from the scores of one query to those of the next
    lanes    of a vector of exponentials

    Numbers of queries are known when code is written, or values, as the variant's blocks have them.
    """

    @property
    def blocks(self) -> int: ...
    @property
    def rooms(self) -> tuple[int, ...]: ...
    @property
    def pitch(self) -> int: ...
    @property
    def lanes(self) -> int: ...

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        """Whatever the code within needs of the machine."""
        ...

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Any, Any], None]
    ) -> None:
        """body(first query, queries) for the blocks [lo, hi)."""
        ...

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        """Keys and values of one item."""
        ...

    def scores(
        self, b: Builder, q: Start, row: Any, height: Any, scale: float, rooms: Rooms
    ) -> None:
        """Of the queries from `row` on, times a factor."""
        ...

    def put(self, b: Builder, row: Val, rooms: Rooms) -> Put | None:
        """What keeps the exponentials of a row; None: they take the place of its scores."""
        ...

    def results(self, b: Builder, v: Start, y: Start, row: Any, height: Any, rooms: Rooms) -> None:
        """Sums of values, times the reciprocals of the sums of their factors."""
        ...


def pitch_of(keys: int) -> int:
    """Elements from a row of so many scores to the next, which must not all lie in few sets of the
    first-level cache."""
    return keys + LINE if keys * 4 % 1024 == 0 else keys


def softmax_time(target: Target, of: Extents) -> float:
    """Seconds of the softmax of all scores on one core."""
    return target.time(EXPONENTIAL * of.scores, 0, EFFICIENCY)


def offer(
    site: Site, of: Extents, operands: RowOperands, products: Products, cost: float, groups: int,
    detail: str, before: int = 0,
) -> Choice:  # fmt: skip
    """The choice of a variant: each item's blocks in so many groups. `before`: bytes of the
    workspace that it needs for itself."""
    places = list(accumulate((-(-r // 64) * 64 for r in products.rooms), initial=before))

    def emit(em: Emit) -> None:
        _emit(em, of, operands, products, groups, places[:-1])

    return Choice(
        cost=cost,
        reads=site.reads(operands.reads(site), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(of.items * groups, emit),
        packed=operands.packed,
        workspace=places[-1],
        detail=detail,
    )


def _emit(
    em: Emit, of: Extents, operands: RowOperands, products: Products, groups: int,
    places: list[int],
) -> None:  # fmt: skip
    b, maps, book = em.b, operands.maps, em.packed[0]
    q, k, v = (em.input(i).pointer for i in range(3))
    y, all_slabs = em.outs[0].pointer, operands.slabs(em)
    rooms = [(em.workspace.cast(U8) + p).fixed().cast(F32) for p in places]
    scale, zeros = em.site.attr("scale") * LOG2E, em.site.attr("zeros")
    with products.registers(em), b.loop(em.begin, em.end) as t:
        item, group = b.index(t // groups), b.index(t % groups)
        keys, values = maps.k.start(k, book, item), maps.v.start(v, book, item)
        if groups == 1:
            products.pack(b, keys, values, rooms)
        else:
            with b.when(group.eq(0) | t.eq(em.begin)):
                products.pack(b, keys, values, rooms)
        queries, results = maps.q.start(q, book, item), maps.y.start(y, book, item)
        slabs = operands.slabs_of(em, all_slabs, item)

        def block(row: Position, height: Position) -> None:
            products.scores(b, queries, row, height, scale, rooms)
            with b.loop(0, height) as i:
                changes = operands.changes(slabs, row, i)
                line = (rooms[3] + i * products.pitch).fixed()
                put = products.put(b, i, rooms)
                inverse = exponentials(b, line, of.keys, products.lanes, changes, zeros, put)
                (rooms[4] + i).store(inverse)
            products.results(b, values, results, row, height, rooms)

        products.each_block(b, *part(group, groups, products.blocks), block)
