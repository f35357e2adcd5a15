"""Windows on plain data: vectors run along the rows of the image.

A segment of input rows is copied into a padded workspace (or read in place where the windows never
leave the image); a tile is some rows of neighbouring vectors for a panel of output channels. The
last tile of a row, and the last rows of a segment, overlap those before: nothing is masked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.target import Target, overlap
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Site, Skip, one_phase
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.window.contract import Level, nest
from tinsmith.kernels.window.direct import traffic
from tinsmith.kernels.window.geometry import Geometry, steps
from tinsmith.kernels.window.padded import copy_rows
from tinsmith.kernels.window.tiles import Pieces

WORKSPACE = 32 << 10  # bytes that the input of a segment should not exceed
LONGEST = 2048  # outputs of a row that are one segment's
MOST_STRIDE = 4  # input vectors that the lanes of one come from
MOST_UNROLLED = 5  # taps of a kernel row in one loop body
EFFICIENCY = 0.9


@dataclass(frozen=True)
class Segments:
    """How an output plane is cut: `bands` of rows times `parts` of columns, all of nearly one size;
    `lines` and `pitch` are the rows, and their distance, of the largest one's input."""

    bands: int
    parts: int
    rows: int  # of the smallest segment, as `columns`
    columns: int
    lines: int
    pitch: int
    copied: bool

    def plane(self) -> int:
        return self.lines * self.pitch


@dataclass(frozen=True)
class Tile:
    """`rows` of `vectors` neighbouring vectors of `width`; `cost` in products of whole vectors for
    one tap of one input channel and one panel, over a plane."""

    rows: int
    vectors: int
    width: int
    cost: float


def segments(geo: Geometry, channels: int) -> Segments:
    """The cut of an output plane whose input is `channels` deep, or Skip."""
    if geo.stride[2] > MOST_STRIDE:
        raise Skip(f"a stride of {geo.stride[2]} leaves too little of a vector")
    copied = any(geo.begin) or any(geo.after) or geo.stride[2] > 1
    parts = -(-geo.out[2] // LONGEST)
    wide = -(-geo.out[2] // parts)
    pitch = (wide - 1) * geo.stride[2] + (geo.kernel[2] - 1) * geo.dilation[2] + 1
    line = 4 * channels * geo.kernel[0] * pitch
    span = (geo.kernel[1] - 1) * geo.dilation[1] + 1
    rows = max(1, (WORKSPACE // line - span) // geo.stride[1] + 1)
    bands = min(geo.out[1], max(1, -(-geo.out[1] // rows)))
    high = -(-geo.out[1] // bands)
    lines = (high - 1) * geo.stride[1] + span
    return Segments(
        bands, parts, geo.out[1] // bands, geo.out[2] // parts, lines, pitch, copied
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def tile_of(target: Target, geo: Geometry, cut: Segments, outputs: int, slots: float) -> Tile:
    """The best tile of a panel of `outputs` channels; `slots` are those of one product."""
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
    """What is computed of one input plane, or of those of a group: start, taps and end of a tile.

    body    one more tap: (weights at it, its vectors of the input, accumulators) -> accumulators
    start   the accumulators of a panel: (its first output channel, outputs) -> one each
    finish  the result of an accumulator: (value, (d, r, c)) -> value
    """

    body: Callable[[Ptr | None, list[Val], list[Val], int], list[Val]]
    start: Callable[[Val | int, int], list[Val]]
    finish: Callable[[Val, tuple[Val | int, Val | int, Val | int]], Val]


def plain_choice(
    site: Site,
    geo: Geometry,
    plan: Segments,
    tile: Tile,
    planes: int,
    panels: Pieces,
    inputs: int,
    packed: tuple[Packed, ...],
    work: Callable[[Emit, int], Sum],
    *,
    slots: float,
    fill: float,
) -> Choice:
    copies = planes * plan.bands * plan.parts * inputs * geo.kernel[0] * plan.plane()
    time = site.target.time(2.0 * site.target.lanes * slots, 0, EFFICIENCY)
    time += site.target.time(0, 8.0 * copies if plan.copied else 0.0)
    reads: list[Layout | None] = [PLAIN, *(None for _ in site.inputs[1:])]
    return Choice(
        cost=overlap(time, site.target.time(0, traffic(geo, 0))),
        reads=site.reads(reads, PLAIN),
        writes=(PLAIN,),
        phases=one_phase(
            planes * plan.bands * plan.parts,
            lambda em: _emit(em, geo, plan, tile, panels, inputs, work(em, tile.width), fill),
        ),
        packed=packed,
        workspace=4 * inputs * geo.kernel[0] * plan.plane() if plan.copied else 0,
        detail=f"tile {tile.rows}x{tile.vectors} vectors of {tile.width}",
    )


def _part(b: Builder, index: Val | int, length: int, count: int) -> tuple[Val | int, Val | int]:
    """Where part number `index` of `count` begins, and how long it is."""
    if count == 1:
        return 0, length
    first = index * length // count
    return first, (b.index(index) + 1) * length // count - first


def _emit(
    em: Emit,
    geo: Geometry,
    plan: Segments,
    tile: Tile,
    panels: Pieces,
    inputs: int,
    work: Sum,
    fill: float,
) -> None:
    """Tiles are (batch, group, output plane, band, part), the part innermost."""
    b, source = em.b, em.ins[0]
    assert source is not None
    batch, channel, step = steps(source.spec, geo.rank)
    groups, outputs = geo.channels // inputs, sum(n * size for n, size in panels)
    with b.loop(em.begin, em.end) as t:
        part, rest = t % plan.parts, t // plan.parts
        band, rest = rest % plan.bands, rest // plan.bands
        d, rest = rest % geo.out[0], rest // geo.out[0]
        g, n = rest % groups, rest // groups
        first, high = _part(b, band, geo.out[1], plan.bands)
        left, wide = _part(b, part, geo.out[2], plan.parts)
        image = source.pointer + n * batch + g * (inputs * channel)
        corner = [
            o * s - p for o, s, p in zip((d, first, left), geo.stride, geo.begin, strict=True)
        ]
        if plan.copied:
            x, flat = em.workspace.cast(F32), plan.plane()
            copy_rows(
                b, image, x, geo, corner, (plan.lines, plan.pitch), inputs, channel, step, fill
            )
            reach = (geo.kernel[0] * flat, flat, geo.dilation[1] * plan.pitch, geo.dilation[2])
            pitch = plan.pitch
        else:
            x = image + corner[0] * step[0] + corner[1] * step[1] + corner[2]
            reach = (channel, *(k * s for k, s in zip(geo.dilation, step, strict=True)))
            pitch = step[1]
        base = (n, g * outputs, d, first, left)
        _panels(em, geo, tile, panels, inputs, work, x.fixed(), reach, pitch, base, (high, wide))


def _panels(
    em: Emit,
    geo: Geometry,
    tile: Tile,
    panels: Pieces,
    inputs: int,
    work: Sum,
    x: Ptr,
    reach: Sequence[int],
    pitch: int,
    base: tuple[Val | int, ...],
    extent: tuple[Val | int, Val | int],
) -> None:
    """All panels of one segment, from its input at `x`; `base` is its first output."""
    n, channel, d, first, left = base
    depth = inputs * geo.taps
    done = 0
    for count, size in panels:
        for _ in range(count):
            weights = None
            if em.site.has(1):
                weights = (em.packed[0] + channel * depth + done * depth).fixed()
            start = work.start(channel + done, size)

            def at(
                r: Val | int,
                c: Val | int,
                weights: Ptr | None = weights,
                start: list[Val] = start,
                size: int = size,
                done: int = done,
            ) -> None:
                corner = (x + r * (geo.stride[1] * pitch) + c * geo.stride[2]).fixed()
                sums = _sums(em, geo, tile, inputs, work, corner, weights, start, reach, pitch)
                for (i, j), k in product(
                    product(range(tile.rows), range(tile.vectors)), range(size)
                ):
                    value = sums[(i * tile.vectors + j) * size + k]
                    place = (d, first + (r + i), left + (c + j * tile.width))
                    index = geo.place((n, channel + (done + k), *place))
                    em.finish(work.finish(value, place), index)

            _walk(em.b, extent[0], tile.rows, lambda r, f=at: _walk(
                em.b, extent[1], tile.vectors * tile.width, lambda c: f(r, c)
            ))  # fmt: skip
            done += size


def _walk(b: Builder, length: Val | int, size: int, body: Callable[[Val | int], None]) -> None:
    """Pieces of one size over `length`, which is no less; the last may overlap the one before."""
    if length == size:
        body(0)
        return
    with b.loop(0, (length + (size - 1)) // size) as i:
        body(b.minimum(i * size, length - size))


def _sums(
    em: Emit,
    geo: Geometry,
    tile: Tile,
    inputs: int,
    work: Sum,
    corner: Ptr,
    weights: Ptr | None,
    start: list[Val],
    reach: Sequence[int],
    pitch: int,
) -> list[Val]:
    """The sums of one tile, output channels innermost."""
    outputs, across = len(start), geo.kernel[2]
    row = 0 if weights is None else outputs
    unroll = max(u for u in range(1, MOST_UNROLLED + 1) if across % u == 0)
    counts = (inputs, *geo.kernel[:2], across // unroll)
    levels = [
        Level(count, far * (unroll if i == 3 else 1), row * prod(counts[i + 1 :]) * unroll)
        for i, (count, far) in enumerate(zip(counts, reach, strict=True))
    ]

    def body(x: Ptr, w: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
        for u in range(unroll):
            xs = [
                _strided(x + (i * geo.stride[1] * pitch + j * tile.width * geo.stride[2]
                              + u * reach[3]), tile.width, geo.stride[2])
                for i, j in product(range(tile.rows), range(tile.vectors))
            ]  # fmt: skip
            acc = work.body(None if weights is None else w + u * outputs, xs, acc, outputs)
        return acc

    return nest(em.b, levels, corner, weights or corner, start * (tile.rows * tile.vectors), body)


def _strided(x: Ptr, width: int, stride: int) -> Val:
    """`width` elements, `stride` apart, from whole vectors; the last one is read to its end."""
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
