"""Non-maximum suppression: a heap of scores; the best box is compared with all kept ones at
once."""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I64, U64, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.selected import LOOK, each_held
from tinsmith.records import dataclass
from tinsmith.sizes import typical

TAKE = 60e-9  # seconds to take the best score from the heap; estimated
DTYPES = ("float32", "float32", "int64", "float32", "float32")


@kernel("NonMaxSuppression", Tier.VECTOR, dtypes="float32", checks=True)
def suppress(site: Site) -> Choice:
    """One class after the other: its boxes by falling score, each against vectors of kept boxes."""
    for value, name in zip(site.inputs, DTYPES, strict=False):
        if value is not None and value.dtype.name != name:
            raise Skip(f"{value.name} is {value.dtype.name}")
    batch, classes, boxes = site.input(1).dims
    if site.input(0).dims != (batch, boxes, 4):
        raise Skip(f"boxes are {site.input(0).type}, scores {site.input(1).type}")
    site.need_no_epilogue("rows of indices have no epilogue")
    if len(site.outputs) == 1:
        raise Skip(f"the model says that there are {site.out.dims[0]} rows: none are counted")
    tiles = batch * classes
    room = site.out.dims[0] // tiles
    over = _Room(classes, boxes, room, -(-room // site.target.lanes) * site.target.lanes)

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as tile:
            _one_class(em, over, tile)

    def join(em: Emit) -> None:
        _join(em, tiles, room)

    cost = 1e-6 + typical(tiles) * (typical(boxes) * LOOK + typical(room) * TAKE)
    reads = tuple(None if v is None else PLAIN for v in site.inputs)
    return Choice(cost, reads, (PLAIN, PLAIN), (Phase(tiles, emit), Phase(1, join)),
                  workspace=over.nbytes, scratch=8 * tiles, detail=f"room {room}")  # fmt: skip


@dataclass(frozen=True)
class _Room:
    """Workspace for one class: its boxes, the most that are kept, and that in whole vectors."""

    classes: int
    boxes: int
    kept: int
    padded: int

    @property
    def nbytes(self) -> int:
        return 16 + 8 * self.boxes + 4 * 5 * self.padded


def _one_class(em: Emit, over: _Room, tile: Val) -> None:
    """Write the rows of one class to the beginning of its scratch, and their count."""
    b, batch = em.b, tile // over.classes
    state = em.workspace.cast(I64)
    size, kept = state, state + 1
    heap = _Heap(b, (state + 2).cast(U64))
    sides = [((state + 2 + over.boxes).cast(F32) + k * over.padded).fixed() for k in range(5)]
    boxes, scores, most, overlap, least = (*em.ins, None, None, None)[:5]
    assert boxes is not None and scores is not None
    limit = b.index(0 if most is None else most.pointer.load()).min(over.kept)
    near = b.const(0, F32) if overlap is None else overlap.pointer.load()
    table = (boxes.pointer + batch * (over.boxes * 4)).fixed()
    rows = (em.outs[0].pointer + tile * (over.kept * 3)).fixed()
    _fill(heap, size, (scores.pointer + tile * over.boxes).fixed(), over.boxes,
          None if least is None else least.pointer.load())  # fmt: skip
    heap.build(size.load())
    kept.store(b.index(0))
    with b.repeat() as leave_if:
        left, count = size.load(), kept.load()
        leave_if((left < 1) | (count >= limit))
        place = heap.take(left)
        size.store(left - 1)
        box = _box(b, (table + place * 4).fixed(), bool(em.site.attr("center_point_box")))
        with b.when(_overlaps(b, box, sides, count, near) ^ True):
            for side, value in zip(sides, box, strict=True):
                (side + count).store(value)
            row = rows + count * 3
            for k, index in enumerate((batch, tile % over.classes, place)):
                (row + k).store(b.index(index))
            kept.store(count + 1)
    (em.scratch.cast(I64) + tile).store(kept.load())


def _fill(heap: _Heap, size: Ptr, scores: Ptr, count: int, least: Val | None) -> None:
    """Collect the keys of the scores above `least`, in no order."""
    b = heap.b
    if least is None:
        with b.loop(0, count) as i:
            heap.put(i, heap.key((scores + i).load(), i))
        size.store(b.index(count))
        return
    each_held(
        b, count, size, lambda i, lanes, mask: (scores + i).load(lanes, mask) > least,
        lambda n, i: heap.put(n, heap.key((scores + i).load(), i)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Heap:
    """A binary heap of u64 keys with the least at the top. A key is the score's bits, mapped so
    that higher scores have lower keys, above the box's index.

    Equal scores are ordered by index; NaN comes last.
    """

    b: Builder
    keys: Ptr

    def key(self, score: Val, place: Val) -> Val:
        bits = (score + 0.0).bitcast(Ty("i32"))  # zeros are equal
        falling = bits ^ ((bits >> 31 ^ -1) & 0x7FFFFFFF)
        falling = score.is_nan().select(-1, falling)
        return falling.to("u32").to("u64") << 32 | place.to("u64")

    def put(self, at: Val | int, key: Val) -> None:
        (self.keys + at).store(key)

    def build(self, count: Val) -> None:
        half = count // 2
        with self.b.loop(0, half) as i:
            top = half - 1 - i
            self.sink(top, (self.keys + top).load(), count)

    def take(self, count: Val) -> Val:
        """Take out the least of `count` keys; the index of its box."""
        best, last = self.keys.load(), (self.keys + (count - 1)).load()
        self.sink(self.b.index(0), last, count - 1)
        return (best & 0xFFFFFFFF).to("i64")

    def sink(self, start: Val, key: Val, count: Val) -> None:
        """Put a key at `start`, or further down, such that all keys below it are greater. The heap
        has `count` keys."""
        below = _zeros(start + 1) - _zeros(count)  # levels
        with self.b.loop(0, below, carry=[start]) as loop:
            here = loop.vars[0]
            left = (here * 2 + 1).min(count - 1)
            right = (left + 1).min(count - 1)
            low, high = (self.keys + left).load(), (self.keys + right).load()
            turn = high < low
            child, there = turn.select(high, low), turn.select(right, left)
            down = (child < key) & (here * 2 + 1 < count)
            self.put(here, down.select(child, key))
            loop.next([down.select(there, here)])
        self.put(loop.out[0], key)


def _zeros(x: Val) -> Val:
    """The number of leading zero bits."""
    return x.b.intrinsic("llvm.ctlz.i64", x.ty, text=f"i64 {x.ref}, i1 false", params="i64, i1")


def _box(b: Builder, at: Ptr, centred: bool) -> list[Val]:
    """(low, low, high, high, area) of a box; the order of the axes does not matter."""
    first, second = [(at + k).load() for k in (0, 1)], [(at + k).load() for k in (2, 3)]
    if centred:
        halves = [size * 0.5 for size in second]
        pairs = list(zip(first, halves, strict=True))
        first, second = [c - h for c, h in pairs], [c + h for c, h in pairs]
    low = [p.min(q) for p, q in zip(first, second, strict=True)]
    high = [p.max(q) for p, q in zip(first, second, strict=True)]
    return [*low, *high, (high[0] - low[0]) * (high[1] - low[1])]


def _overlaps(b: Builder, box: Sequence[Val], sides: Sequence[Ptr], count: Val, near: Val) -> Val:
    """Whether a box overlaps one of the first `count` kept boxes by more than `near` allows."""
    lanes = b.target.lanes
    one = [v.splat(lanes) for v in box]
    none = b.zero(Ty("i1", lanes))
    with b.loop(0, count, lanes, carry=[none]) as loop:
        j = loop.index
        other = [(side + j).load(lanes) for side in sides]
        ends = [(one[k].max(other[k]), one[k + 2].min(other[k + 2])) for k in (0, 1)]
        height, width = ((high - low).max(0.0) for low, high in ends)
        common = height * width
        union = one[4] + other[4] - common
        hit = (common / union > near) & (common > 0.0) & (union > 0.0)
        if lanes > 1:
            hit = hit & b.first_lanes(count - j, lanes)
        loop.next([loop.vars[0] | hit])
    return loop.out[0].any()


def _join(em: Emit, tiles: int, room: int) -> None:
    """Copy the rows of all classes one after the other, and store their count."""
    b, rows, counts = em.b, em.outs[0].pointer, em.scratch.cast(I64)
    with b.loop(0, tiles, carry=[b.index(0)]) as loop:
        total, count = loop.vars[0], (counts + loop.index).load()
        come, go = rows + loop.index * (room * 3), rows + total * 3
        with b.loop(0, count * 3) as word:
            (go + word).store((come + word).load())
        loop.next([total + count])
    em.outs[1].pointer.store(loop.out[0])
