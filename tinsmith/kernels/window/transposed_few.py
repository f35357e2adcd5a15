"""Transposed convolution to few channels, on plain data: vectors run along the rows of the input.

Blocks of channels would be mostly padding. Along an axis of stride s, the outputs from s*t to
s*t + s - 1 belong to place t. A column is one of those on each axis, of one output channel: at
every place it sees the same taps, at the same offsets of the input. A tile adds up some columns at
neighbouring places; the sums go to a buffer, which whole rows of outputs are made of.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from math import ceil, prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target, overlap
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
from tinsmith.kernels.moderate import are_finite
from tinsmith.kernels.move.strided import emit_copy, plan_copy
from tinsmith.kernels.rows import blocks, run
from tinsmith.kernels.sharing import ALONE
from tinsmith.kernels.window.contract import Level, nest
from tinsmith.kernels.window.geometry import Geometry, Triple, triple
from tinsmith.kernels.window.padded import room
from tinsmith.kernels.window.plain import LONGEST, Rows, Segment, Segments, each_segment, segments
from tinsmith.kernels.window.tiles import cut
from tinsmith.kernels.window.transposed import Axes, axes_of
from tinsmith.records import dataclass

MOST_OUTPUTS = 8  # channels of a group
MOST_PRODUCTS = 1024  # of the loop bodies of all kinds of panels
EFFICIENCY = 0.9
TILES_EACH = 4  # that a thread gets
ROOM = 4  # the share of the second-level cache that the input of a segment should not exceed
NEAR = 0.75  # the share of the first-level cache that what is read again and again may take
LEAST = 16  # channels that are worth a pass over the sums
FEW_PRODUCTS = 16  # of a loop body that LLVM compiles without a register to spare
MOST_ALONE = 9  # columns of one vector: of more, LLVM spills some
FINISHING = 6.0  # issue slots of a vector of outputs, from the buffer on

Step = tuple[Triple, tuple[int, ...]]
"""An offset of the input, and the columns of a panel that see it."""


@dataclass(frozen=True)
class Column:
    """One of a place's outputs: its taps, as offsets of the input and places in the weights."""

    number: int  # of (channel, phase on each axis), flat
    offsets: tuple[Triple, ...]
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """Panels of columns that see the same offsets, and so share their code; `first` columns are
    those of the kinds before, which have `weights` for each input channel."""

    steps: tuple[Step, ...]
    panels: tuple[tuple[Column, ...], ...]
    first: int
    weights: int

    @property
    def columns(self) -> int:
        return len(self.panels[0])

    @property
    def products(self) -> int:
        """For each place and input channel."""
        return sum(len(seen) for _, seen in self.steps)


@dataclass(frozen=True)
class Tile:
    """`rows` of `vectors` neighbouring vectors of `width` places, for each kind of panels; `cost`
    in products of whole vectors, over a plane of places."""

    rows: int
    vectors: int
    width: int
    kinds: tuple[Kind, ...]
    cost: float


@dataclass(frozen=True)
class Few:
    """The plan: `places` is a convolution of the input whose outputs are the places and whose
    kernel reaches all offsets."""

    axes: Axes
    places: Geometry
    inputs: int  # channels of a group, as `outputs`
    outputs: int
    cut: Segments
    depth: int  # input channels at a time
    tile: Tile

    @property
    def phases(self) -> Triple:
        z, y, x = map(len, self.axes.phases)
        return z, y, x

    @property
    def columns(self) -> int:
        return self.outputs * prod(self.phases)

    @property
    def adds(self) -> bool:
        """Whether the buffer holds sums of some input channels to which others are added, so that
        tiles may not overlap. They then go beyond the rows and columns of a segment."""
        return self.depth < self.inputs

    @property
    def extent(self) -> tuple[int, int]:
        """The rows and columns of the largest segment in the buffer."""
        cut, (_, rows, columns) = self.cut, self.places.out
        high, wide = -(-rows // cut.bands), -(-columns // cut.parts)
        if self.adds:
            across = self.tile.vectors * self.tile.width
            high = -(-high // self.tile.rows) * self.tile.rows
            wide = -(-wide // across) * across
        return high, wide

    @property
    def pitch(self) -> int:
        """Elements from one column to the next in the buffer."""
        return self.extent[1]

    @property
    def row(self) -> int:
        """Elements of all columns of a row of places, in the buffer."""
        return self.columns * self.pitch

    @property
    def sizes(self) -> Triple:
        """Elements of the input's copy, of the buffer, and of a row of outputs."""
        copied = self.cut.copied and room(self.depth * self.places.kernel[0] * self.cut.plane())
        line = self.pitch * self.phases[2] if self.phases[2] > 1 else 0
        return copied, self.extent[0] * self.row, line


@kernel("ConvTranspose", Tier.SHAPED, dtypes="float32")
def conv_transposed_few(site: Site) -> Choice:
    """Transposed convolution to at most 8 channels a group, by vectors of pixels of plain data."""
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    axes, groups, target = axes_of(site), site.attr("group"), site.target
    if w.shape[1] > MOST_OUTPUTS:
        raise Skip(f"{w.shape[1]} channels of a group are enough for vectors of channels")
    if not are_finite(w):
        raise Skip("a weight is infinite or NaN, and zeros around the image would meet it")
    few = _plan(target, site.threads, axes, groups)
    places, pieces, tile = few.places, few.cut, few.tile
    segments_ = groups * places.batch * places.out[0] * pieces.bands * pieces.parts
    products = groups * places.batch * places.out[0] * tile.cost
    time = target.time(2.0 * target.lanes * products, 0, EFFICIENCY)
    time += target.time(0, 8.0 * segments_ * few.sizes[0] * few.inputs / few.depth)
    moved = site.input(0).type.nbytes + site.out.type.nbytes
    return Choice(
        cost=overlap(time, target.time(0, moved)),
        reads=site.reads_first(PLAIN, PLAIN),
        writes=(PLAIN,),
        phases=one_phase(segments_, lambda em: _emit(em, few)),
        packed=(
            Packed("weights", _pack, (w, few), fits=are_finite),
            Packed("bias", _pack_bias, (bias, few)),
            Packed("columns", _table, (few,)),
        ),
        workspace=4 * sum(few.sizes),
        detail=f"tile {tile.rows}x{tile.vectors} vectors of {tile.width}, {few.columns} columns",
    )


# ---- the plan


@functools.lru_cache(maxsize=256)
def _plan(target: Target, threads: int, axes: Axes, groups: int) -> Few:
    geo = axes.geometry
    inputs, outputs = geo.channels // groups, geo.out_channels // groups
    least, reach, out = [], [], []
    for axis, gap in zip(axes.phases, axes.gaps, strict=True):
        used = [p for p in axis if p.taps]
        least.append(min([p.first for p in used], default=0))
        ends = [p.first + (len(p.taps) - 1) * gap for p in used]
        reach.append(max(ends, default=least[-1]) - least[-1] + 1)
        out.append(axis[0].count)
    begin = triple([-n for n in least])
    one = (1, 1, 1)
    places = replace(
        geo, out=triple(out), kernel=triple(reach), stride=one, dilation=one, begin=begin
    )
    found = _columns(axes, triple(least), outputs)
    seconds = target.time(
        2.0 * geo.batch * geo.channels * prod(out) * sum(len(c.taps) for c in found), 0
    )
    tiles = TILES_EACH * threads if threads > 1 and seconds > ALONE else 1
    bands = min(out[1], -(-tiles // (geo.batch * groups * out[0])))
    parts = min(threads if tiles > 1 and out[1] == 1 else 1, -(-out[2] // target.lanes))
    pieces = _segments(target, places, inputs, bands, parts)
    line = 4 * places.kernel[0] * pieces.plane()
    depth = int(NEAR * target.l1 / line)
    depth = min(inputs, depth if depth >= LEAST else inputs)
    if depth < inputs:
        pieces = replace(pieces, copied=True)
    tile = _tile(target, places, pieces, inputs, depth, found)
    return Few(axes, places, inputs, outputs, pieces, depth, tile)


def _segments(target: Target, places: Geometry, inputs: int, bands: int, parts: int) -> Segments:
    """The cut of a plane of places in at least so many bands and parts."""
    most = target.l2 // ROOM
    longest = most // (4 * inputs * prod(places.kernel[:2]))
    if places.out[1] == 1:
        longest = int(NEAR * target.l1 / (8 * LEAST * prod(places.kernel[:2])))
    longest = max(2 * target.lanes, (longest - places.kernel[2]) // target.lanes * target.lanes)
    longest = min(LONGEST, longest, -(-places.out[2] // parts))
    return segments(places, inputs, most, longest, bands)


def _columns(axes: Axes, least: Triple, outputs: int) -> tuple[Column, ...]:
    """All columns, those that see the same offsets side by side."""
    found: list[Column] = []
    for m, phases in product(range(outputs), list(product(*axes.phases))):
        seen = [
            [(p.first - low + j * gap, tap) for j, tap in enumerate(p.taps)]
            for p, gap, low in zip(phases, axes.gaps, least, strict=True)
        ]
        offsets, taps = [], []
        for (z, i), (y, j), (x, k) in product(*seen):
            offsets.append((z, y, x))
            taps.append(int(np.ravel_multi_index((m, i, j, k), (outputs, *axes.geometry.kernel))))
        found.append(Column(len(found), tuple(offsets), tuple(taps)))
    return tuple(sorted(found, key=lambda c: (c.offsets, c.number)))


@functools.lru_cache(maxsize=64)
def _kinds(columns: tuple[Column, ...], most: int) -> tuple[Kind, ...]:
    """The columns in panels of at most so many."""
    together: dict[tuple[int, tuple[Step, ...]], list[tuple[Column, ...]]] = {}
    done = 0
    for size in (size for count, size in cut(len(columns), most) for _ in range(count)):
        panel = tuple(columns[done : done + size])
        offsets = sorted({o for c in panel for o in c.offsets})
        seen = [tuple(k for k, c in enumerate(panel) if o in c.offsets) for o in offsets]
        steps = tuple(zip(offsets, seen, strict=True))
        together.setdefault((size, steps), []).append(panel)
        done += size
    kinds: list[Kind] = []
    first = weights = 0
    for (_, steps), panels in together.items():
        kinds.append(Kind(steps, tuple(panels), first, weights))
        first += len(panels) * kinds[-1].columns
        weights += len(panels) * kinds[-1].products
    return tuple(kinds)


def _tile(
    target: Target,
    places: Geometry,
    pieces: Segments,
    inputs: int,
    depth: int,
    columns: tuple[Column, ...],
) -> Tile:
    """The best tile, or Skip."""
    best: Tile | None = None
    for rows, vectors, width in product(range(1, 5), range(1, 9), _widths(target, pieces)):
        sums = rows * vectors
        most = _most_columns(target, sums)
        if rows > pieces.rows or vectors * width > pieces.columns or most < 1:
            continue
        kinds = _kinds(columns, min(len(columns), most))
        if max(kind.products for kind in kinds) > FEW_PRODUCTS:
            kinds = _kinds(columns, min(len(columns), max(1, _most_columns(target, sums, 1))))
        if sums * sum(kind.products for kind in kinds) > MOST_PRODUCTS:
            continue
        share = 0.5 if target.pipes == 1 and width < target.lanes else 1.0
        work = sum(len(k.panels) * _slots(target, k, sums, share, depth) for k in kinds)
        across = pieces.parts * ceil(ceil(places.out[2] / pieces.parts) / (vectors * width))
        down = pieces.bands * ceil(ceil(places.out[1] / pieces.bands) / rows)
        cost = across * down * work * inputs / depth
        if best is None or cost < best.cost:
            best = Tile(rows, vectors, width, kinds, cost)
    if best is None:
        raise Skip(f"{len(columns)} outputs of a place have too many different taps")
    outputs = len(columns) * prod(places.out[1:])
    return replace(best, cost=best.cost + FINISHING * outputs / target.lanes)


def _most_columns(target: Target, sums: int, spare: int = 0) -> int:
    """Columns of a panel whose `sums` each stay in registers, of which so many are to spare."""
    registers = 27 if target.registers >= 32 else 16 if target.has_fma else 11
    most = (registers - spare - sums - 1) // sums
    return min(most, MOST_ALONE) if sums == 1 else most


def _widths(target: Target, pieces: Segments) -> list[int]:
    """Lanes of vectors: as many as there are, or half, where they are computed as halves."""
    width = 1
    while width * 2 <= min(target.lanes, pieces.columns):
        width *= 2
    return [width, width // 2] if target.pipes == 1 and width == 16 else [width]


def _slots(target: Target, kind: Kind, sums: int, share: float, depth: int) -> float:
    """Issue slots of a tile for one panel; a vector takes `share` of a multiply-add's."""
    loads = 0.5 * target.pipes * (len(kind.steps) * sums + kind.products)
    chain = 5.0 * target.pipes * kind.products / kind.columns
    work = max(kind.products * sums * share, loads, chain) + 1.0
    return depth * work + 3.0 * kind.columns * sums + 8.0


# ---- packed arrays


def _pack(w: np.ndarray, few: Few) -> np.ndarray:
    """[C, outputs, *taps] as [group][part of the input channels][kind][panel][input channel][step]
    [column that sees it]."""
    flat = w.reshape(-1, few.inputs, prod(w.shape[1:]))
    taps = [
        [panel[k].taps[panel[k].offsets.index(o)] for o, seen in kind.steps for k in seen]
        for kind in few.tile.kinds
        for panel in kind.panels
    ]
    return np.concatenate(
        [
            group[first : first + few.depth, of].reshape(-1)
            for group in flat
            for first in range(0, few.inputs, few.depth)
            for of in taps
        ]
    )


def _numbers(few: Few) -> np.ndarray:
    """The columns in the order of kinds and panels."""
    return np.array([c.number for k in few.tile.kinds for p in k.panels for c in p], np.int64)


def _pack_bias(bias: np.ndarray | None, few: Few) -> np.ndarray:
    """[groups * outputs], or zeros, as [group][column of each panel]."""
    channels = _numbers(few) // prod(few.phases)
    if bias is None:
        bias = np.zeros(few.axes.geometry.out_channels, np.float32)
    return bias.reshape(-1, few.outputs)[:, channels].reshape(-1)


def _table(few: Few) -> np.ndarray:
    """Where each column of each panel begins in the buffer."""
    return _numbers(few) * few.pitch


# ---- the code


def _emit(em: Emit, few: Few) -> None:
    """Tiles are those of `each_segment`."""
    b, (copied, sums, _), tile = em.b, few.sizes, few.tile
    buffer = em.workspace.cast(F32) + copied
    products = sum(len(k.panels) * k.products for k in tile.kinds)  # of an input channel

    def body(at: Segment) -> None:
        def part(k: Val | int) -> None:
            first = k * few.depth
            count = b.minimum(few.depth, few.inputs - first) if isinstance(k, Val) else few.depth
            rows = at.rows(em, first, count)
            weights = em.packed[0] + (at.g * few.inputs + first) * products
            with _steps(em, few, at.high, tile.rows) as r:
                for kind in tile.kinds:
                    _panels(em, few, kind, at, rows, weights, count, r, buffer)

        if few.adds:
            _start(em, few, at, buffer)
        run(b, 0, -(-few.inputs // few.depth), part)
        run(b, 0, at.high, lambda r: _finish(em, few, at, r, buffer + r * few.row, buffer + sums))

    each_segment(em, few.places, few.cut, few.inputs, body)


def _steps(em: Emit, few: Few, count: Val | int, size: int) -> AbstractContextManager[Val | int]:
    """The starts of tiles of that size; the last one overlaps another, or goes beyond the end."""
    return em.b.loop(0, count, size) if few.adds else blocks(em.b, count, size)


def _start(em: Emit, few: Few, at: Segment, buffer: Ptr) -> None:
    """Each column's bias, all over the buffer of a segment."""
    b = em.b
    with b.loop(0, at.high) as r, b.loop(0, few.columns) as c:
        bias = (em.packed[1] + at.g * few.columns + c).load()
        line = (buffer + r * few.row + (em.packed[2] + c).load()).fixed()

        def piece(i: Val | int, lanes: int, mask: Val | None) -> None:
            (line + i).store(bias.splat(lanes), mask)

        b.vectors(few.pitch, em.target.lanes, piece)


def _panels(
    em: Emit,
    few: Few,
    kind: Kind,
    at: Segment,
    source: Rows,
    weights: Ptr,
    count: Val | int,
    r: Val | int,
    buffer: Ptr,
) -> None:
    """The products of `count` input channels and all panels of a kind, into the buffer, for the
    rows of a tile from `r` on; `weights` are those of all kinds."""
    b, tile, depth = em.b, few.tile, count * kind.products
    weights = weights + count * kind.weights
    table, bias = em.packed[2] + kind.first, em.packed[1] + at.g * few.columns + kind.first
    grid = list(product(range(tile.rows), range(tile.vectors), range(kind.columns)))

    def panel(k: Val | int) -> None:
        w, first = (weights + k * depth).fixed(), k * kind.columns
        lines = [buffer + r * few.row + (table + first + q).load() for q in range(kind.columns)]
        with _steps(em, few, at.wide, tile.vectors * tile.width) as c:
            corner = (source.x + r * source.pitch + c).fixed()
            to = [lines[q] + c + (i * few.row + j * tile.width) for i, j, q in grid]
            if few.adds:
                start = [place.load(tile.width) for place in to]
            else:
                start = [(bias + first + q).splat(tile.width) for _, _, q in grid]
            done = _sums(em, few, kind, source, corner, w, count, start)
            for place, value in zip(to, done, strict=True):
                place.store(value)

    run(b, 0, len(kind.panels), panel)


def _sums(
    em: Emit,
    few: Few,
    kind: Kind,
    source: Rows,
    corner: Ptr,
    weights: Ptr,
    count: Val | int,
    start: list[Val],
) -> list[Val]:
    """The sums of a panel's columns at the places of a tile, columns innermost."""
    tile, columns = few.tile, kind.columns
    grid = product(range(tile.rows), range(tile.vectors))
    far = [i * source.pitch + j * tile.width for i, j in grid]
    if not kind.products:
        return start

    def body(x: Ptr, w: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
        sums, done = list(acc), 0
        for offset, seen in kind.steps:
            em.b.barrier()  # else LLVM loads for all steps first, and runs out of registers
            here = sum(o * step for o, step in zip(offset, source.reach[1:], strict=True))
            xs = [(x + (here + f)).load(tile.width) for f in far]
            for k in seen:
                factor = (w + done).splat(tile.width)
                for s, value in enumerate(xs):
                    sums[s * columns + k] = value.fma(factor, sums[s * columns + k])
                done += 1
        return sums

    return nest(em.b, [Level(count, source.reach[0], kind.products)], corner, weights, start, body)


def _finish(em: Emit, few: Few, at: Segment, r: Val | int, buffer: Ptr, line: Ptr) -> None:
    """The outputs of all columns at row `r` of a segment, which are in the buffer."""
    b, geo, (planes, rows, across) = em.b, few.axes.geometry, few.phases
    d, first, left = at.place
    turn = plan_copy((few.pitch, across), (1, few.pitch), (across, 1), 32)
    count = b.minimum(at.wide * across, (0 - left * across) + geo.out[2])

    def row(k: Val | int) -> None:
        z, y = k // rows % planes, k % rows
        channel = at.g * few.outputs + k // (planes * rows)
        z, y = d * geo.stride[0] + z, (first + r) * geo.stride[1] + y
        source = (buffer + k * (across * few.pitch)).fixed()

        def store() -> None:
            if across > 1:
                emit_copy(b, turn, source, line, 0, turn.tiles)
            whole = line if across > 1 else source

            def piece(i: Val | int, lanes: int, mask: Val | None) -> None:
                index = geo.place((at.n, channel, z, y, left * across + i))
                em.finish((whole + i).load(lanes, mask), index, mask)

            b.vectors(count, em.target.lanes, piece)

        if geo.out[0] % planes or geo.out[1] % rows:
            with b.when((b.index(z) < geo.out[0]) & (b.index(y) < geo.out[1])):
                store()
        else:
            store()

    run(b, 0, few.outputs * planes * rows, row)
