"""Transposed convolution by fewer products: code for sums of inputs (`mix`), for outputs from
products (`unmix`), and for the check whether inputs are of similar size (`are_alike`).

Sums of inputs that differ much round away the smaller ones, and one infinity spreads to many
outputs. So each segment is checked first: no input may be much larger than the geometric mean, over
all pixels that are not 0, of the largest magnitude among the channels of a pixel.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.float_products import LARGE
from tinsmith.kernels.move.strided import emit_fill
from tinsmith.kernels.walk import blocks, run
from tinsmith.kernels.window.geometry import steps
from tinsmith.kernels.window.padded import UNROLLED, each_vector, fill_row, parts_of
from tinsmith.kernels.window.plain import Rows, Segment, strided
from tinsmith.kernels.window.transposed_plan import Few, judged, mixed
from tinsmith.kernels.window.transposed_ways import Way
from tinsmith.kernels.winograd.matrices import floats
from tinsmith.kernels.winograd.outliers import RATIO

DROPPED = 17  # bits of logarithms, so that their sums stay below 2^31


def are_alike(em: Emit, few: Few, at: Segment, space: Ptr) -> Val:
    """An i1: whether the inputs of a segment (and perhaps some beside it) are finite and of similar
    size, so that sums of them lose no accuracy. `space`: workspace, of judged(...)[1] elements."""
    b, source, geo, cut = em.b, em.input(0), at.geo, at.cut
    lanes, space = b.target.lanes, space.cast(I32)
    _, channel, step = steps(source.spec)
    whole, vectors, total = cut.parts == 1, *judged(geo, cut, lanes)
    size = vectors * lanes
    begin, end = [], []
    for o, s, p, extent, length, n in zip(
        at.place, geo.stride, geo.begin, (geo.kernel[0], cut.lines, cut.pitch), geo.size,
        (1, 1, size), strict=True,
    ):  # fmt: skip
        begin.append(b.maximum(b.minimum(o * s - p, length - n), 0))
        end.append(b.maximum(b.minimum(o * s - p + extent, length), begin[-1] + n))
    rows, count = end[1] - begin[1], end[2] - begin[2]
    image = at.image + begin[1] * step[1]
    if whole:  # rows are one behind the other
        rows, count = 1, rows * geo.size[2]
    else:
        image += begin[2]
    emit_fill(b, b.zero(I32), space, 0, total, lanes)

    def line(x: Ptr, to: Ptr) -> None:
        with blocks(b, count, size) as i:
            here, most = (x + i).fixed(), (to + i).fixed()
            for v in range(0, size, lanes):
                bits = (here + v).load(lanes) & 0x7FFFFFFF
                (most + v).store(bits.max((most + v).load(lanes)))

    with b.loop(0, few.inputs) as c, b.loop(begin[0], end[0]) as z:
        plane = (image + c * channel + z * step[0]).cast(I32)
        run(b, 0, rows, lambda y: line(plane + y * step[1], space + y * cut.pitch))
    return _are_alike(b, space, total)


def _are_alike(b: Builder, space: Ptr, total: int) -> Val:
    """The end of `are_alike`: an i1, from the bits of the largest magnitude among the channels of
    each of `total` pixels, at `space`: whether all are below LARGE, and at most about RATIO times
    the geometric mean of those that are not 0."""
    lanes = b.target.lanes
    zero = b.zero(I32.x(lanes))
    with b.loop(0, total, lanes, carry=[zero] * 3) as i:
        most, (top, sums, places) = (space + i.index).load(lanes), i.vars
        counted = (most > 0).select(b.splat(1, I32, lanes), zero)
        i.next([top.max(most), sums + (most >> DROPPED), places + counted])
    top, sums, places = i.out
    top, sums, places = top.reduce("max"), sums.reduce("add"), places.reduce("add")
    limit = sums // places.max(b.const(1, I32)) + (_bits(RATIO) - _bits(1.0) >> DROPPED)
    return ((top >> DROPPED) <= limit) & (top < _bits(LARGE))


def _bits(value: float) -> int:
    """The bits of a positive float32 as an int, which grow nearly as its logarithm does."""
    return int(np.float32(value).view(np.int32))


def mix(
    em: Emit, few: Few, way: Way, at: Segment, first: Val | int, count: Val | int, space: Ptr
) -> Rows:
    """Emit the sequences of a way (its sums of inputs) for `count` channels of a segment from
    channel `first` on, to `space` as [channel][plane][sequence][line][pitch]. Returns them
    as `Rows`."""
    b, (lines, pitch) = em.b, mixed(few.places, few.cut, few.ways, em.target.lanes)
    planes, plane, number = few.places.kernel[0], lines * pitch, len(way.sequences)
    copied = at.rows(em, first, count) if few.cut.copied else None
    if copied is None:
        fill_row(b, em.workspace.cast(F32), few.cut.pitch)
        fill_row(b, space, pitch)
    with b.loop(0, count) as c, b.loop(0, planes) as z:
        to = space + ((c * planes + z) * number) * plane
        if copied is None:
            _mix_rows(em, few, way, at, (first + c, z), to, b.index(first) > 0)
        else:
            _mix_columns(em, few, way, copied, (c, z), to)
    return Rows(space.fixed(), (planes * number * plane, plane, pitch, 1), pitch)


def _mix_rows(
    em: Emit, few: Few, way: Way, at: Segment, plane: tuple[Val, Val], to: Ptr, filled: Val
) -> None:
    """Emit the sequences of `plane` = (channel, kernel plane) for a way along the height. Line y of
    sequence s is the sum, over its terms (i, factor), of factor times input row y * stride + i of
    the segment.

    They go to `to` as [sequence][line][pitch], with zeros for inputs outside the image. `filled`:
    an i1, whether an earlier channel has written the zeros at both ends of lines."""
    b, geo, source, (c, z) = em.b, at.geo, em.input(0), plane
    _, channel, step = steps(source.spec)
    lanes = em.target.lanes
    high, pitch = mixed(few.places, few.cut, few.ways, lanes)
    front, top, first = (o * s - p for o, s, p in zip(at.place, geo.stride, geo.begin, strict=True))
    left, skipped, inside, _ = parts_of(b, first, few.cut.pitch, geo.size[2])
    zeros, image = em.workspace.cast(F32), at.image + c * channel + skipped
    d = b.index(front) + z
    seen = sorted({i for terms in way.sequences for i, _ in terms})
    after = ((0 - inside) + (pitch + lanes - 1)) // lanes * lanes
    with b.loop(0, high) as y:
        rows: dict[int, Ptr] = {}
        for i in seen:
            line = y * geo.stride[1] + top + i
            within = (d >= 0) & (d < geo.size[0]) & (line >= 0) & (line < geo.size[1])
            row = image + d * step[0] + line * step[1]
            rows[i] = row.of(within.select(row.value, zeros.value))
        place = to + y * pitch

        def around() -> None:  # to the next row's inputs, and before its own
            for s in range(len(way.sequences)):
                fill_row(b, place + (s * (high * pitch) + pitch) + (left - after), after)

        b.choose(filled, lambda: None, around)

        def piece(x: Val | int, n: int, mask: Val | None) -> None:
            values = {i: (row + x).load(n, mask) for i, row in rows.items()}
            for s, terms in enumerate(way.sequences):
                total = _sum([(values[i], factor) for i, factor in terms])
                (place + left + s * (high * pitch) + x).store(total, mask)

        each_vector(b, inside, piece, UNROLLED)


def _mix_columns(
    em: Emit, few: Few, way: Way, copied: Rows, plane: tuple[Val, Val], to: Ptr
) -> None:
    """Emit the sequences of `plane` = (channel, depth tap), for a way along the width, from the
    rows that were `copied`, to `to` as [sequence][line][pitch]; a line is one of these rows. Column
    x of sequence s is the sum, over its terms (i, factor), of factor times input column x * step +
    i."""
    b, lanes, step, (c, z) = em.b, em.target.lanes, way.step, plane
    lines, pitch = mixed(few.places, few.cut, few.ways, lanes)
    source = copied.x + c * copied.reach[0] + z * copied.reach[1]
    seen = sorted({i for terms in way.sequences for i, _ in terms})
    with b.loop(0, lines) as y, b.loop(0, pitch, lanes) as x:
        here = (source + y * copied.pitch + x * step).fixed()
        values = {i: strided(here + i, lanes, step) for i in seen}
        place = (to + y * pitch + x).fixed()
        for s, terms in enumerate(way.sequences):
            total = _sum([(values[i], factor) for i, factor in terms])
            (place + s * (lines * pitch)).store(total)


def unmix(b: Builder, few: Few, way: Way, source: Ptr) -> None:
    """Emit the change of products into outputs, in place at `source`: lines [product of F(m,
    r)][phase of the last axis][place] become lines [which of the m places computed as one][phase of
    the last axis][place]."""
    across, pitch = few.phases[2], few.pitch
    results = [[(i, float(v)) for i, v in enumerate(row) if v] for row in floats(way.algorithm.at)]

    def phase(p: Val | int) -> None:
        line = (source + p * pitch).fixed()

        def piece(x: Val | int, lanes: int, mask: Val | None) -> None:
            far = across * pitch
            products = [(line + (i * far) + x).load(lanes, mask) for i in range(way.products)]
            for i, terms in enumerate(results):
                (line + (i * far) + x).store(_sum([(products[k], v) for k, v in terms]), mask)

        b.vectors(pitch, b.target.lanes, piece)

    run(b, 0, across, phase)


def _sum(terms: list[tuple[Val, float]]) -> Val:
    """The sum of the `terms` (value, factor), beginning with a positive factor if there is one."""
    first, *rest = sorted(terms, key=lambda t: t[1] < 0)

    def add(total: Val, term: tuple[Val, float]) -> Val:
        value, factor = term
        if abs(factor) == 1.0:
            return total + value if factor > 0 else total - value
        return value.fma(factor, total)

    return reduce(add, rest, first[0] if first[1] == 1.0 else first[0] * first[1])
