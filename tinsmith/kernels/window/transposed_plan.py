"""Plans of transposed convolutions to few channels: places, columns, panels and tiles.

Along an axis of stride s, the outputs from s*t to s*t + s - 1 belong to place t. A column is one of
those on each axis, of one output channel: at every place it sees the same taps, at the same offsets
of the input.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product
from math import ceil, prod

from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.sharing import ALONE
from tinsmith.kernels.window.geometry import Geometry, Triple, triple
from tinsmith.kernels.window.padded import room
from tinsmith.kernels.window.plain import LONGEST, Segments, segments
from tinsmith.kernels.window.tiles import cut
from tinsmith.kernels.window.transposed import Axes
from tinsmith.records import dataclass

MOST_COLUMNS = 4096
MOST_PRODUCTS = 1024  # of the loop bodies of all kinds of panels
TILES_EACH = 4  # that a thread gets
ROOM = 4  # the share of the second-level cache that the input of a segment should not exceed
NEAR = 0.75  # the share of the first-level cache that what is read again and again may take
LEAST = 16  # channels that are worth a pass over the sums
MOST_ALONE = 4  # columns of one vector with 16 registers: weights then take as many loads
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


@functools.lru_cache(maxsize=256)
def plan_few(target: Target, threads: int, axes: Axes, groups: int) -> Few:
    """The plan for so many threads, or Skip."""
    geo = axes.geometry
    inputs, outputs = geo.channels // groups, geo.out_channels // groups
    columns = outputs * prod(map(len, axes.phases))
    if columns > MOST_COLUMNS:
        raise Skip(f"a place has {columns} outputs, more than {MOST_COLUMNS}")
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
    parts = 1
    if tiles > 1 and out[1] == 1:
        parts = min(-(-threads // (geo.batch * groups)), -(-out[2] // target.lanes))
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
    planes, rows, across = axes.geometry.kernel
    for m, phases in product(range(outputs), product(*axes.phases)):
        seen = [
            [(p.first - low + j * gap, tap) for j, tap in enumerate(p.taps)]
            for p, gap, low in zip(phases, axes.gaps, least, strict=True)
        ]
        offsets, taps = [], []
        for (z, i), (y, j), (x, k) in product(*seen):
            offsets.append((z, y, x))
            taps.append(((m * planes + i) * rows + j) * across + k)
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


def _most_columns(target: Target, sums: int) -> int:
    """Columns of a panel whose `sums` each stay in registers, with their input and a weight."""
    registers = 27 if target.registers >= 32 else 16 if target.has_fma else 11
    most = (registers - sums - 1) // sums
    return min(most, MOST_ALONE) if sums == 1 and target.registers < 32 else most


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
