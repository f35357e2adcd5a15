"""Attention in one pass: a block of queries at a time, whose scores stay in the nearest caches.

For each item (a head of a batch element, or of a window) keys and values are packed, once; then,
for each block of queries: scores, exponentials, and the product with the values, divided by the
sums of the exponentials on the way out. How the two products are computed is a variant's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32, U8
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, one_phase
from tinsmith.kernels.attention.operands import Extents, Reach, RowOperands
from tinsmith.kernels.attention.softmax import Put, exponentials
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.panels import part
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import Position
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import Number, Size

EXPONENTIAL, EFFICIENCY = 20.0, 0.5
"""Operations of a score's exponential, maximum and sum, and how much of the peak they reach.
Estimated."""


class Rooms(NamedTuple):
    """The parts of the workspace: the packed keys and values of an item; the packed queries of a
    block, their scores, and for each query 1 / the sum of its exponentials; then what a variant
    adds."""

    keys: Ptr
    values: Ptr
    queries: Ptr
    scores: Ptr
    inverses: Ptr
    more: tuple[Ptr, ...] = ()


@dataclass(frozen=True)
class Blocks:
    """Attention by blocks of queries: the part that all variants share. Each variant is a subclass.

    blocks   how many blocks of queries an item has
    pitch    elements from the scores of one query to those of the next
    lanes    elements of a vector while exponentials are computed
    sizes    bytes of each of the `Rooms`
    reaches  whether an item has only the keys that its queries see, which `within` computes

    In the methods, a row or a number of queries is an int or a Val, as `each_block` of the variant
    gives it.
    """

    of: Extents
    operands: RowOperands
    blocks: int
    pitch: int
    lanes: int
    sizes: tuple[int, ...]
    reaches: bool

    def within(self, reach: Reach) -> Blocks:
        """The same attention over the keys of a reach, whose number the run tells."""
        raise NotImplementedError

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        """A context around all code of a tile, for variants that must set up or release
        registers."""
        return nullcontext()

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Any, Any], None]
    ) -> None:
        """Emit `body(row, height)` for the blocks [lo, hi) of an item's queries: the number of a
        block's first query, and how many it has."""
        raise NotImplementedError

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        """Emit code that packs the keys and values of one item into `rooms`, in the order in which
        the variant's products read them."""
        raise NotImplementedError

    def scores(
        self, b: Builder, q: Start, k: Start, row: Any, height: Any, scale: float, rooms: Rooms
    ) -> None:
        """Emit scale * q k^T for the queries [row, row + height) and all keys of an item, to
        `rooms.scores` (a query every `pitch` float32). `scale` includes log2(e). Keys are read from
        `rooms.keys`, or, in variants that do not pack them, where they lie (`k`)."""
        raise NotImplementedError

    def put(self, b: Builder, row: Val, rooms: Rooms) -> Put | None:
        """A function that stores a vector of exponentials of the scores of one query, `row` of its
        block, as variants need which multiply packed operands. None: they overwrite the scores."""
        return None

    def results(self, b: Builder, v: Start, y: Start, row: Any, height: Any, rooms: Rooms) -> None:
        """Emit the results of the queries [row, row + height): the products of their exponentials
        and the values, each row times its entry of `rooms.inverses`, written to the rows of y."""
        raise NotImplementedError

    def choice(self, site: Site, cost: float, groups: int, detail: str, before: int = 0) -> Choice:
        """The choice of a variant. The blocks of each item are cut into `groups` tiles. `before`:
        bytes at the beginning of the workspace that the variant keeps for itself."""
        places = list(accumulate((-(-r // 64) * 64 for r in self.sizes), initial=before))
        return Choice(
            cost=cost, reads=site.reads(self.operands.reads(site), PLAIN), writes=(PLAIN,),
            phases=one_phase(self.of.items * groups, lambda em: self.emit(em, groups, places[:-1])),
            packed=self.operands.packed, workspace=places[-1], detail=detail,
        )  # fmt: skip

    def emit(self, em: Emit, groups: int, places: list[int]) -> None:
        """Emit the kernel. A tile is one group of an item's blocks of queries; the groups of an
        item are neighbouring tiles, so that a thread packs its keys and values once."""
        b, operands, maps, book = em.b, self.operands, self.operands.maps, em.packed[0]
        q, k, v = (em.input(i).pointer for i in range(3))
        y, all_slabs = em.outs[0].pointer, operands.slabs(em)
        pointers = [(em.workspace.cast(U8) + p).fixed().cast(F32) for p in places]
        rooms = Rooms(*pointers[:5], more=tuple(pointers[5:]))
        scale, zeros = em.site.attr("scale") * LOG2E, em.site.attr("zeros")
        with self.registers(em), b.loop(em.begin, em.end) as t:
            item, group = b.index(t // groups), b.index(t % groups)
            keys, values = maps.k.start(k, book, item), maps.v.start(v, book, item)
            slabs = operands.slabs_of(em, all_slabs, item)
            of, reach = self, None
            if self.reaches:
                reach, slabs = operands.reach(b, self.of, slabs)
                of, keys, values = (
                    self.within(reach),
                    keys.after(reach.first),
                    values.after(reach.first),
                )
            if groups == 1:
                of.pack(b, keys, values, rooms)
            else:
                with b.when(group.eq(0) | t.eq(em.begin)):
                    of.pack(b, keys, values, rooms)
            queries, results = maps.q.start(q, book, item), maps.y.start(y, book, item)

            def block(row: Position, height: Position) -> None:
                of.scores(b, queries, keys, row, height, scale, rooms)
                with b.loop(0, height) as i:
                    changes = operands.changes(slabs, row, i, reach)
                    line = (rooms.scores + i * self.pitch).fixed()
                    put = self.put(b, i, rooms)
                    inverse = exponentials(b, line, of.of.keys, self.lanes, changes, zeros, put)
                    (rooms.inverses + i).store(inverse)
                of.results(b, values, results, row, height, rooms)

            self.each_block(b, *part(group, groups, self.blocks), block)


def pitch_of(keys: Number, told: bool = False) -> Number:
    """Elements from the scores of one query to those of the next: `keys`, or a line more where rows
    would lie in few sets of the first-level cache. Where the number of keys is free, or the run
    tells it, there is always a line more: the last vector, half of which may be beyond the keys,
    needs it."""
    if told or isinstance(keys, Size):
        return keys + LINE
    return keys + LINE if keys * 4 % 1024 == 0 else keys


def softmax_time(target: Target, of: Extents) -> float:
    """Seconds of the softmax of all scores on one core."""
    return target.time(EXPONENTIAL * of.scores, 0, EFFICIENCY)
