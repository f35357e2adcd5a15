"""How transposed convolutions to few channels are cut: ways, segments and tiles, and their cost.

`transposed_ways` explains places, columns and ways. Functions get the `places`, `inputs` and `ways`
of a plan (`Few`), and segments as `cut` or `pieces`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, prod

from tinsmith.codegen.target import Target
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.sharing import ALONE
from tinsmith.kernels.window.geometry import Geometry, Triple, triple
from tinsmith.kernels.window.padded import room
from tinsmith.kernels.window.plain import LONGEST, Segments, segments
from tinsmith.kernels.window.tiles import L2_BYTES
from tinsmith.kernels.window.transposed import Axes
from tinsmith.kernels.window.transposed_ways import Kind, Way, kinds, savings, way_of
from tinsmith.kernels.winograd.matrices import bilinear
from tinsmith.records import dataclass

MOST_COLUMNS = 4096  # outputs of a place, at most; estimated
# These six are estimated.
MOST_PRODUCTS = 1024  # of the loop bodies of all kinds of panels
TILES_EACH = 4  # tiles that a thread gets at least, where there are threads
ROOM = 4  # the input of a segment should take no more than L2 / ROOM
NEAR = 0.75  # the share of L1 that what is read again and again may take
LEAST = 4  # channels that may be worth a pass over the sums
ONE_ROW = 16  # channels of one row that L1 should hold
MOST_BYTES = 1 << 40  # of a segment, where the search knows no limit
MOST_ALONE = 4  # columns of one vector with 16 registers: weights then take as many loads
SHOWN = 1.0  # of the time that inputs take from L2
COPYING = 12.0  # bytes of memory traffic that take as long as copying an element
INSIDE = 0.5  # of the time of a copy, where what is around the image is there already
ADDED = 64.0  # bytes a cycle, by which sums are loaded and stored where others are added to them
FINISHING, JUDGING, MIXING = 6.0, 4.0, 0.45
"""Issue slots of a vector: of outputs, from the buffer on; of inputs, to tell whether they are of
one size; of an operation, load or store of sums of inputs. These and the four above were fitted to
layers' times on AMD EPYC (Zen 4, 2 cores), AVX2 and AVX-512, one thread. The estimates that
`python -m benchmarks.micro --only conv_transposed_few` prints are there up to 40 % above the times,
most by fewer products."""
WORTH = 0.9  # of the time by the definition that fewer products may take, as they err more; set
TRIED = 1.5  # algorithms of up to so many times the fewest products are tried; estimated
HEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)  # rows of places of a segment, tried
EFFICIENCY = 0.9  # share of the peak that the products reach; estimated


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` rows of `vectors` neighbouring vectors of `width` places, by the
    columns of a panel. kinds[i]: the panels of way i. `cost`: of the first way, for a plane of
    places of one group, in multiply-adds of whole vectors."""

    rows: int
    vectors: int
    width: int
    kinds: tuple[tuple[Kind, ...], ...]
    cost: float


@dataclass(frozen=True)
class Few:
    """The plan of a transposed convolution to few channels.

    places   the geometry of a convolution whose outputs are the places, and whose windows cover all
             inputs that columns read
    inputs   input channels of a group; `outputs` its output channels
    ways     one, the definition; or two: fewer products, and the definition for segments whose
             inputs differ much in size
    cut      how a plane of places is cut into segments
    depth    how many input channels are multiplied at a time
    """

    axes: Axes
    places: Geometry
    inputs: int
    outputs: int
    ways: tuple[Way, ...]
    cut: Segments
    depth: int
    tile: Tile

    @property
    def phases(self) -> Triple:
        """How many phases each axis has: outputs of a place along that axis."""
        z, y, x = map(len, self.axes.phases)
        return z, y, x

    @property
    def step(self) -> Triple:
        """How many neighbouring places along each axis are computed as one."""
        return self.ways[0].steps

    @property
    def saves(self) -> bool:
        """Whether one of two ways takes fewer products than the definition."""
        return len(self.ways) > 1

    @property
    def reads_inside(self) -> bool:
        """Whether only segments that reach into padding copy their input, and the others read it in
        place: where the plan copies, has one way, and cuts an input of one row into parts."""
        places, cut = self.places, self.cut
        one = places.size[:2] == places.kernel[:2] == (1, 1)
        return one and cut.parts > 1 and cut.copied and not self.saves

    @property
    def adds(self) -> bool:
        """Whether the last tiles reach beyond the rows and columns of a segment (the buffer has
        room) rather than overlap those before: with `saves`, or where input channels come in
        several parts, which tiles add up in the buffer."""
        return self.saves or self.depth < self.inputs

    @property
    def extent(self) -> tuple[int, int]:
        """(rows, columns) of places that the buffer has for the largest segment."""
        high, wide = largest(self.places, self.cut)
        if self.adds:
            across = self.tile.vectors * self.tile.width
            high = -(-high // self.tile.rows) * self.tile.rows
            wide = -(-wide // across) * across
        return high, wide

    @property
    def pitch(self) -> int:
        """Places that each column has in the buffer, which is [row of places][column][place]: those
        of a row of the largest segment, and what the last tile adds (`adds`)."""
        return self.extent[1]

    @property
    def row(self) -> int:
        """Elements of all columns of one row of places in the buffer."""
        return max(len(way.columns) for way in self.ways) * self.pitch

    def sizes(self, lanes: int) -> tuple[int, int, int, int]:
        """Elements of the four parts of the workspace, in order: the copy of the input, its
        sequences, the buffer of columns, and a row of outputs. 0 for parts that are not needed."""
        across = self.phases[2] * self.step[2]
        planes, cut = self.depth * self.places.kernel[0], self.cut
        copied = cut.copied and room(planes * cut.plane())
        sequences = 0
        if self.saves:  # the copy is read beyond its last row; without one, there is a row of zeros
            copied += room(2 * self.step[2] * lanes + cut.pitch)
            most = max(len(way.sequences) for way in self.ways)
            high, pitch = mixed(self.places, cut, self.ways, lanes)
            sequences = room((planes * most * high + 1) * pitch)
            sequences = max(sequences, room(judged(self.places, cut, lanes)[1]))
        line = self.pitch * across if across > 1 else 0
        return copied, sequences, self.extent[0] * self.row, line


def largest(places: Geometry, cut: Segments) -> tuple[int, int]:
    """(rows, columns) of places in the largest segment."""
    return -(-places.out[1] // cut.bands), -(-places.out[2] // cut.parts)


def judged(places: Geometry, cut: Segments, lanes: int) -> tuple[int, int]:
    """What `transposed_mix.are_alike` goes through: (vectors that it takes at a time, elements of
    workspace for the largest magnitude at each pixel of a segment's input, in whole vectors)."""
    wide = places.size[2] if cut.parts == 1 else max(lanes, cut.pitch)
    vectors = next(v for v in (4, 2, 1) if v * lanes <= min(places.size[2], wide))
    total = min(cut.lines, places.size[1]) * wide + vectors * lanes
    return vectors, -(-total // lanes) * lanes


def mixed(places: Geometry, cut: Segments, ways: tuple[Way, ...], lanes: int) -> tuple[int, int]:
    """(rows, pitch) of the workspace for one sequence of one input plane (`Way.sequences`), which
    suffice for the largest segment and each of `ways`; pitch is elements from row to row, a
    multiple of `lanes`."""
    high, wide = largest(places, cut)
    rows, columns = (max(way.reach[a] for way in ways) for a in (1, 2))
    return high - 1 + rows, -(-(wide - 1 + columns) // lanes) * lanes


@cached(256)
def plan_few(target: Target, threads: int, axes: Axes, groups: int, precision: str) -> Few:
    """The cheapest plan for `threads` threads, the axes of a convolution and `groups` groups.
    Raises Skip if a place has too many columns, or columns have too many different taps.
    `precision` bounds the growth of errors by fewer products; "exact" leaves only the
    definition."""
    geo = axes.geometry
    outputs = geo.out_channels // groups
    columns = outputs * prod(map(len, axes.phases))
    if columns > MOST_COLUMNS:
        raise Skip(f"a place has {columns} outputs, more than {MOST_COLUMNS}")
    axis = 1 if axes.phases[1][0].count > 1 else 2
    taps = [len(p.taps) for p in axes.phases[axis]]
    best = _plan(target, threads, axes, groups, (way_of(axes, outputs, bilinear(1, 1), 2),))
    time = WORTH * seconds(target, best)
    if geo.size[2] < target.lanes or axes.gaps[axis] > 1 or not target.has_fma:
        return best  # (without multiply-adds the sums of inputs do not stay in 16 registers)
    tried = {
        a: a.products / a.m * sum(-(-n // a.r) for n in taps)
        for a in savings(max(taps), axes.phases[axis][0].count, precision)
        if columns * a.products <= MOST_COLUMNS
    }
    for algorithm, products in tried.items():
        if products > TRIED * min(tried.values()):
            continue
        each = (algorithm, bilinear(algorithm.m, 1))
        ways = tuple(way_of(axes, outputs, a, axis) for a in each)
        try:
            found = _plan(target, threads, axes, groups, ways)
        except Skip:
            continue
        if seconds(target, found) < time:
            best, time = found, seconds(target, found)
    return best


def seconds(target: Target, few: Few) -> float:
    """Estimated seconds of a plan on one core: arithmetic, and copies of the input."""
    places, groups = few.places, few.places.channels // few.inputs
    planes = groups * places.batch * places.out[0]
    products = planes * few.tile.cost
    copied = planes * few.cut.bands * few.cut.parts * few.sizes(target.lanes)[0]
    copied *= INSIDE if few.depth < few.inputs and not few.saves else 1.0
    time = target.time(2.0 * target.lanes * products, 0, EFFICIENCY)
    return time + target.time(0, COPYING * copied * few.inputs / few.depth)


def _plan(target: Target, threads: int, axes: Axes, groups: int, ways: tuple[Way, ...]) -> Few:
    """The cheapest plan for these ways. Raises Skip as `_tile` does."""
    geo, lanes = axes.geometry, target.lanes
    inputs, outputs = geo.channels // groups, geo.out_channels // groups
    places = _places(axes, ways)
    out, saves = places.out, len(ways) > 1
    time = target.time(
        2.0 * geo.batch * geo.channels * prod(out) * sum(len(c.offsets) for c in ways[0].columns), 0
    )
    tiles = TILES_EACH * threads if threads > 1 and time > ALONE else 1
    bands = min(out[1], -(-tiles // (geo.batch * groups * out[0])))
    parts = 1
    if tiles > 1 and out[1] == 1:
        parts = min(-(-threads // (geo.batch * groups)), -(-out[2] // lanes))
    best: Few | None = None
    for high in HEIGHTS:
        if best is not None and high // 2 >= out[1]:
            break
        pieces = _segments(target, places, inputs, max(bands, -(-out[1] // high)), parts, ways)
        line = 4 * places.kernel[0] * pieces.plane()
        if saves:
            near = len(ways[0].sequences) * prod(mixed(places, pieces, ways, lanes))
            line = 4 * places.kernel[0] * near
        for depth in _depths(target, inputs, line, 2 if saves else 1) or (
            [inputs] if best is None else []
        ):
            copied = depth < inputs or any(places.begin) or any(places.after)
            pieces = replace(pieces, copied=ways[0].axis == 2 if saves else copied)
            tile = _tile(target, places, pieces, inputs, depth, ways, depth * line > target.l1)
            found = Few(axes, places, inputs, outputs, ways, pieces, depth, tile)
            if best is None or seconds(target, found) < seconds(target, best):
                best = found
    assert best is not None
    return best


def _depths(target: Target, inputs: int, nbytes: int, most: int) -> set[int]:
    """Numbers of input channels that may be worth multiplying at a time, if a segment of one takes
    `nbytes` bytes: as many as L1 holds, as many as a share of L2 holds, and all `inputs`, if these
    are at most `most` times the latter. May be empty."""
    near, far = int(NEAR * target.l1 / nbytes), target.l2 // ROOM // nbytes
    found = {n for n in (near, far) if LEAST <= n < inputs}
    return found | {inputs} if inputs <= most * far else found


def _places(axes: Axes, ways: tuple[Way, ...]) -> Geometry:
    """The `Few.places` of these ways. Places that are computed as one count as one output."""
    stride = ways[0].steps
    out = [-(-axis[0].count // step) for axis, step in zip(axes.phases, stride, strict=True)]
    reach = [max(w.span if a == w.axis else w.reach[a] for w in ways) for a in range(3)]
    return replace(
        axes.geometry, out=triple(out), kernel=triple(reach), stride=stride, dilation=(1, 1, 1),
        begin=triple([-n for n in axes.least]),
    )  # fmt: skip


def _segments(
    target: Target, places: Geometry, inputs: int, bands: int, parts: int, ways: tuple[Way, ...],
) -> Segments:  # fmt: skip
    """Cut a plane of places into segments: `bands` bands of rows, each cut into parts of columns.
    There are at least `parts` parts, and more if the input that a row of a segment reads would not
    stay in cache (L2, or L1 where the plane is one row)."""
    kernel = prod(places.kernel[:2])
    count = len(ways[0].sequences) if len(ways) > 1 else 1
    longest = target.l2 // ROOM // (4 * inputs * kernel)
    if places.out[1] == 1:
        longest = int(NEAR * target.l1 / (4 * max(2, count) * ONE_ROW * kernel))
    longest = max(2 * target.lanes, (longest - places.kernel[2]) // target.lanes * target.lanes)
    longest = min(LONGEST, longest, -(-places.out[2] // parts))
    return segments(places, inputs, MOST_BYTES, longest, bands)


def _tile(
    target: Target, places: Geometry, pieces: Segments, inputs: int, depth: int,
    ways: tuple[Way, ...], far: bool,
) -> Tile:  # fmt: skip
    """The cheapest tile. Raises Skip if the code of every tile is too long. `far`: whether the
    input that tiles read comes from L2."""
    best: Tile | None = None
    saves = len(ways) > 1
    columns = len(ways[0].columns)
    for rows, vectors, width in product(range(1, 5), range(1, 9), _widths(target, pieces)):
        sums = rows * vectors
        most = _most_columns(target, sums)
        beyond = width - 1 if saves else 0
        if rows > pieces.rows or vectors * width > pieces.columns + beyond or most < 1:
            continue
        each = tuple(kinds(way, min(len(way.columns), most)) for way in ways)
        if any(sums * sum(kind.products for kind in of) > MOST_PRODUCTS for of in each):
            continue
        share = 0.5 if target.pipes == 1 and width < target.lanes else 1.0
        reads = [0.0] * len(each[0])
        if far:
            reads = [4.0 * _elements(k, rows, vectors * width) for k in each[0]]
        work = sum(
            len(k.panels) * _slots(target, k, sums, share, depth, n, depth < inputs)
            for k, n in zip(each[0], reads, strict=True)
        )
        across = pieces.parts * ceil(ceil(places.out[2] / pieces.parts) / (vectors * width))
        down = pieces.bands * ceil(ceil(places.out[1] / pieces.bands) / rows)
        cost = across * down * work * inputs / depth
        if best is None or cost < best.cost:
            best = Tile(rows, vectors, width, each, cost)
    if best is None:
        raise Skip(f"{columns} outputs of a place have too many different taps")
    outputs = columns * prod(places.out[1:])
    cost = best.cost + FINISHING * outputs / target.lanes
    if saves:
        cost += _mixing(target, places, pieces, inputs, ways)
    return replace(best, cost=cost)


def _mixing(
    target: Target, places: Geometry, pieces: Segments, inputs: int, ways: tuple[Way, ...]
) -> float:
    """Issue slots of `are_alike` and of the sequences (`mix`), for one plane of places of a
    group."""
    way, count = ways[0], pieces.bands * pieces.parts * inputs * places.kernel[0]
    rows, columns = mixed(places, pieces, ways, target.lanes)
    loads = way.algorithm.reach * (2 * way.step - 1 if way.axis == 2 else 1)
    each = loads + sum(len(terms) + 1 for terms in way.sequences)
    judged = JUDGING * pieces.plane() / target.lanes
    return count * (MIXING * each * rows * columns / target.lanes + judged)


def _most_columns(target: Target, sums: int) -> int:
    """The most columns of a panel, so that registers hold `sums` vectors of sums for each, `sums`
    inputs and a weight; below 1 if they can't."""
    registers = 24 if target.registers >= 32 else 16 if target.has_fma else 10
    most = (registers - sums - 1) // sums
    return min(most, MOST_ALONE) if sums == 1 and target.registers < 32 else most


def _widths(target: Target, pieces: Segments) -> list[int]:
    """The widths of vectors, in lanes, to try for register tiles: the widest power of two that the
    target and the columns of the smallest segment allow; and half of it if that is 16, on targets
    that compute two vectors of 8 lanes in the time of one of 16."""
    width = 1
    while width * 2 <= min(target.lanes, pieces.columns):
        width *= 2
    return [width, width // 2] if target.pipes == 1 and width == 16 else [width]


def _elements(kind: Kind, rows: int, across: int) -> int:
    """How many elements of one input channel a tile of `rows` by `across` places reads for one
    panel of `kind`. For each line (z, y) of inputs: `across`, plus by how much the offsets in x
    differ."""
    lines: dict[tuple[int, int], list[int]] = {}
    for (z, y, x), _ in kind.steps:
        for r in range(rows):
            lines.setdefault((z, y + r), []).append(x)
    return sum(across + max(xs) - min(xs) for xs in lines.values())


def _slots(
    target: Target, kind: Kind, sums: int, share: float, depth: int, nbytes: float, adds: bool
) -> float:
    """Issue slots of a tile of `sums` vectors for one panel and `depth` input channels.

    share   slots of a multiply-add: 1, or 0.5 for half vectors if two are computed at once
    nbytes  bytes of each channel that are read from L2
    adds    whether sums in the buffer are loaded and added to
    """
    stream = target.pipes * nbytes / L2_BYTES
    loads = 0.5 * target.pipes * (len(kind.steps) * sums + kind.products)
    chain = 5.0 * target.pipes * kind.products / kind.columns
    work = max(kind.products * sums * share, loads, chain) + SHOWN * stream + 1.0
    each = 3.0 + (target.pipes * 8.0 * target.lanes / ADDED if adds else 0.0)
    return depth * work + each * kind.columns * sums + 8.0
