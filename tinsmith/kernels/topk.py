"""The k largest or smallest elements along an axis: a sorted list if k is small, else a heap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.table import NATIVE
from tinsmith.codegen.types import U64
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import around, lanes_of
from tinsmith.kernels.move.strided import emit_fill
from tinsmith.kernels.selected import LOOK
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical

STEP = 3e-9  # seconds of one level of a heap; estimated
LONG = 512  # longer rows, of which most elements are kept, are sorted faster as a whole; estimated
FEW = 16  # the most entries of the sorted list, for each vector lane; estimated

Entry = tuple[Val, ...]
"""An element with its index, as one or two u64 that order entries, the most significant first: the
better the entry, the larger (see `_Kept`)."""


@kernel("TopK", Tier.VECTOR)
def topk(site: Site) -> Choice:
    """The best k of each row, sorted or in a heap; vectors with nothing better are skipped.

    k is a constant. Rows of more than LONG elements, of which over half are kept, are declined: the
    reference sorts them faster.
    """
    site.need_no_epilogue("two results have no epilogue")
    x, y = site.input(0), site.out
    axis = site.attr("axis") % len(x.dims)
    (outer, n, inner), k = around(x.dims, axis), y.dims[axis]
    if site.input(1).const is None:
        raise Skip("k is not a constant")
    if x.dtype.name not in NATIVE:
        raise Skip(f"x is {x.dtype.name}")
    if not k or not x.type.size:
        raise Skip("nothing is kept")
    usual = typical(k)
    if typical(n) > LONG and 2 * usual > typical(n):
        raise Skip(f"{k} of {n} are kept: the reference sorts the whole row faster")
    largest, rows = bool(site.attr("largest")), outer * inner
    wide = x.dtype.itemsize == 8 or n >= 1 << 32
    few = usual <= FEW * site.target.lanes
    kind, worst, size = (_Sorted, k - 1, k + 64) if few else (_Heap, 1, heap_size(k))
    row_bytes = 0 if inner == 1 else -(-x.dtype.itemsize * n // 64) * 64

    def emit(em: Emit) -> None:
        b, source = em.b, em.input(0)
        values, places = (v.pointer for v in em.outs)
        copy = em.workspace.cast(source.pointer.elem)
        first = (em.workspace + row_bytes).cast(U64)
        columns = [first, first + size][: 1 + wide]
        kept = kind(b, columns, k, worst, largest)
        with b.loop(em.begin, em.end) as row:
            o, i = row // inner, row % inner
            line = (source.pointer + o * (n * inner) + i).fixed()
            if inner > 1:
                with b.loop(0, n) as j:
                    (copy + j).store((line + j * inner).load())
                line = copy
            _keep(kept, line, n)
            to = o * (k * inner) + i

            def take(rank: Val, entry: Entry, to: Val = to, line: Ptr = line) -> None:
                place = kept.place(entry)
                (values + (to + rank * inner)).store((line + place).load())
                (places + (to + rank * inner)).store(place)

            kept.drain(take)

    # Of rows in random order.
    moves = usual * (2 + log(typical(n) / usual)) * usual.bit_length()
    cost = 1e-6 + typical(rows) * (typical(n) * LOOK * (1 if inner == 1 else 8) + moves * STEP)
    return Choice(cost, (PLAIN, None), (PLAIN, PLAIN), (Phase(rows, emit),),
                  workspace=row_bytes + 8 * size * (1 + wide), detail=f"k {k}")  # fmt: skip


def _ordered(x: Val, largest: bool) -> Val:
    """Elements as u32 or u64 in the same order, or in the opposite one without `largest`: the
    better the element, the larger. NaN counts as the largest element."""
    x = x.to("f32") if x.ty.is_half else x
    bits = max(32, x.ty.bits)
    top = 1 << (bits - 1)
    if x.ty.is_float:
        plain = (x + 0.0).bitcast(x.ty.of(f"i{bits}"))  # +0 for -0
        key = plain ^ ((plain >> (bits - 1)) | top)
        key = x.is_nan().select(key.b.const(-1, key.ty), key)
    elif x.ty.is_signed:
        key = x.to(f"i{bits}") ^ top
    else:
        key = x
    key = key.to(f"u{bits}")
    return key if largest else key ^ ((top << 1) - 1)


@dataclass(frozen=True)
class _Kept:
    """The best `count` entries of a row, in memory: `columns` has one array of u64 for each part of
    an entry. An entry is an element's key (`_ordered`) and, less significant, the complement of its
    index, so that of equal elements the first is the best. `largest`: the best are the largest. The
    methods emit code."""

    b: Builder
    columns: Sequence[Ptr]
    count: int
    worst: int  # the index of the worst entry
    largest: bool

    def at(self, number: Val | int, lanes: int = 1) -> Entry:
        return tuple((c + number).load(lanes) for c in self.columns)

    def put(self, number: Val | int, entry: Entry) -> None:
        for column, value in zip(self.columns, entry, strict=True):
            (column + number).store(value)

    def fill(self, begin: int, end: int, value: int) -> None:
        for column in self.columns:
            emit_fill(self.b, self.b.const(value, U64), column, begin, end, 1)

    def entry(self, value: Val, place: Val) -> Entry:
        key, behind = _ordered(value, self.largest), (place ^ -1).to("u64")
        if len(self.columns) == 2:
            return key, behind
        return ((key.to("u64") << 32) | (behind & 0xFFFFFFFF),)

    def place(self, entry: Entry) -> Val:
        """The index on the axis of an entry's element."""
        behind = entry[-1].to("i64") ^ -1
        return behind if len(self.columns) == 2 else behind & 0xFFFFFFFF

    def bar(self) -> Val:
        """The value that `_ordered` of an element must exceed for the element to be kept."""
        worst = (self.columns[0] + self.worst).load()
        return worst if len(self.columns) == 2 else (worst >> 32).to("u32")


class _Sorted(_Kept):
    """A sorted list, the best entry first. Inserting moves all entries behind by one place."""

    @property
    def lanes(self) -> int:
        return max(2, self.b.target.lanes // 2)

    @property
    def size(self) -> int:
        return -(-self.count // self.lanes) * self.lanes

    def clear(self) -> None:
        self.fill(0, self.size, 0)

    def push(self, entry: Entry) -> None:
        """Insert an entry at its place in the list; the worst one drops out."""
        lanes = self.lanes
        new = tuple(v.splat(lanes) for v in entry)
        first = [self.b.splat(-1, U64, lanes) for _ in entry]
        with self.b.loop(0, self.size, lanes, carry=first) as loop:
            old, before = self.at(loop.index, lanes), loop.vars
            ahead = tuple(
                p.shuffle(v, range(lanes - 1, 2 * lanes - 1))
                for p, v in zip(before, old, strict=True)
            )
            moved = _pick(_less(ahead, new), ahead, new)
            self.put(loop.index, _pick(_less(old, new), moved, old))
            loop.next(list(old))

    def drain(self, take: Callable[[Val, Entry], None]) -> None:
        """Emit `take(rank, entry)` for every entry, the best (rank 0) first."""
        with self.b.loop(0, self.count) as i:
            take(i, self.at(i))


class _Heap(_Kept):
    """A binary heap from index 1 on: entry i is worse than entries 2 i and 2 i + 1. Places behind
    the last entry count as better than any."""

    @property
    def levels(self) -> Val | int:
        """How often an entry moves down at most."""
        if not isinstance(self.count, Size):
            return self.count.bit_length() - 1
        return 63 - self.b.index(self.count).unary("ctlz")

    def clear(self) -> None:
        self.fill(0, self.count + 1, 0)
        self.fill(self.count + 1, heap_size(self.count), -1)

    def push(self, entry: Entry) -> None:
        """Emit code that replaces the root, the worst entry, by `entry`, and moves that down, past
        children that are worse, until both its children are better."""
        with self.b.loop(0, self.levels, carry=[self.b.index(1)]) as loop:
            here = loop.vars[0]
            left = here * 2
            low, high = self.at(left), self.at(left + 1)
            turn = _less(high, low)
            child = _pick(turn, high, low)
            down = _less(child, entry)
            self.put(here, _pick(down, child, entry))
            loop.next([down.select(turn.select(left + 1, left), here)])
        self.put(loop.out[0], entry)

    def drain(self, take: Callable[[Val, Entry], None]) -> None:
        """Emit `take(rank, entry)` for every entry, the worst (the highest rank) first."""
        with self.b.loop(0, self.count) as i:
            end = self.b.index(self.count - 1) - i
            take(end, self.at(1))
            last = self.at(end + 1)
            self.put(end + 1, tuple(self.b.const(-1, U64) for _ in last))
            self.push(last)


def heap_size(count: int) -> int:
    """How many places of memory a heap of `count` entries takes, from index 1 on: both children of
    each entry are read, even if no entries are there."""
    return 2 * count + 2


def _pick(mask: Val, yes: Entry, no: Entry) -> Entry:
    return tuple(mask.select(y, n) for y, n in zip(yes, no, strict=True))


def _less(a: Entry, b: Entry) -> Val:
    if len(a) == 1:
        return a[0] < b[0]
    return (a[0] < b[0]) | (a[0].eq(b[0]) & (a[1] < b[1]))


def _keep(kept: _Sorted | _Heap, x: Ptr, n: int) -> None:
    """Emit the search for the best in a row of n elements at x: the first `kept.count` are pushed,
    then each one that is better than the worst that is kept."""
    b, k = kept.b, kept.count
    kept.clear()
    with b.loop(0, k) as i:
        kept.push(kept.entry((x + i).load(), i))
    lanes = lanes_of(b.target, max(4, x.elem.nbytes))

    def block(at: Val, width: int) -> None:
        better = _ordered((x + at).load(width), kept.largest) > kept.bar().splat(width)
        on = better.lanes_on()
        with b.loop(0, on.unary("ctpop"), carry=[on]) as loop:
            left = loop.vars[0]
            place = at + left.unary("cttz")
            entry = kept.entry((x + place).load(), place)
            with b.when(_less(kept.at(kept.worst), entry)):
                kept.push(entry)
            loop.next([left & (left - 1)])

    full = k + (n - k) // lanes * lanes
    for lo, hi, width in ((k, full, lanes), (full, n, 1)):
        if isinstance(lo, Size) or isinstance(hi, Size) or lo < hi:
            with b.loop(lo, hi, width) as at:
                block(at, width)
