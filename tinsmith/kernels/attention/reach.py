"""Which keys the queries of an item see: those before the first and after the last are left out.

A cache has room for more keys than it holds, and a window sees the last ones alone; a mask says so
in the call. Time and memory traffic of an attention are then those of the keys that are seen.
"""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I64, U8
from tinsmith.records import NamedTuple
from tinsmith.sizes import Number

HIDDEN = -1e30
"""A mask that adds no more than this hides a key: beside a key that is seen its weight is 0, unless
scores have about this size themselves."""


class Reach(NamedTuple):
    """The keys from `first` on, of which there are `count`."""

    first: Val
    count: Val


def reach_of(b: Builder, slab: Ptr, step: Number, queries: Number, keys: Number) -> Reach:
    """The keys from the first to the last that some query sees, by the rows of a mask at `slab`,
    `step` elements apart (0: one row for all queries): all keys where a query sees none."""
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
    """How many keys, from the first on (`back`: from the last), come before one that is seen; all
    of them where none is."""
    lanes = b.target.lanes * (F32.nbytes // row.elem.nbytes)
    whole = count // lanes

    def on(at: Val, size: int) -> Val:
        """Whether one is seen of so many keys, before which there are `at` in this direction."""
        value = (row + ((count - size) - at if back else at)).load(size)
        seen = value.ne(0) if row.elem == U8 else (value > HIDDEN) | value.is_nan()
        return seen.any()

    vectors = b.find(whole, lambda vector: on(vector * lanes, lanes)) * lanes
    return vectors + b.find((count - vectors).min(lanes), lambda k: on(vectors + k, 1))
