"""Attention in one pass: a block of queries at a time, whose scores stay in the nearest caches.

    for each item (a head of a batch element, or of a window): pack its keys and values
        for each block of queries: s = scale q k^T;  e = exp(s - max s);  y = e v / sum e

Subclasses of `Blocks` compute both products: in float32 vectors, or on matrix registers.
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
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import Position, share
from tinsmith.records import NamedTuple, dataclass
from tinsmith.sizes import Number, Size

EXPONENTIAL, EFFICIENCY = 20.0, 0.5
"""Arithmetic operations of the softmax for each score, and the share of the machine's peak rate
that they reach. Estimated."""


class Rooms(NamedTuple):
    """Pointers (to float32) to the parts of a thread's workspace: the packed keys and values of an
    item; for a block of queries the packed queries, the scores, and 1 / sum of exponentials of
    each query; `more`: buffers of the subclass's own."""

    keys: Ptr
    values: Ptr
    queries: Ptr
    scores: Ptr
    inverses: Ptr
    more: tuple[Ptr, ...] = ()


@dataclass(frozen=True)
class Blocks:
    """How one attention is computed by blocks of queries. A subclass computes the two products.

    of        the sizes of the attention
    operands  where its rows lie, and which biases and masks are added to its scores
    blocks    how many blocks of queries an item has
    pitch     elements from the scores of one query to those of the next
    lanes     elements of a vector while exponentials are computed
    sizes     bytes of each of the `Rooms`
    reaches   whether each item leaves out keys before the first and after the last that its mask
              shows (`within`)

    In the methods, `row` (a query's number) and `height` (how many queries) are an int or a Val,
    whichever the subclass's `each_block` gives.
    """

    of: Extents
    operands: RowOperands
    blocks: int
    pitch: int
    lanes: int
    sizes: tuple[int, ...]
    reaches: bool

    def within(self, reach: Reach) -> Blocks:
        """The same attention over the `reach.count` keys of a reach alone. Called only if
        `reaches`: the caller moves keys, values and masks to the first of these."""
        raise NotImplementedError

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        """A context around all code of the kernel. Subclasses that compute on matrix registers
        configure and release these there."""
        return nullcontext()

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Any, Any], None]
    ) -> None:
        """Emit `body(row, height)` for the blocks [lo, hi) of an item's queries: `row` is the
        number of the block's first query, `height` how many queries the block has. `body` is called
        once for all blocks, or once for each height that they have."""
        raise NotImplementedError

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        """Emit code that packs the keys `k` and values `v` of one item into `rooms`, in the order
        in which the subclass's products read them."""
        raise NotImplementedError

    def scores(
        self, b: Builder, q: Start, k: Start, row: Any, height: Any, scale: float, rooms: Rooms
    ) -> None:
        """Emit scale * q k^T for the queries [row, row + height) and all keys of an item, to
        `rooms.scores` (a query every `pitch` float32). `scale` includes log2(e). Keys are read from
        `rooms.keys`, or at `k` where `pack` did not pack them."""
        raise NotImplementedError

    def put(self, b: Builder, row: Val, rooms: Rooms) -> Put | None:
        """The function that stores the exponentials of query number `row` of a block, packed for
        the product with the values. None: exponentials overwrite the scores."""
        return None

    def results(self, b: Builder, v: Start, y: Start, row: Any, height: Any, rooms: Rooms) -> None:
        """Emit the results of the queries [row, row + height): the products of their exponentials
        and the values, each row times its entry of `rooms.inverses`, written to the rows of y."""
        raise NotImplementedError

    def choice(self, site: Site, cost: float, groups: int, detail: str, before: int = 0) -> Choice:
        """The kernel's choice: each item is cut into `groups` tiles of neighbouring blocks.
        `before`: bytes at the start of the workspace that the subclass keeps for itself."""
        places = list(accumulate((-(-r // 64) * 64 for r in self.sizes), initial=before))
        return Choice(
            cost=cost, reads=site.reads(self.operands.reads(site), PLAIN), writes=(PLAIN,),
            phases=one_phase(self.of.items * groups, lambda em: self.emit(em, groups, places[:-1])),
            packed=self.operands.packed, workspace=places[-1], detail=detail,
        )  # fmt: skip

    def emit(self, em: Emit, groups: int, places: list[int]) -> None:
        """Emit the kernel. A tile is one of the `groups` groups of an item's blocks. A thread packs
        an item's keys and values once: the groups of an item are neighbouring tiles. `places`: the
        offsets of the `Rooms` in the workspace, in bytes."""
        b, operands, maps, book = em.b, self.operands, self.operands.maps, em.packed[0]
        q, k, v = (em.input(i).pointer for i in range(3))
        y, all_slabs = em.outs[0].pointer, operands.slabs(em)
        pointers = [(em.workspace.cast(U8) + p).fixed().cast(F32) for p in places]
        rooms = Rooms(*pointers[:5], more=tuple(pointers[5:]))
        scale = em.site.attr("scale") * LOG2E
        cleared = em.site.attr("zeros"), em.site.attr("nans")
        with self.registers(em), b.loop(em.begin, em.end) as t:
            item, group = b.index(t // groups), b.index(t % groups)
            keys, values = maps.k.start(k, book, item), maps.v.start(v, book, item)
            slabs = operands.slabs_of(em, all_slabs, item)
            of, reach = self, None
            if self.reaches:
                reach, slabs = operands.reach(b, self.of, slabs)
                of = self.within(reach)
                keys, values = keys.after(reach.first), values.after(reach.first)
            with b.when(group.eq(0) | t.eq(em.begin)) if groups > 1 else nullcontext():
                of.pack(b, keys, values, rooms)
            queries, results = maps.q.start(q, book, item), maps.y.start(y, book, item)

            def block(row: Position, height: Position) -> None:
                of.scores(b, queries, keys, row, height, scale, rooms)
                with b.loop(0, height) as i:
                    changes = operands.changes(slabs, row, i, reach)
                    line = (rooms.scores + i * self.pitch).fixed()
                    put = self.put(b, i, rooms)
                    inverse = exponentials(b, line, of.of.keys, self.lanes, changes, cleared, put)
                    (rooms.inverses + i).store(inverse)
                of.results(b, values, results, row, height, rooms)

            self.each_block(b, *share(group, groups, self.blocks), block)


def pitch_of(keys: Number, told: bool = False) -> Number:
    """How many elements lie from the scores of one query to those of the next: `keys`, or a cache
    line more. More where rows of a multiple of 1024 bytes would compete for few sets of the
    first-level cache, and if only the run tells how many keys there are (a Size, or `told`): the
    last vector may then extend beyond keys."""
    if told or isinstance(keys, Size):
        return keys + LINE
    return keys + LINE if keys * 4 % 1024 == 0 else keys


def softmax_time(target: Target, of: Extents) -> float:
    """Estimated seconds of the softmax of all scores on one core."""
    return target.time(EXPONENTIAL * of.scores, 0, EFFICIENCY)
