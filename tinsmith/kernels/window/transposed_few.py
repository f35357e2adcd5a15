"""Transposed convolution to few channels, on plain data: a vector is neighbouring pixels of a row.

Blocks of so few channels would be mostly padding. A tile computes some columns at neighbouring
places (`transposed_ways` explains these words) and stores them in a buffer. From the buffer rows of
outputs are put together, which get bias and epilogue. `few` is the plan, `at` the segment of which
a function emits code.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import product
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import FLOAT32
from tinsmith.codegen.target import overlap
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
from tinsmith.kernels.float_products import are_finite, are_moderate
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.move.strided import emit_copy, emit_fill, plan_copy
from tinsmith.kernels.walk import blocks, run
from tinsmith.kernels.window.contract import Level, nest
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.window.plain import Rows, Segment, each_segment
from tinsmith.kernels.window.transposed import axes_of
from tinsmith.kernels.window.transposed_mix import are_alike, mix, unmix
from tinsmith.kernels.window.transposed_plan import Few, Tile, plan_few, seconds
from tinsmith.kernels.window.transposed_ways import Kind, Terms, Way
from tinsmith.kernels.window.weights import padded_bias
from tinsmith.records import dataclass

MOST_OUTPUTS = 8  # channels of a group


@kernel("ConvTranspose", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_transposed_few(site: Site) -> Choice:
    """Transposed convolution to at most 8 channels a group, by vectors of pixels of plain data."""
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    axes, groups, target = axes_of(site), site.attr("group"), site.target
    if w.shape[1] > MOST_OUTPUTS:
        raise Skip(f"{w.shape[1]} channels of a group are enough for vectors of channels")
    if not are_finite(w):
        raise Skip("a weight is infinite or NaN, and zeros around the image would meet it")
    precision = site.precision if are_moderate(w) else "exact"
    few = plan_few(target, site.threads, axes, groups, precision)
    places, pieces, tile = few.places, few.cut, few.tile
    tiles = groups * places.batch * places.out[0] * pieces.bands * pieces.parts
    moved = site.input(0).type.nbytes + site.out.type.nbytes
    packed = [Packed("bias", padded_bias, (bias, axes.geometry.out_channels))]
    for number in range(len(few.ways)):
        packed.append(Packed("weights", _pack, (w, few, number), fits=are_moderate))
        packed.append(Packed("columns", _table, (few, number)))
    fewer = f", {few.ways[0].algorithm.name}" if few.saves else ""
    return Choice(
        cost=overlap(seconds(target, few), target.time(0, moved)),
        reads=site.reads_first(PLAIN, PLAIN),
        writes=(PLAIN,),
        phases=one_phase(tiles, lambda em: _emit(em, few)),
        packed=tuple(packed),
        workspace=4 * sum(few.sizes(target.lanes)),
        detail=f"tile {tile.rows}x{tile.vectors} vectors of {tile.width}, "
        f"{len(few.ways[0].columns)} columns{fewer}",
    )


# ---- packed arrays


def _pack(w: np.ndarray, few: Few, number: int) -> np.ndarray:
    """Pack weights [C, outputs, *taps] for way number `number`, flat, as [group][part of the input
    channels][kind][panel][input channel][step][column that sees it]."""
    flat, kernel = w.reshape(-1, few.inputs, prod(w.shape[1:])), few.axes.geometry.kernel
    panels = []
    for kind in few.tile.kinds[number]:
        for panel in kind.panels:
            of = [column.weights(kernel) for column in panel]
            panels.append(_weights(flat, [of[k][o] for o, seen in kind.steps for k in seen]))
    return np.concatenate(
        [
            panel[g, first : first + few.depth].reshape(-1)
            for g in range(len(flat))
            for first in range(0, few.inputs, few.depth)
            for panel in panels
        ]
    )


def _weights(flat: np.ndarray, sums: list[Terms]) -> np.ndarray:
    """Sums of weights, [group, input channel, number of the sum], each rounded once. `flat` is
    [group, input channel, tap of each output]; `sums` has the terms of each sum."""
    total = np.zeros((*flat.shape[:2], len(sums)))
    for j in range(max(map(len, sums), default=0)):
        terms = [terms[j] if j < len(terms) else (0, 0.0) for terms in sums]
        total += flat[..., [tap for tap, _ in terms]] * np.array([v for _, v in terms])
    return total.astype(flat.dtype)


def _table(few: Few, number: int) -> np.ndarray:
    """Where each column of each panel of way number `number` begins in a row of the buffer, in
    elements: int64, in the order of the kinds and panels."""
    numbers = [c.number for k in few.tile.kinds[number] for p in k.panels for c in p]
    return np.array(numbers, np.int64) * few.pitch


# ---- the code


def _emit(em: Emit, few: Few) -> None:
    """Emit the kernel; its tiles are those of `each_segment`."""

    def body(at: Segment) -> None:
        if few.saves:
            space = em.workspace.cast(F32) + few.sizes(em.target.lanes)[0]
            alike = are_alike(em, few, at, space)
            em.b.choose(alike, lambda: _segment(em, few, 0, at), lambda: _segment(em, few, 1, at))
        else:
            _segment(em, few, 0, at)

    each_segment(em, few.places, few.cut, few.inputs, body)


def _segment(em: Emit, few: Few, number: int, at: Segment) -> None:
    """Emit the outputs of one segment, computed by way number `number` of the plan."""
    b, (copied, sequences, sums, _) = em.b, few.sizes(em.target.lanes)
    way, kinds, tile = few.ways[number], few.tile.kinds[number], few.tile
    space = em.workspace.cast(F32) + copied
    buffer = space + sequences
    products = sum(len(k.panels) * k.products for k in kinds)  # of an input channel

    ahead = few.depth if few.reads_inside and few.depth < few.inputs else 0

    def part(k: Val | int) -> None:
        first = k * few.depth
        count = b.minimum(few.depth, few.inputs - first)
        if few.saves:
            rows = mix(em, few, way, at, first, count, space)
        else:
            rows = _rows(em, few, at, first, count)
        weights = em.packed[1 + 2 * number] + (at.g * few.inputs + first) * products
        with _steps(em, few, at.high, tile.rows) as r:
            for kind in kinds:
                table = em.packed[2 + 2 * number] + kind.first
                _panels(em, few, kind, Part(at, rows, weights, count, table, ahead), r, buffer)

    if few.depth < few.inputs:
        emit_fill(b, b.zero(F32), buffer, 0, sums, em.target.lanes)
        if not few.saves:  # (what is around the image stays there)
            emit_fill(b, b.zero(F32), em.workspace.cast(F32), 0, copied, em.target.lanes)
    run(b, 0, -(-few.inputs // few.depth), part)
    line = buffer + sums
    run(b, 0, at.high, lambda r: _finish(em, few, way, at, r, buffer + r * few.row, line))


def _rows(em: Emit, few: Few, at: Segment, first: Val | int, count: Val | int) -> Rows:
    """The input of `count` channels of a segment's group, from channel `first` on, for plans
    without `mix`. Emits the copy to the workspace, if the plan copies. Where the input is one long
    row (`Few.reads_inside`), segments that need no padding are not copied, but read in place."""
    b, geo, cut, source = em.b, few.places, few.cut, em.input(0)
    rows = at.rows if not few.cut.copied or few.depth == few.inputs else at.rows_inside
    if not few.reads_inside:
        return rows(em, first, count)
    _, channel, _ = steps(source.spec)
    start = b.index(at.place[2] - geo.begin[2])
    inner = (start >= 0) & (start + (few.pitch + geo.kernel[2] - 1) <= geo.size[2])

    def copy() -> None:
        rows(em, first, count)

    b.choose(inner, lambda: None, copy)
    image, copied = at.image + first * channel + start, em.workspace.cast(F32)
    x = image.of(inner.select(image.value, copied.value))
    apart = inner.select(b.index(channel), b.index(cut.plane()))
    return Rows(x, (apart, 0, 0, 1), 0)


def _steps(em: Emit, few: Few, count: Val | int, size: int) -> AbstractContextManager[Val | int]:
    """A loop over tiles of `size` along an axis of `count`, as a context with the start of each.
    The last tile overlaps the one before, or, with `Few.adds`, reaches beyond the end."""
    return em.b.loop(0, count, size) if few.adds else blocks(em.b, count, size)


@dataclass(frozen=True)
class Part:
    """Some input channels of the segment `at`, which are multiplied together.

    source   their input rows
    weights  their packed weights, for all kinds of panels
    count    how many channels these are
    table    the address of the table of a kind of panels: where its columns begin in a row of the
             buffer
    ahead    how many channels ahead rows are prefetched; 0: they are not
    """

    at: Segment
    source: Rows
    weights: Ptr
    count: Val | int
    table: Ptr
    ahead: int


def _panels(em: Emit, few: Few, kind: Kind, part: Part, r: Val | int, buffer: Ptr) -> None:
    """Emit the products of a part by all panels of a kind, for the tiles that begin with row `r`.
    They are added to the buffer if channels come in several parts, else stored there."""
    b, tile = em.b, few.tile
    weights, depth = part.weights + part.count * kind.weights, part.count * kind.products
    grid = list(product(range(tile.rows), range(tile.vectors), range(kind.columns)))

    def panel(k: Val | int) -> None:
        w, first = (weights + k * depth).fixed(), k * kind.columns
        lines = [
            buffer + r * few.row + (part.table + first + q).load() for q in range(kind.columns)
        ]
        with _steps(em, few, part.at.wide, tile.vectors * tile.width) as c:
            corner = (part.source.x + r * part.source.pitch + c).fixed()
            to = [lines[q] + c + (i * few.row + j * tile.width) for i, j, q in grid]
            if few.depth < few.inputs:
                start = [place.load(tile.width) for place in to]
            else:
                start = [b.zero(F32.x(tile.width))] * len(grid)
            done = _sums(em, tile, kind, part, corner, w, start)
            for place, value in zip(to, done, strict=True):
                place.store(value)

    run(b, 0, len(kind.panels), panel)


def _sums(
    em: Emit, tile: Tile, kind: Kind, part: Part, corner: Ptr, weights: Ptr, start: list[Val]
) -> list[Val]:
    """Emit the sums of a tile for one panel; returns [row][vector][column], added to `start`.
    `corner` is the address of the tile's first input, `weights` that of the panel's weights."""
    source, columns = part.source, kind.columns
    grid = product(range(tile.rows), range(tile.vectors))
    far = [i * source.pitch + j * tile.width for i, j in grid]
    if not kind.products:
        return start

    def body(x: Ptr, w: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
        sums, done = list(acc), 0
        for line in range(0, tile.vectors * tile.width if part.ahead else 0, LINE):
            (x + line + source.reach[0] * part.ahead).prefetch(locality=2)
        for offset, seen in kind.steps:
            em.b.barrier()  # else LLVM loads for all steps first, and runs out of registers
            here = sum(o * step for o, step in zip(offset, source.reach[1:], strict=True))
            xs = [(x + (here + f)).load(tile.width) for f in far]
            for k in seen:
                factor = (w + done).splat(tile.width)
                for s, value in enumerate(xs):
                    sums[s * columns + k] = FLOAT32.step(sums[s * columns + k], value, factor)
                done += 1
        return sums

    levels = [Level(part.count, source.reach[0], kind.products)]
    return nest(em.b, levels, corner, weights, start, body)


def _finish(
    em: Emit, few: Few, way: Way, at: Segment, r: Val | int, buffer: Ptr, line: Ptr
) -> None:
    """Emit the outputs of row `r` of a segment. From `buffer`, where the columns of that row begin,
    products become outputs (`unmix`), phases of the last axis are interleaved in `line`, and
    results are stored with bias and epilogue."""
    b, geo, (planes, rows, across), pitch = em.b, few.axes.geometry, few.phases, few.pitch
    (d, first, left), (_, high, wide) = at.place, few.step
    whole = across * wide
    turn = plan_copy((pitch, whole), (1, pitch), (whole, 1))
    count = b.minimum(at.wide * whole, (0 - left * whole) + geo.out[2])

    def row(k: Val | int) -> None:
        source = (buffer + k * (way.products * across * pitch)).fixed()
        if few.saves:
            unmix(b, few, way, source)
        channel = at.g * few.outputs + k // (planes * rows)
        bias = (em.packed[0] + channel).load()
        z = d * geo.stride[0] + k // rows % planes

        def place(i: Val | int) -> None:
            y = ((first + r) * high + i) * geo.stride[1] + k % rows
            outputs = source + i * (across * pitch)

            def store() -> None:
                if whole > 1:
                    emit_copy(b, turn, outputs, line, 0, turn.tiles)
                values = line if whole > 1 else outputs

                def piece(x: Val | int, lanes: int, mask: Val | None) -> None:
                    index = geo.place((at.n, channel, z, y, left * whole + x))
                    em.finish((values + x).load(lanes, mask) + bias.splat(lanes), index, mask)

                b.vectors(count, em.target.lanes, piece)

            if geo.out[0] % planes or geo.out[1] % (rows * high):
                with b.when((b.index(z) < geo.out[0]) & (b.index(y) < geo.out[1])):
                    store()
            else:
                store()

        run(b, 0, high, place)

    run(b, 0, few.outputs * planes * rows, row)
