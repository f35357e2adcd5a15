"""Pooling over regions: the elements under each cell, and their weights, once for all channels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import ceil, floor
from tinsmith.codegen.types import F32, I64
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, View, kernel
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.fold import larger
from tinsmith.records import dataclass

TOGETHER = 8  # channel blocks that one pass over the elements of a cell sums; estimated
FAR = 1e9  # the most samples outside of an image that are counted: so many fit an integer


@kernel("RoiAlign", Tier.VECTOR, dtypes="float32")
def roi_align(site: Site) -> Choice:
    """Pooling over regions, one at a time; places and weights are found once for all channels.

    Takes any mode. Raises Skip unless `rois` are [regions, 4] of x's type and `batch_indices` int32
    or int64 [regions], and for an epilogue. Runs raise DataError for what `fault` tells."""
    x, rois, pictures = (site.input(i) for i in range(3))
    if rois.dtype != x.dtype or pictures.dtype.name not in ("int32", "int64"):
        raise Skip(f"rois are {rois.type}, batch_indices {pictures.type}")
    if rois.dims != (rois.dims[0], 4) or pictures.dims != rois.dims[:1]:
        raise Skip(f"rois are {rois.type}, batch_indices {pictures.type}")
    site.need_no_epilogue("it has no epilogue")
    cells = site.out.dims[2:]
    rooms = [_Room(n, size, site.attr("sampling_ratio"))
             for n, size in zip(cells, x.dims[2:], strict=True)]  # fmt: skip
    layout = Layout(block_of(site.target))

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as region:
            _region(em, rooms, region)

    taps = max(site.attr("sampling_ratio"), 2) * 2
    blocks = -(-x.dims[1] // layout.block)
    values = rois.dims[0] * blocks * layout.block * prod(cells)
    cost = 1e-6 + site.target.time(2 * taps**2 * values, site.out.type.nbytes, 0.25)
    return Choice(
        cost, (layout, PLAIN, PLAIN), (layout,), (Phase(rois.dims[0], emit),),
        workspace=sum(room.nbytes for room in rooms), scratch=64,
        fault=f"a region is not finite, or its batch index is not in [-{x.dims[0]}, {x.dims[0]})",
    )  # fmt: skip


@dataclass(frozen=True)
class _Room:
    """The workspace for the tables (`_Axis`) of one axis, on which a region has `cells` cells, the
    image `size` elements, and a cell `ratio` samples (0: as many as it has elements).

    Samples ascend along the axis, so the elements that they read come in order, each as one entry.
    Two entries with the place -1, which no element has, lie before those of each cell.
    """

    cells: int
    size: int
    ratio: int

    @property
    def words(self) -> int:
        return self.cells * (2 + max(2 * self.ratio, self.size + 2))

    @property
    def nbytes(self) -> int:
        return 16 * self.cells + 16 * self.words

    def at(self, memory: Ptr) -> _Axis:
        spans = memory.cast(I64)
        places = (spans + 2 * self.cells).fixed()
        low = (places + self.words).cast(F32)
        return _Axis(self, spans, places, low, (low + self.words).fixed())


@dataclass(frozen=True)
class _Axis:
    """Tables of one axis in the workspace, and code that fills them. An entry is an input element
    that samples of a cell read: its place on the axis (`places`), and the least and the greatest
    weight that a sample gives it (`low`, `high`), or, for the mean, the sum of weights (`low`).
    `spans` has the range of entries of each cell."""

    room: _Room
    spans: Ptr
    places: Ptr
    low: Ptr
    high: Ptr

    def span(self, cell: Val) -> tuple[Val, Val]:
        return (self.spans + cell * 2).load(), (self.spans + cell * 2 + 1).load()

    def fill(self, cell: Callable[[Val, Val], Val]) -> None:
        """Emit code that writes the tables cell by cell. `cell(number, used)` emits the entries of
        one cell, from index `used` + 2 on (before them come the two of `_Room`), and returns the
        index after the last."""
        b = self.spans.b
        with b.loop(0, self.room.cells, carry=[b.index(0)]) as loop:
            used = loop.vars[0]
            (self.places + used).store(b.index(-1))
            (self.places + used + 1).store(b.index(-1))
            end = cell(loop.index, used)
            (self.spans + loop.index * 2).store(used + 2)
            (self.spans + loop.index * 2 + 1).store(end)
            loop.next([end])

    def add(self, count: Val, place: Val, weight: Val, mean: bool) -> Val:
        """Add a sample's weight for the element at `place`: to one of the last two of `count`
        entries, if that has this place, else as a new entry. Returns the new count."""
        last, former = ((self.places + count + k).load() for k in (-1, -2))
        at = former.eq(place).select(count - 2, count)
        at = last.eq(place).select(count - 1, at)
        new = at.eq(count)
        (self.places + at).store(place)
        low, high = (self.low + at).load(), (self.high + at).load()
        if mean:
            (self.low + at).store(new.select(weight, low + weight))
        else:
            (self.low + at).store(new.select(weight, weight.min(low)))
            (self.high + at).store(new.select(weight, weight.max(high)))
        return new.select(count + 1, count)

    def add_sample(self, count: Val, at: Val, weight: Val, mean: bool) -> Val:
        """Add a sample of this `weight` at the coordinate `at`, moved to the edge if it is outside:
        its shares of the two elements between which it lies. Returns the new count of entries."""
        at = at.max(0.0).min(at.b.index(self.room.size - 1).to("f32"))
        low = floor(at)
        part, place = at - low, low.to("i64")
        now = self.add(count, place, weight * (1.0 - part), mean)
        return self.add(now, (place + 1).min(self.room.size - 1), weight * part, mean)


def _region(em: Emit, rooms: list[_Room], region: Val) -> None:
    """Emit the pooling of one region: first the tables of both axes, then each cell for all
    channels."""
    b, site = em.b, em.site
    x, rois, pictures = map(em.input, range(3))
    mean = site.attr("mode") == "avg"
    shifted = site.attr("coordinate_transformation_mode") == "half_pixel"
    corner = rois.pointer + region * 4
    box = [(corner + k).load() * site.attr("spatial_scale") for k in range(4)]
    if shifted:
        box = [place - 0.5 for place in box]
    memory, axes, counts = em.workspace, [], []
    for a, room in enumerate(rooms):
        axis, start, end = room.at(memory), box[1 - a], box[3 - a]
        size, extent = b.index(room.size).to("f32"), end - start
        em.fault((extent - extent).is_nan())
        extent = extent if shifted else extent.max(1.0)
        place = _place_cut_samples if site.attr("cut") else _place_samples
        counts.append(place(axis, start, extent / float(room.cells), size, mean))
        axes.append(axis)
        memory = memory + room.nbytes
    many = [c.max(1).to("f32") for c in counts]
    share = b.const(1.0, F32) if site.attr("cut") else 1.0 / (many[0] * many[1])
    picture = em.place(pictures.pointer + region, site.input(0).dims[0])
    source = View(x.at(picture).fixed(), x.spec)
    blocks = -(-site.input(0).dims[1] // x.spec.layout.block)
    with b.loop(0, rooms[0].cells) as i, b.loop(0, rooms[1].cells) as j:
        spans = axes[0].span(i), axes[1].span(j)

        def some(first: Val | int, count: int) -> None:
            sums = _cell(b, source, first, count, axes, spans, mean)
            for k, total in enumerate(sums):
                lanes = total.ty.lanes
                if mean:
                    total = total * share.splat(lanes)
                else:
                    nothing = (counts[0] < 1) | (counts[1] < 1)
                    total = nothing.select(b.zero(total.ty), total)
                em.finish(total, (region, first + k, i, j))

        whole = blocks // TOGETHER
        if whole:
            with b.loop(0, whole) as group:
                some(group * TOGETHER, TOGETHER)
        if blocks % TOGETHER:
            some(whole * TOGETHER, blocks % TOGETHER)


def _place_samples(axis: _Axis, start: Val, cell: Val, size: Val, mean: bool) -> Val:
    """Emit code that writes the tables of `axis`: which elements of an image of `size` each cell of
    the region that begins at `start` samples, and their weights. `cell`: the extent of a cell.
    Returns the number of samples of a cell."""
    b, ratio = start.b, axis.room.ratio
    count = b.index(ratio) if ratio > 0 else ceil(cell).to("i64").max(0)
    many = count.max(1).to("f32")

    def fill(number: Val, used: Val) -> Val:
        base = start + number.to("f32") * cell
        first, last = b.index(0), count
        if ratio <= 0:  # of a large region most samples may be outside the image
            step = cell / many
            before = ((-1.0 - base) / step).max(0.0).min(FAR).to("i64")
            after = ((size - base) / step).max(0.0).min(FAR).to("i64")
            first, last = (before - 2).min(count - 1).max(0), (after + 3).min(count)
        with b.loop(first, last, carry=[used + 2]) as samples:
            at = base + (samples.index.to("f32") + 0.5) * cell / many
            inside = (at >= -1.0) & (at <= size)
            samples.next([axis.add_sample(samples.vars[0], at, inside.to("f32"), mean)])
        return samples.out[0]

    axis.fill(fill)
    return count


def _place_cut_samples(axis: _Axis, start: Val, cell: Val, size: Val, mean: bool) -> Val:
    """`_place_samples` for cells that are clipped to the image first (`mean` is True): each has its
    own number of samples, and weights divided by it. Returns 1: the caller need not divide."""
    b, ratio = start.b, axis.room.ratio

    def fill(number: Val, used: Val) -> Val:
        ends = [start + (number + k).to("f32") * cell for k in (0, 1)]
        low, high = (e.max(0.0).min(size) for e in ends)
        count = b.index(ratio) if ratio > 0 else ceil(high - low).to("i64")
        count = (high > low).select(count, b.index(0))
        many = count.max(1).to("f32")
        with b.loop(b.index(0), count, carry=[used + 2]) as samples:
            at = low + (samples.index.to("f32") + 0.5) * cell / many
            samples.next([axis.add_sample(samples.vars[0], at, 1.0 / many, mean)])
        return samples.out[0]

    axis.fill(fill)
    return b.index(1)


Span = tuple[Val, Val]


def _cell(
    b: Builder, source: View, first: Val | int, count: int, axes: list[_Axis],
    spans: tuple[Span, Span], mean: bool,
) -> list[Val]:  # fmt: skip
    """Emit the weighted sums (with `mean`) or maxima of one cell: a vector for each of `count`
    channel blocks of the image `source`, from number `first` on. `spans` are the cell's entries in
    the tables of both `axes`."""
    lanes, steps = source.spec.layout.block, source.spec.strides
    start = b.splat(0.0 if mean else float("-inf"), F32, lanes)
    rows, columns = axes
    with b.loop(*spans[0], carry=[start] * count) as down:
        row = down.index
        line = (source.at(0, first) + (rows.places + row).load() * steps[2]).fixed()
        across = [(rows.low + row).load()] if mean else _ends(rows, row)
        with b.loop(*spans[1], carry=down.vars) as along:
            column = along.index
            here = (line + (columns.places + column).load() * steps[3]).fixed()
            own = [(columns.low + column).load()] if mean else _ends(columns, column)
            weights = [(p * q).splat(lanes) for p, q in zip(across, own, strict=True)]
            new = []
            for k, total in enumerate(along.vars):
                value = (here + k * steps[1]).load(lanes)
                if mean:
                    new.append(value.fma(weights[0], total))
                else:
                    new.append(larger(total, larger(value * weights[0], value * weights[1])))
            along.next(new)
        down.next(along.out)
    return down.out


def _ends(axis: _Axis, at: Val) -> list[Val]:
    return [(axis.low + at).load(), (axis.high + at).load()]
