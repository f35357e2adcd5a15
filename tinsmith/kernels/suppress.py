"""Non-maximum suppression: boxes are kept in order of scores, but for those that overlap a kept box
too much. A heap gives the best score; a box is compared with a vector of kept boxes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I64, U64, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.move.strided import emit_fill
from tinsmith.kernels.selected import LOOK, each_held
from tinsmith.records import dataclass
from tinsmith.sizes import Number, largest, smallest, typical

TAKE = 60e-9  # seconds to take the best score from the heap; estimated
DTYPES = ("float32", "float32", "int64", "float32", "float32")


@kernel("NonMaxSuppression", Tier.VECTOR, dtypes="float32", checks=True)
def suppress(site: Site) -> Choice:
    """Non-maximum suppression by class: boxes by falling score, against vectors of kept boxes."""
    for value, name in zip(site.inputs, DTYPES, strict=False):
        if value is not None and value.dtype.name != name:
            raise Skip(f"{value.name} is {value.dtype.name}")
    batch, classes, boxes = _counts(site)
    room = site.out.dims[0] // (batch * classes)
    of = _Classes(batch, classes, boxes, room, site.target.lanes)

    def emit(em: Emit) -> None:
        b = em.b
        scores, most, overlap, least = (*em.ins[1:], None, None, None)[:4]
        assert scores is not None
        bar = None if least is None else least.pointer.load()
        task = _Task(
            most=b.index(0 if most is None else most.pointer.load()).min(room),
            near=b.const(0, F32) if overlap is None else overlap.pointer.load(),
            holds=None if bar is None else lambda score: score > bar,
            centred=bool(site.attr("center_point_box")),
        )
        with b.loop(em.begin, em.end) as tile:
            _one_class(em, of, task, tile)

    return _choice(site, of, emit, lambda em: _list(em, of), of.workspace)


@kernel("BestBoxes", Tier.VECTOR, dtypes="float32", checks=True)
def best_boxes(site: Site) -> Choice:
    """Non-maximum suppression by classes, then the best boxes of all classes, as rows.

    A row is [label, score, box], or box and score are in an output each; the last output has the
    number of rows.
    """
    batch, classes, boxes = _counts(site)
    taken, most = site.attr("candidates"), site.attr("most")
    limit = boxes if taken is None else smallest(boxes, taken)
    of = _Classes(batch, classes, boxes, smallest(limit, site.out.dims[1]), site.target.lanes)

    def emit(em: Emit) -> None:
        task = _Task(
            most=em.b.index(of.kept), near=em.b.const(site.attr("overlap"), F32),
            holds=lambda score: score.eq(score), taken=None if taken is None else limit,
            grown=bool(site.attr("regions")),
        )  # fmt: skip
        with em.b.loop(em.begin, em.end) as tile:
            _one_class(em, of, task, tile)

    def join(em: Emit) -> None:
        _merge(em, of, most)

    return _choice(site, of, emit, join, largest(of.workspace, 8 * classes * of.kept))


def _counts(site: Site) -> tuple[int, int, int]:
    """(elements of the batch, classes, boxes). Raises Skip where the boxes do not fit the scores,
    for an epilogue, or if the model declares how many rows the result has."""
    batch, classes, boxes = site.input(1).dims
    if site.input(0).dims != (batch, boxes, 4):
        raise Skip(f"boxes are {site.input(0).type}, scores {site.input(1).type}")
    site.need_no_epilogue("rows of boxes have no epilogue")
    if site.outputs[-1].dims:
        raise Skip(f"the model says how many rows there are ({site.out.type}): none are counted")
    return batch, classes, boxes


@dataclass(frozen=True)
class _Classes:
    """The sizes of a non-maximum suppression: of the batch, the classes and the boxes; the most
    boxes that are kept of a class, and the lanes of a vector."""

    batch: int
    classes: int
    boxes: int
    kept: int
    lanes: int

    @property
    def tiles(self) -> int:
        return self.batch * self.classes

    @property
    def padded(self) -> int:
        """`kept`, rounded up to whole vectors."""
        return -(-self.kept // self.lanes) * self.lanes

    @property
    def workspace(self) -> int:
        """Bytes of workspace: the number of scores, a heap of these, and the kept boxes."""
        return 8 + 8 * self.boxes + 4 * 5 * self.padded

    def keys(self, em: Emit, tile: Val) -> tuple[Ptr, Ptr]:
        """Pointers into scratch for class number `tile` over all elements of the batch: to the
        number of boxes that are kept, and to their keys (`_Heap`)."""
        counts = em.scratch.cast(I64)
        return counts + tile, ((counts + self.tiles).cast(U64) + tile * self.kept).fixed()


@dataclass(frozen=True)
class _Task:
    """Which boxes to keep of a class.

    most     how many at most
    near     the largest overlap, intersection over union, with a kept box that a box may have
    holds    a test of scores: only boxes that pass it are candidates (None: all are)
    taken    only so many candidates, those of the best scores, are looked at (None: all)
    centred  boxes are given by their centres and sizes, not by two corners
    grown    the sides of boxes are longer by 1 than the distance of their corners
    """

    most: Val
    near: Val
    holds: Callable[[Val], Val] | None
    taken: Number | None = None
    centred: bool = False
    grown: bool = False


def _choice(
    site: Site, of: _Classes, emit: Callable[[Emit], None], join: Callable[[Emit], None],
    workspace: int,
) -> Choice:  # fmt: skip
    reads = tuple(None if v is None else PLAIN for v in site.inputs)
    cost = 1e-6 + typical(of.tiles) * (typical(of.boxes) * LOOK + typical(of.kept) * TAKE)
    return Choice(
        cost, reads, (PLAIN,) * len(site.outputs), (Phase(of.tiles, emit), Phase(1, join)),
        workspace=workspace, scratch=8 * of.tiles * (1 + of.kept), detail=f"room {of.kept}",
    )  # fmt: skip


def _one_class(em: Emit, of: _Classes, task: _Task, tile: Val) -> None:
    """Emit the suppression in class number `tile` over all elements of the batch. It writes the
    number of kept boxes, and their keys, the best first, to scratch (`_Classes.keys`)."""
    b, (boxes, scores) = em.b, (em.input(0).pointer, em.input(1).pointer)
    size, (kept, keys) = em.workspace.cast(I64), of.keys(em, tile)
    heap = _Heap(b, (size + 1).cast(U64))
    sides = [((size + 1 + of.boxes).cast(F32) + k * of.padded).fixed() for k in range(5)]
    table = (boxes + tile // of.classes * (of.boxes * 4)).fixed()
    _fill(heap, size, (scores + tile * of.boxes).fixed(), of.boxes, task.holds)
    heap.build(size.load())
    least = 0 if task.taken is None else b.index(0).max(size.load() - task.taken)
    kept.store(b.index(0))
    with b.repeat() as leave_if:
        left, count = size.load(), kept.load()
        leave_if((left <= least) | (count >= task.most))
        key = heap.take(left)
        size.store(left - 1)
        box = _box((table + place_of(key) * 4).fixed(), task)
        with b.when(_overlaps(b, box, sides, count, task.near) ^ True):
            for side, value in zip(sides, box, strict=True):
                (side + count).store(value)
            (keys + count).store(key)
            kept.store(count + 1)


def _fill(
    heap: _Heap, size: Ptr, scores: Ptr, count: int, holds: Callable[[Val], Val] | None
) -> None:
    """Emit code that writes the keys of the scores for which `holds` is true (None: of all) into
    the heap's memory, not yet ordered, and their number to `size`."""
    b = heap.b
    if holds is None:
        with b.loop(0, count) as i:
            heap.put(i, heap.key((scores + i).load(), i))
        size.store(b.index(count))
        return
    each_held(
        b, count, size, lambda i, lanes, mask: holds((scores + i).load(lanes, mask)),
        lambda n, i: heap.put(n, heap.key((scores + i).load(), i)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Heap:
    """A binary heap of u64 keys with the least at the top. A key is the score's bits, mapped so
    that higher scores have lower keys, above 32 bits of the box's index. The methods emit code;
    `count` is how many keys the heap has before a call.

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
        """Take out the least of `count` keys, and return it."""
        best, last = self.keys.load(), (self.keys + (count - 1)).load()
        self.sink(self.b.index(0), last, count - 1)
        return best

    def sink(self, start: Val, key: Val, count: Val) -> None:
        """Put a key in place of the one at `start` of `count` keys, and move it down until all keys
        below it are greater."""
        below = (start + 1).unary("ctlz") - count.unary("ctlz")  # levels
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


def place_of(key: Val) -> Val:
    """The index of the box that a key belongs to."""
    return (key & 0xFFFFFFFF).to("i64")


def _box(at: Ptr, task: _Task) -> list[Val]:
    """Load the box at `at`: the two least coordinates on both axes, the two greatest, and the area.
    The order of the axes does not matter."""
    first, second = [(at + k).load() for k in (0, 1)], [(at + k).load() for k in (2, 3)]
    if task.centred:
        halves = [size * 0.5 for size in second]
        pairs = list(zip(first, halves, strict=True))
        first, second = [c - h for c, h in pairs], [c + h for c, h in pairs]
    low = [p.min(q) for p, q in zip(first, second, strict=True)]
    high = [p.max(q) for p, q in zip(first, second, strict=True)]
    if task.grown:
        high = [v + 1.0 for v in high]
    return [*low, *high, (high[0] - low[0]) * (high[1] - low[1])]


def _overlaps(b: Builder, box: Sequence[Val], sides: Sequence[Ptr], count: Val, near: Val) -> Val:
    """Whether a box overlaps one of the first `count` kept boxes by more than `near` (intersection
    over union). `sides` are arrays over the kept boxes, one of each number that `_box` gives."""
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


def _list(em: Emit, of: _Classes) -> None:
    """Emit the second phase of `suppress`: it writes (element of the batch, class, box) of all kept
    boxes, class by class, to output 0, and their number to output 1."""
    b, rows = em.b, em.outs[0].pointer
    with b.loop(0, of.tiles, carry=[b.index(0)]) as loop:
        tile, total = loop.index, loop.vars[0]
        count, keys = of.keys(em, tile)
        held = count.load()
        with b.loop(0, held) as k:
            place, row = place_of((keys + k).load()), rows + (total + k) * 3
            for column, index in enumerate((tile // of.classes, tile % of.classes, place)):
                (row + column).store(b.index(index))
        loop.next([total + held])
    em.outs[1].pointer.store(loop.out[0])


def _merge(em: Emit, of: _Classes, most: int | None) -> None:
    """Emit the second phase of `best_boxes`: for each element of the batch it writes rows of the
    best boxes of all classes, best first, at most `most` (None: all), and rows of 0 behind, so that
    all have as many rows as the longest; and that number to the last output."""
    b = em.b

    def held(n: Val) -> Val:
        """How many rows element n of the batch gets: the boxes that its classes keep together, at
        most `most`."""
        with b.loop(0, of.classes, carry=[b.index(0)]) as loop:
            loop.next([loop.vars[0] + of.keys(em, n * of.classes + loop.index)[0].load()])
        return loop.out[0] if most is None else loop.out[0].min(most)

    with b.loop(0, of.batch, carry=[b.index(0)]) as loop:
        loop.next([loop.vars[0].max(held(loop.index))])
    longest = loop.out[0]
    em.outs[-1].pointer.store(longest)
    with b.loop(0, of.batch) as n:
        heap, total = _Heap(b, em.workspace.cast(U64)), _gather(em, of, n)
        count = held(n)
        with b.loop(0, count) as k:
            place = place_of(heap.take(total - k))
            parts = _row(em, of, n, place // of.kept, place % of.kept)
            for out, values in zip(em.outs, parts, strict=False):
                for column, value in enumerate(values):
                    (out.pointer + (n * longest + k) * len(values) + column).store(value)
        for out, width in zip(em.outs, map(len, parts), strict=False):
            to = out.pointer + n * longest * width
            emit_fill(b, b.const(0, F32), to, count * width, longest * width, 1)


def _gather(em: Emit, of: _Classes, n: Val) -> Val:
    """Emit code that builds a heap in the workspace of all boxes that the classes of element n of
    the batch keep. Return their number. In its keys, class * of.kept + the box's rank in its class
    takes the place of the box's index."""
    b, heap = em.b, _Heap(em.b, em.workspace.cast(U64))
    with b.loop(0, of.classes, carry=[b.index(0)]) as loop:
        c, total = loop.index, loop.vars[0]
        count, keys = of.keys(em, n * of.classes + c)
        held = count.load()
        with b.loop(0, held) as k:
            score = (keys + k).load() >> 32 << 32
            heap.put(total + k, score | (c * of.kept + k).to("u64"))
        loop.next([total + held])
    heap.build(loop.out[0])
    return loop.out[0]


def _row(em: Emit, of: _Classes, n: Val, c: Val, rank: Val) -> list[list[Val]]:
    """The row for each output of rows, for the kept box number `rank` of class c of element n of
    the batch. With one such output: [[label, score, *box]], where the label is from an input, or c
    + 1; with two: [box, [score]]."""
    boxes, scores, labels = (*em.ins, None)[:3]
    assert boxes is not None and scores is not None
    tile = n * of.classes + c
    at = n * of.boxes + (place := place_of((of.keys(em, tile)[1] + rank).load()))
    score = (scores.pointer + tile * of.boxes + place).load()
    box = [(boxes.pointer + at * 4 + k).load() for k in range(4)]
    if len(em.outs) > 2:
        return [box, [score]]
    label = (c + 1).to("f32") if labels is None else (labels.pointer + at).load()
    return [[label, score, *box]]
