"""Pooling on channel-blocked data: maximum and average over windows.

Taps in the padding are left out: code computes which kernel rows lie inside the image, and columns
of the output are cut into runs whose windows keep the same taps, each with code of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    Choice,
    Emit,
    Site,
    Skip,
    Tier,
    elem,
    kernel,
    one_phase,
    packed_table,
)
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.walk import Position, run
from tinsmith.kernels.window.fold import (
    MAXIMUM,
    SUM,
    Carried,
    Fold,
    Part,
    fold_range,
    whole_maximum,
)
from tinsmith.kernels.window.geometry import Geometry, Triple, image_of, pool_geometry, triple
from tinsmith.kernels.window.tiles import Sink, bands, cut, digits, walk
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, largest, smallest, typical

PARALLEL_VALUES = 1 << 17  # input values times taps that one thread does alone (estimated)
WIDEST = 9  # taps of a kernel row, and rows, that are unrolled (estimated)

Range = tuple[Val | int, Val | int]
"""Indices [low, high)."""


@kernel("MaxPool", Tier.SHAPED, dtypes="float32 int8 uint8")
def pool_max(site: Site) -> Choice:
    """Maximum over windows, on channel-blocked data."""
    if site.attr("with_indices"):
        raise Skip("the places of the maxima are wanted too")
    geo, _ = pool_geometry(site)
    kind = elem(site.input(0))
    return _pool(site, geo, MAXIMUM if kind.is_float else whole_maximum(kind), None)


@kernel("AveragePool", Tier.SHAPED, dtypes="float32")
def pool_average(site: Site) -> Choice:
    """Average over windows, on channel-blocked data; padding counts if `count_include_pad`."""
    geo, _ = pool_geometry(site)
    if not geo.is_free:
        return _pool(site, geo, SUM, shares_of(site))
    return _pool(site, geo, SUM, None, _counted(site))


def shares_of(site: Site) -> tuple[np.ndarray, ...]:
    """The factors of an average of constant sizes: three tables, with a number for each output
    index along depth, height and width. An output is its sum times its three numbers."""
    geo, _ = pool_geometry(site)
    found = []
    for axis, within in enumerate(_counted(site)):
        taps = [geo.taps_inside(axis, o, *within) for o in range(geo.out[axis])]
        counts = np.array([last - first for first, last in taps])
        found.append((1 / np.maximum(counts, 1)).astype(np.float32))
    return tuple(found)


def _counted(site: Site) -> Counted:
    """What counts in an average: the input, and the padding if `count_include_pad`; not what lies
    behind that, where the output's size is rounded up."""
    geo, win = pool_geometry(site)
    if not site.attr("count_include_pad"):
        return tuple([(0, n) for n in geo.size])
    ends = triple(win.end, 0)
    return tuple([(-p, n + e) for p, n, e in zip(geo.begin, geo.size, ends, strict=True)])


MOST_RUNS = 300
"""The most runs of columns that get code of their own. No real model has windows that need more."""
Counted = tuple[tuple[int, int], ...]
"""For each axis the range of input indices whose taps count in an average; may include padding."""


def _pool(
    site: Site, geo: Geometry, fold: Fold, shares: tuple[np.ndarray, ...] | None,
    counted: Counted = (),
) -> Choice:  # fmt: skip
    """The `Choice` of a pooling. An average multiplies each sum by a factor. With constant sizes it
    comes from the tables `shares` (of `shares_of`), with free sizes from the number of taps in the
    ranges `counted`. A maximum has neither. Raises Skip for more than MOST_RUNS runs."""
    width = block_of(site.target)
    blocks = -(-geo.channels // width)
    work = typical(geo.points) * blocks * width * geo.taps
    runs = 1 if geo.is_free else len(_runs(geo, shares))
    if runs > MOST_RUNS:
        raise Skip(f"{runs} runs of columns, each with code of its own")
    several = work > PARALLEL_VALUES
    count = bands(geo.batch * blocks, geo.out[1], site.threads) if several else 1
    read = 4.0 * geo.channels * typical(prod(geo.size))
    flops = work * fold.flops
    near = several and typical(geo.batch) == 1 and by_positions(
        site, site.input(0), read, flops, (geo.out[1], blocks * count), planes=2 * blocks
    )  # fmt: skip
    packed = []
    if shares is not None:
        packed.append(packed_table("shares", np.concatenate([shares[0], shares[1]])))
    layout = Layout(width)
    return Choice(
        cost=site.target.time(flops, geo.traffic()),
        reads=site.reads([layout], layout),
        writes=(layout,),
        phases=one_phase(
            geo.batch * blocks * count,
            lambda em: emit_pool(em, geo, fold, shares, counted, blocks, count),
            sweep=count if near else 0,
        ),
        by_channels=typical(geo.batch) == 1 and not near,
        packed=tuple(packed),
        detail="" if geo.is_free else f"{runs} runs of columns",
    )


@dataclass(frozen=True)
class Run:
    """`count` neighbouring columns of the output, from `start` on, whose windows have the same taps
    [low, high) of a kernel row in the image. `share`: the width's factor of an average, or 1."""

    start: int
    count: int
    low: int
    high: int
    share: float


def _runs(geo: Geometry, shares: tuple[np.ndarray, ...] | None) -> list[Run]:
    """All columns of the output as runs. `shares`: the tables of an average, or None. With free
    sizes: one run, of the columns whose windows lie inside the input."""
    if geo.is_free:
        first, behind = inner_columns(geo)
        return [Run(first, behind - first, 0, geo.kernel[2], 1 / geo.kernel[2])]

    def kept(o: int) -> tuple[int, int, float]:
        return (*geo.taps_inside(2, o), 1.0 if shares is None else float(shares[2][o]))

    together = ((what, list(columns)) for what, columns in groupby(range(geo.out[2]), kept))
    return [Run(columns[0], len(columns), *what) for what, columns in together]


def inner_columns(geo: Geometry) -> tuple[Number, Number]:
    """The columns [first, behind) of the output whose windows lie inside the input."""
    size, begin, stride = geo.size[2], geo.begin[2], geo.stride[2]
    first = smallest(-(-begin // stride), geo.out[2])
    behind = smallest(largest(first, (size + begin - geo.span(2)) // stride + 1), geo.out[2])
    return first, behind


def clipped(b: Builder, geo: Geometry, axis: int, o: Val | int) -> Range:
    """The taps [low, high) of output `o` that lie inside the input, along one axis; none if low >=
    high. Bounds are ints if they are known, else emitted code."""
    if isinstance(o, int):
        if not isinstance(geo.size[axis], Size):
            return geo.taps_inside(axis, o)
        o = b.index(o)
    size, begin, gap = geo.size[axis], geo.begin[axis], geo.dilation[axis]
    low: Val | int = 0
    high: Val | int = geo.kernel[axis]
    if begin:
        low = (b.maximum(b.const(begin, o.ty) - o * geo.stride[axis], 0) + (gap - 1)) // gap
    if geo.after[axis]:
        left = b.maximum(b.const(size + begin, o.ty) - o * geo.stride[axis], 0)
        high = b.minimum(high, (left + (gap - 1)) // gap)
    return low, high


def emit_pool(
    em: Emit, geo: Geometry, fold: Fold, shares: tuple[np.ndarray, ...] | None, counted: Counted,
    blocks: int, count: int,
) -> None:  # fmt: skip
    """Emit a pooling by `fold`. An average multiplies sums by factors: from the tables `shares`,
    or, if that is None, 1 / the number of taps in the ranges `counted`; a maximum has neither.

    Its tiles are (batch, one of `count` bands of rows, one of `blocks` channel blocks), the block
    innermost. They are taken from last to first, as the input that was written last is still in the
    cache.
    """
    b, image = em.b, image_of(em.input(0), geo)
    step, stride = image.step, image.stride
    runs = _runs(geo, shares)
    with b.loop(em.begin, em.end) as i:
        t = em.begin + em.end - 1 - i
        block, band, n = digits(t, blocks, count)
        x = image.corner(n, block)
        sink = Sink(em, geo).at(n, block)

        def row(d: Val | int, r: Val | int) -> None:
            line = (x + d * stride[0] + r * stride[1]).fixed()
            ranges = clipped(b, geo, 0, d), clipped(b, geo, 1, r)
            share = None
            if shares is not None:
                share = (em.packed[0] + d).load() * (em.packed[0] + geo.out[0] + r).load()
            place = sink.at(0, 0, d, r)
            lines = _lines(b, geo, fold, step, ranges)
            if geo.is_free:
                _edges(geo, fold, line, step, (d, r), place, counted)
                if counted:
                    share = _shares_here(b, geo, (d, r), counted)
            for run in runs:
                factor = None if share is None else share * run.share

                def tile(
                    c: Val | int, wide: int, run: Run = run, factor: Val | None = factor
                ) -> None:
                    corner = (line + (c * stride[2] + run.low * geo.dilation[2] * step[2])).fixed()
                    these = Neighbours(geo, fold, step, corner, run, wide, sink.width)
                    if lines and 0 < run.high - run.low <= WIDEST:
                        done = _unrolled(these, lines)
                    else:
                        done = _window(b, these, ranges)
                    for j, value in enumerate(done):
                        if factor is not None:
                            value = value * factor
                        place.at(0, 0, 0, 0, c).put(value, 0, 0, 0, 0, j)

                start, pieces = run.start, cut(run.count, 8 if em.target.registers >= 32 else 4)
                walk(b, pieces, 0, 1, lambda c, w, s=start, f=tile: f(c + s, w))

        def plane_of(d: Val | int) -> None:
            walk(b, ((geo.out[1], 1),), band, count, lambda r, _: row(d, r))

        run(b, 0, geo.out[0], plane_of)


def _lines(
    b: Builder, geo: Geometry, fold: Fold, step: Triple, ranges: tuple[Range, Range]
) -> list[Val | int] | None:
    """The offsets, in elements, from kernel plane and row 0 of a window to its rows inside the
    input (`ranges`: kernel planes, rows); None if the loop over them is not unrolled. If only the
    run knows `ranges`, a maximum reads the first or last row inside in place of others."""
    found: list[Val | int] = [0]
    for axis, (low, high) in enumerate(ranges):
        if isinstance(low, int) and isinstance(high, int):
            if high - low > WIDEST:
                return None
            taps: list[Val | int] = list(range(low, high))
        elif geo.kernel[axis] > WIDEST:
            return None
        elif fold is not SUM and _sees(geo, axis):
            last = high - 1
            taps = [b.minimum(b.maximum(low, k), last) for k in range(geo.kernel[axis])]
        else:
            return None
        found = [at + k * (geo.dilation[axis] * step[axis]) for at in found for k in taps]
    return found if 0 < len(found) <= WIDEST else None


def _sees(geo: Geometry, axis: int) -> bool:
    """Whether every window is known to have a tap inside the input, along one axis."""
    if isinstance(geo.size[axis], Size):  # (ceiling adds no window of nothing but padding)
        most = max(geo.before[axis], geo.after[axis] - geo.stride[axis] + 1)
        return geo.dilation[axis] == 1 and most < geo.kernel[axis]
    return all(len(range(*geo.taps_inside(axis, o))) for o in range(geo.out[axis]))


def _shares_here(b: Builder, geo: Geometry, index: Sequence[Position], counted: Counted) -> Val:
    """Emit the factor of an average at `index`, (depth, height) or (depth, height, width) of the
    output: 1 / the number of taps in the ranges `counted` of these axes."""
    taps: Number | Val = 1
    for axis, o in enumerate(index):
        low, high = counted[axis]
        begin, gap = b.index(o) * geo.stride[axis] - geo.begin[axis], geo.dilation[axis]
        first = (b.maximum(low - begin, 0) + (gap - 1)) // gap
        last = b.minimum((b.maximum(high - begin, 0) + (gap - 1)) // gap, geo.kernel[axis])
        taps = b.index(b.maximum(last - first, 0)) * taps
    whole = b.index(b.maximum(taps, 1)).to("f32")
    return b.const(1.0, F32) / whole


def _edges(
    geo: Geometry, fold: Fold, line: Ptr, step: Triple, row: Sequence[Position], place: Sink,
    counted: Counted,
) -> None:  # fmt: skip
    """Emit the columns at both ends of a row of outputs, one by one, where sizes are free. Taps of
    their windows outside the input are left out. `line`: the address at which the row's first
    window begins; `row`: its (depth, height); `place`: the sink at the row's beginning."""
    b, width = line.b, place.width
    first, behind = inner_columns(geo)

    def column(c: Val) -> None:
        index = (*row, c)
        ranges = [clipped(b, geo, axis, o) for axis, o in enumerate(index)]
        corner = (line + c * geo.stride[2] * step[2]).fixed()

        def level(axis: int, at: Ptr, carried: Carried) -> Carried:
            if axis == 3:
                return [fold.add(carried[0], at.load(width))]
            far = geo.dilation[axis] * step[axis]
            return fold_range(
                b, *ranges[axis], carried, lambda k, kept: level(axis + 1, at + k * far, kept)
            )

        [done] = level(0, corner, [b.splat(fold.start, line.elem, width)])
        if counted:
            done = done * _shares_here(b, geo, index, counted)
        place.at(0, 0, 0, 0, c).put(done, 0, 0, 0, 0, 0)

    for lo, hi in ((0, first), (behind, geo.out[2])):
        if not (isinstance(lo, int) and isinstance(hi, int) and lo >= hi):
            with b.loop(lo, hi) as c:
                column(c)


@dataclass(frozen=True)
class Neighbours:
    """`wide` neighbouring windows of a run of columns, in vectors of `width` channels. `corner` is
    the address of the first window's tap `run.low` in kernel plane 0 and row 0; neighbouring pixels
    of the input are `step` elements apart on each axis."""

    geo: Geometry
    fold: Fold
    step: Triple
    corner: Ptr
    run: Run
    wide: int
    width: int


def _unrolled(at: Neighbours, lines: list[Val | int]) -> Carried:
    """Emit the results of neighbouring windows, a vector for each, without a loop; `lines` are the
    offsets of their rows (`_lines`). Windows that share a column of taps share its reduction."""
    geo, fold, step, run, width = at.geo, at.fold, at.step, at.run, at.width
    rows = [(at.corner + line).fixed() for line in lines]
    columns: dict[int, Part] = {}
    done = []
    for p in range(at.wide):
        first = p * geo.stride[2]
        places = [first + j * geo.dilation[2] for j in range(run.high - run.low)]
        for place in places:
            if place not in columns:
                far = place * step[2]
                columns[place] = fold.column([(row + far).load(width) for row in rows])
        done.append(fold.across([columns[place] for place in places]))
    return done


def _window(b: Builder, these: Neighbours, ranges: tuple[Range, Range]) -> Carried:
    """Emit the results of the neighbouring windows `these`, a vector for each, in loops over kernel
    planes and rows; `ranges` are the planes and the rows, [low, high) of either, that lie inside
    the input."""
    geo, fold, step, wide, width = these.geo, these.fold, these.step, these.wide, these.width
    gap, across = geo.dilation, these.run.high - these.run.low

    def taps(at: Ptr, carried: Carried, number: int) -> Carried:
        carried, loaded = list(carried), {}
        for j in range(number):
            for p in range(wide):
                place = (p * geo.stride[2] + j * gap[2]) * step[2]
                if place not in loaded:
                    loaded[place] = (at + place).load(width)
                carried[p] = fold.add(carried[p], loaded[place])
        return carried

    def line(at: Ptr, carried: Carried) -> Carried:
        if across <= WIDEST:
            return taps(at, carried, across)
        return fold_range(
            b, 0, across, carried, lambda j, c: taps(at + j * (gap[2] * step[2]), c, 1)
        )

    def rows(at: Ptr, carried: Carried) -> Carried:
        return fold_range(b, *ranges[1], carried, lambda k, c: line(at + k * (gap[1] * step[1]), c))

    start = [b.splat(fold.start, these.corner.elem, width)] * wide
    return fold_range(
        b, *ranges[0], start, lambda k, c: rows(these.corner + k * (gap[0] * step[0]), c)
    )
