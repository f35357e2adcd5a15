"""Transposed convolution to few channels, on plain data: vectors run along the rows of the input.

Blocks of channels would be mostly padding. A tile adds up some columns (see `transposed_plan`) at
neighbouring places; the sums go to a buffer, which whole rows of outputs are made of.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import product
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
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
from tinsmith.kernels.moderate import are_finite
from tinsmith.kernels.move.strided import emit_copy, plan_copy
from tinsmith.kernels.walk import blocks, run
from tinsmith.kernels.window.contract import Level, nest
from tinsmith.kernels.window.plain import Rows, Segment, each_segment
from tinsmith.kernels.window.transposed import axes_of
from tinsmith.kernels.window.transposed_plan import Few, Kind, Tile, plan_few
from tinsmith.records import dataclass

MOST_OUTPUTS = 8  # channels of a group
EFFICIENCY = 0.9


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
    few = plan_few(target, site.threads, axes, groups)
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
                    _panels(em, few, kind, Part(at, rows, weights, count), r, buffer)

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


@dataclass(frozen=True)
class Part:
    """`count` input channels of a segment: their rows, and where their weights, of all kinds of
    panels, begin."""

    at: Segment
    source: Rows
    weights: Ptr
    count: Val | int


def _panels(em: Emit, few: Few, kind: Kind, part: Part, r: Val | int, buffer: Ptr) -> None:
    """The products of a part and all panels of a kind, into the buffer, for a tile's rows from `r`
    on."""
    b, tile, g = em.b, few.tile, part.at.g
    weights, depth = part.weights + part.count * kind.weights, part.count * kind.products
    table, bias = em.packed[2] + kind.first, em.packed[1] + g * few.columns + kind.first
    grid = list(product(range(tile.rows), range(tile.vectors), range(kind.columns)))

    def panel(k: Val | int) -> None:
        w, first = (weights + k * depth).fixed(), k * kind.columns
        lines = [buffer + r * few.row + (table + first + q).load() for q in range(kind.columns)]
        with _steps(em, few, part.at.wide, tile.vectors * tile.width) as c:
            corner = (part.source.x + r * part.source.pitch + c).fixed()
            to = [lines[q] + c + (i * few.row + j * tile.width) for i, j, q in grid]
            if few.adds:
                start = [place.load(tile.width) for place in to]
            else:
                start = [(bias + first + q).splat(tile.width) for _, _, q in grid]
            done = _sums(em, tile, kind, part, corner, w, start)
            for place, value in zip(to, done, strict=True):
                place.store(value)

    run(b, 0, len(kind.panels), panel)


def _sums(
    em: Emit, tile: Tile, kind: Kind, part: Part, corner: Ptr, weights: Ptr, start: list[Val]
) -> list[Val]:
    """The sums of a panel's columns at the places of a tile, columns innermost."""
    source, columns = part.source, kind.columns
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

    levels = [Level(part.count, source.reach[0], kind.products)]
    return nest(em.b, levels, corner, weights, start, body)


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
