"""Convolution and pooling on plain data: a vector is neighbouring pixels of a row of the image.

An output plane is cut into segments, whose input is copied into a padded workspace, or read in
place if no window leaves the image. A tile is some rows of neighbouring vectors, for a panel of
output channels. Last tiles overlap those before, so nothing is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.target import Target, overlap
from tinsmith.codegen.types import F32
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Site, Skip, one_phase
from tinsmith.kernels.walk import blocks
from tinsmith.kernels.window.contract import Level, nest
from tinsmith.kernels.window.geometry import Geometry, image_of, steps
from tinsmith.kernels.window.padded import Reach, copy_inside, copy_rows, room
from tinsmith.kernels.window.tiles import Pieces, digits, sizes_of
from tinsmith.records import dataclass

WORKSPACE = 32 << 10  # bytes that the input of a segment should not exceed (estimated)
LONGEST = 2048  # outputs of a row that are in one segment, at most (estimated)
MOST_STRIDE = 4  # input vectors that the lanes of one come from (estimated)
MOST_UNROLLED = 5  # taps of a kernel row in one loop body (estimated)
EFFICIENCY = 0.9  # of the peak, beside what `tile_of` counts (estimated)


@dataclass(frozen=True)
class Segments:
    """How an output plane is cut into segments: `bands` of rows by `parts` of columns."""

    bands: int
    parts: int
    rows: int  # outputs of the smallest segment
    columns: int  # likewise
    lines: int  # input rows of the largest segment
    pitch: int  # input columns of the largest segment
    copied: bool  # whether the input of segments is copied to the workspace

    def plane(self) -> int:
        """Elements of the copy of one input plane."""
        return self.lines * self.pitch


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` rows of `vectors` neighbouring vectors of `width` pixels, for each
    output channel of a panel. `cost`: that of an output plane for one panel, tap and input channel,
    in multiply-adds of whole vectors."""

    rows: int
    vectors: int
    width: int
    cost: float


def segments(
    geo: Geometry, channels: int, most: int = WORKSPACE, longest: int = LONGEST, least: int = 1
) -> Segments:
    """Cut an output plane whose windows read `channels` channels into segments of at most `longest`
    columns, whose input takes at most `most` bytes unless one row takes more, in at least `least`
    bands. Raises Skip for a stride along rows of more than MOST_STRIDE."""
    if geo.stride[2] > MOST_STRIDE:
        raise Skip(f"a stride of {geo.stride[2]} leaves too little of a vector")
    copied = any(geo.begin) or any(geo.after) or geo.stride[2] > 1
    parts = -(-geo.out[2] // longest)
    wide = -(-geo.out[2] // parts)
    pitch = geo.span(2, wide)
    line = 4 * channels * geo.kernel[0] * pitch
    rows = max(1, (most // line - geo.span(1)) // geo.stride[1] + 1)
    bands = min(geo.out[1], max(least, -(-geo.out[1] // rows)))
    lines = geo.span(1, -(-geo.out[1] // bands))
    return Segments(bands, parts, geo.out[1] // bands, geo.out[2] // parts, lines, pitch, copied)


@cached(1024)
def tile_of(target: Target, geo: Geometry, cut: Segments, outputs: int, slots: float) -> Tile:
    """The cheapest tile of a panel of `outputs` channels, for segments as `cut`; adding one tap to
    one accumulator takes `slots` issue slots."""
    width = 1
    while width * 2 <= min(target.lanes, cut.columns):
        width *= 2
    room = 26 if target.registers >= 32 else 13 if target.has_fma else 10
    best: Tile | None = None
    for rows, vectors in product(range(1, 5), range(1, 9)):
        sums = rows * vectors
        if rows > cut.rows or vectors * width > cut.columns:
            continue
        if sums > 1 and sums * outputs + outputs + geo.stride[2] > room:
            continue
        across = cut.parts * ceil(ceil(geo.out[2] / cut.parts) / (vectors * width))
        down = cut.bands * ceil(ceil(geo.out[1] / cut.bands) / rows)
        loads = 0.5 * target.pipes * (sums * (2 * geo.stride[2] - 1) + outputs)
        work = max(sums * outputs * slots, loads, 4.0 * target.pipes) + 1.0
        ends = (4.0 + 2.0 * sums * outputs) / geo.taps
        cost = across * down * (work + ends)
        if best is None or cost < best.cost:
            best = Tile(rows, vectors, width, cost)
    assert best is not None
    return best


@dataclass(frozen=True)
class Sum:
    """Three functions that emit the sums (or maxima) of a tile:

    body    body(address of the tap's weights or None, its input vectors, accumulators, outputs of
            the panel) adds one tap and returns the new accumulators, [vector][output]
    start   start(first output channel of the panel, outputs) gives the accumulators with which a
            vector of pixels starts, one for each output
    finish  finish(accumulator, (d, r, c)) gives the result at that place of the output plane
    """

    body: Callable[[Ptr | None, list[Val], list[Val], int], list[Val]]
    start: Callable[[Val | int, int], list[Val]]
    finish: Callable[[Val, tuple[Val | int, Val | int, Val | int]], Val]


@dataclass(frozen=True)
class Work:
    """What an operator computes of its windows.

    of      of(em, lanes) gives the code for vectors of that many lanes
    panels  the output channels of a group, cut into panels
    slots   issue slots of adding one tap to one accumulator
    fill    the value of padding
    """

    of: Callable[[Emit, int], Sum]
    panels: Pieces = ((1, 1),)
    slots: float = 1.0
    fill: float = 0.0


@dataclass(frozen=True)
class Windows:
    """An operator on windows of `inputs` channels (those of a group), and how it is cut."""

    geo: Geometry
    inputs: int
    work: Work
    cut: Segments
    tile: Tile


def plain_choice(
    site: Site, geo: Geometry, inputs: int, packed: Sequence[Packed], work: Work
) -> Choice:
    """The `Choice` of an operator on plain data. `inputs`: channels of a group, which a window
    reads; `packed`: the arrays that the code of `work` reads. Raises Skip as `segments` does."""
    target, cut = site.target, segments(geo, inputs)
    tile = tile_of(target, geo, cut, work.panels[0][1], work.slots)
    windows = Windows(geo, inputs, work, cut, tile)
    planes = geo.batch * (geo.channels // inputs) * geo.out[0]
    pieces = planes * cut.bands * cut.parts
    copied = inputs * geo.kernel[0] * cut.plane() if cut.copied else 0
    products = planes * tile.cost * len(sizes_of(work.panels)) * inputs * geo.taps
    time = target.time(2.0 * target.lanes * products, 0, EFFICIENCY)
    time += target.time(0, 8.0 * pieces * copied)
    return Choice(
        cost=overlap(time, target.time(0, geo.traffic())), reads=site.reads_first(PLAIN, PLAIN),
        writes=(PLAIN,),
        phases=one_phase(pieces, lambda em: _emit(em, windows)),
        packed=tuple(packed), workspace=4 * room(copied) if copied else 0,
        repeats=_tiles_overlap(geo, cut, tile),
        detail=f"tile {tile.rows}x{tile.vectors} vectors of {tile.width}",
    )  # fmt: skip


def _tiles_overlap(geo: Geometry, cut: Segments, tile: Tile) -> bool:
    """Whether the rows or columns of some segment are no multiple of a tile's, so that last tiles
    store some results again (`Choice.repeats`)."""
    rows, columns = (
        {cut.rows, -(-geo.out[1] // cut.bands)},
        {cut.columns, -(-geo.out[2] // cut.parts)},
    )
    across = tile.vectors * tile.width
    return any(n % tile.rows for n in rows) or any(n % across for n in columns)


def _emit(em: Emit, windows: Windows) -> None:
    """Emit the kernel; its tiles are those of `each_segment`."""
    code = windows.work.of(em, windows.tile.width)

    def body(at: Segment) -> None:
        done, rows = 0, at.rows(em, 0, windows.inputs, windows.work.fill)
        for size in sizes_of(windows.work.panels):
            _panel(em, windows, code, at, rows, done, size)
            done += size

    each_segment(em, windows.geo, windows.cut, windows.inputs, body)


@dataclass(frozen=True)
class Rows:
    """The input of a segment, copied or in place; distances are in elements.

    x      the address at which the first window begins
    reach  from a channel to the next, then from a tap to the next along (depth, height, width)
    pitch  from a row to the next
    """

    x: Ptr
    reach: tuple[Val | int, int, int, int]
    pitch: int


@dataclass(frozen=True)
class Segment:
    """A segment of the outputs of image `n` and group `g`: `high` rows and `wide` columns, from the
    output `place` (depth, height, width) on. `image`: the address of the group's first input."""

    geo: Geometry
    cut: Segments
    n: Val | int
    g: Val | int
    place: tuple[Val | int, Val | int, Val | int]
    high: Val | int
    wide: Val | int
    image: Ptr

    def rows(self, em: Emit, first: Val | int, count: Val | int, fill: float = 0.0) -> Rows:
        """The input of `count` channels of the group from number `first` on. If `cut.copied`
        (windows are padded, or have a stride), emits the copy to the beginning of the workspace,
        with the value `fill` around the image; else the input is read in place."""
        geo, cut = self.geo, self.cut
        if cut.copied:
            copy_rows(em.b, self._reach(em, first, count), fill)
            return self.copied(em)
        _, channel, step = steps(em.input(0).spec)
        x = self.image + first * channel
        for o, s, far in zip(self.place, geo.stride, step, strict=True):
            x = x + o * (s * far)  # there is no padding
        d0, d1, d2 = (k * s for k, s in zip(geo.dilation, step, strict=True))
        return Rows(x.fixed(), (channel, d0, d1, d2), step[1])

    def rows_inside(self, em: Emit, first: Val | int, count: Val | int) -> Rows:
        """Emit the copy of `count` channels of the group from number `first` on to the workspace,
        which must have the padding around the image already; return the copy."""
        copy_inside(em.b, self._reach(em, first, count))
        return self.copied(em)

    def copied(self, em: Emit) -> Rows:
        """The input of the segment as it lies in the workspace after a copy."""
        geo, cut = self.geo, self.cut
        plane = cut.plane()
        reach = (geo.kernel[0] * plane, plane, geo.dilation[1] * cut.pitch, geo.dilation[2])
        return Rows(em.workspace.cast(F32).fixed(), reach, cut.pitch)

    def _corner(self) -> list[Val | int]:
        """The first window's first (plane, row, column), which may lie outside the image."""
        axes = zip(self.place, self.geo.stride, self.geo.begin, strict=True)
        return [o * s - p for o, s, p in axes]

    def _reach(self, em: Emit, first: Val | int, count: Val | int) -> Reach:
        """The part of the image to copy, of `count` channels from number `first` on."""
        geo, cut = self.geo, self.cut
        _, channel, step = steps(em.input(0).spec)
        image, space = self.image + first * channel, em.workspace.cast(F32)
        extent = cut.lines, cut.pitch
        return Reach(image, space, geo, self._corner(), extent, count, channel, step)


def each_segment(
    em: Emit, geo: Geometry, cut: Segments, inputs: int, body: Callable[[Segment], None]
) -> None:
    """Emit `body(segment)` in a loop over the kernel's tiles, which are (batch, group of `inputs`
    channels, output plane, band, part), the part innermost."""
    b, source = em.b, image_of(em.input(0), geo)
    groups = geo.channels // inputs
    with b.loop(em.begin, em.end) as t:
        part, band, d, g, n = digits(t, cut.parts, cut.bands, geo.out[0], groups)
        first, high = _part(b, band, geo.out[1], cut.bands)
        left, wide = _part(b, part, geo.out[2], cut.parts)
        image = source.pointer + n * source.batch + g * (inputs * source.plane)
        body(Segment(geo, cut, n, g, (d, first, left), high, wide, image))


def _part(b: Builder, index: Val | int, length: int, count: int) -> tuple[Val | int, Val | int]:
    """(begin, length) of part number `index` of a `length` that is cut into `count` even parts."""
    if count == 1:
        return 0, length
    first = index * length // count
    return first, (b.index(index) + 1) * length // count - first


def _panel(
    em: Emit, windows: Windows, code: Sum, at: Segment, source: Rows, done: int, size: int
) -> None:
    """Emit all tiles of a segment for a panel of `size` output channels, from number `done` on."""
    geo, tile, (d, first, left) = windows.geo, windows.tile, at.place
    channel = at.g * sum(sizes_of(windows.work.panels))
    weights = None
    if em.site.has(1):
        depth = windows.inputs * geo.taps
        weights = (em.packed[0] + channel * depth + done * depth).fixed()
    start = code.start(channel + done, size)
    grid = list(product(range(tile.rows), range(tile.vectors), range(size)))

    with (
        blocks(em.b, at.high, tile.rows) as r,
        blocks(em.b, at.wide, tile.vectors * tile.width) as c,
    ):
        corner = (source.x + r * (geo.stride[1] * source.pitch) + c * geo.stride[2]).fixed()
        sums = _sums(em.b, windows, code, source, corner, weights, start)
        for (i, j, k), value in zip(grid, sums, strict=True):
            place = (d, first + (r + i), left + (c + j * tile.width))
            index = geo.place((at.n, channel + (done + k), *place))
            em.finish(code.finish(value, place), index)


def _sums(
    b: Builder, windows: Windows, code: Sum, source: Rows, corner: Ptr, weights: Ptr | None,
    start: list[Val],
) -> list[Val]:  # fmt: skip
    """Emit one tile over all channels and taps; returns its accumulators, [row][vector][output].
    `corner` is the address of its first input; `start`: how each output's sums begin."""
    geo, tile = windows.geo, windows.tile
    outputs, across = len(start), geo.kernel[2]
    row = 0 if weights is None else outputs
    unroll = max(u for u in range(1, MOST_UNROLLED + 1) if across % u == 0)
    counts = (windows.inputs, *geo.kernel[:2], across // unroll)
    levels = [
        Level(count, far * (unroll if i == 3 else 1), row * prod(counts[i + 1 :]) * unroll)
        for i, (count, far) in enumerate(zip(counts, source.reach, strict=True))
    ]
    down, right = geo.stride[1] * source.pitch, tile.width * geo.stride[2]

    def body(x: Ptr, w: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
        for u in range(unroll):
            xs = [
                strided(x + (i * down + j * right + u * source.reach[3]), tile.width, geo.stride[2])
                for i, j in product(range(tile.rows), range(tile.vectors))
            ]
            acc = code.body(None if weights is None else w + u * outputs, xs, acc, outputs)
        return acc

    start = start * (tile.rows * tile.vectors)
    return nest(b, levels, corner, weights or corner, start, body)


def strided(x: Ptr, width: int, stride: int) -> Val:
    """Load the `width` elements at x, x + stride, x + 2 stride, ... as a vector, by loads of whole
    vectors and shuffles: `stride` * `width` elements from x on are read, so all must be there."""
    value = x.load(width)
    if width == 1:
        return value
    places = [divmod(i * stride, width) for i in range(width)]
    for v in range(1, stride):
        kept = [(lane if v == 1 else i) if at < v else -1 for i, (at, lane) in enumerate(places)]
        lanes = [
            width + lane if at == v else old for old, (at, lane) in zip(kept, places, strict=True)
        ]
        value = value.shuffle((x + v * width).load(width), lanes)
    return value
