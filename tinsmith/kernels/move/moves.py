"""Operators that move elements, as strided copies: Transpose, Slice, Expand, Tile, Concat, Split,
Pad, Gather, DepthToSpace, SpaceToDepth and ChannelShuffle.

All tensors are plain, with elements of 1, 2, 4 or 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site, Skip, Tier, kernel, packed_table
from tinsmith.kernels.layout import PLAIN, around, lanes_of, plain_strides
from tinsmith.kernels.move.computed import FAULT
from tinsmith.kernels.move.strided import Copy, copy_row, emit_copy, emit_fill, plan_copy, words
from tinsmith.kernels.resize import choices_for
from tinsmith.ops._move import EVEN, Move, Part, count_of, moves_of
from tinsmith.ops.resize import Table
from tinsmith.sizes import Number, largest, same, smallest, typical

Copied = tuple[Copy, int, int, int]
"""(copy, which, source offset, target offset): `which` is the number of the operand that the copy
reads, or, if there are several outputs, of the output that it writes. Offsets are those of the
copy's first element, in elements."""


def _choice(
    site: Site, parts: Sequence[Copied], reads: Container[int], extra: tuple[Phase, ...]
) -> Choice:
    """A choice whose last phase makes the copies `parts`: to output 0 from some operands (Concat),
    or, if there are several outputs, to these from operand 0 (Split). `reads`: the numbers of the
    operands that are read at run time; `extra`: the phases before."""
    into_one = len(site.outputs) == 1
    bases = [0, *accumulate(c.tiles for c, *_ in parts)]

    def emit(em: Emit) -> None:
        for (copy, which, src, dst), base in zip(parts, bases, strict=False):
            view = em.input(which if into_one else 0)
            out = em.outs[0 if into_one else which]
            if len(parts) == 1:
                emit_copy(em.b, copy, view.pointer + src, out.pointer + dst, em.begin, em.end)
                continue
            lo = em.b.maximum(em.begin, base)
            hi = em.b.minimum(em.end, base + copy.tiles)
            lo, hi = em.b.index(lo) - base, em.b.index(hi) - base
            emit_copy(em.b, copy, view.pointer + src, out.pointer + dst, lo, hi)

    wanted = tuple(PLAIN if i in reads else None for i in range(len(site.inputs)))
    elements = typical(sum(c.elements for c, *_ in parts))
    slow = max(
        (1.5 if c.columns is not None else 1.0 if c.axes[-1].src in (0, 1) else 8.0)
        for c, *_ in parts
    )
    cost = 1e-6 + slow * site.target.time(0, 2 * elements * site.input(0).dtype.itemsize)
    return Choice(cost, wanted, (PLAIN,) * len(site.outputs), (*extra, Phase(bases[-1], emit)))


def moved(site: Site) -> tuple[Move, ...]:
    """The `Move` of each output: where in the inputs its elements lie. Raises Skip if only the run
    tells it, or for an epilogue."""
    site.need_no_epilogue("a copy has no epilogue")
    assert site.anchor is not None
    moves = [m for m in moves_of(site.anchor) if m is not None]
    if len(moves) < len(site.outputs):
        raise Skip("which elements go where is known only when the model runs")
    return tuple(moves)


def _part(part: Part, move: Move, at: int) -> tuple[Copy, int, int]:
    """The copy that makes one part of the result of `move`, without places outside the input
    (padding), and the offsets of its first element in the input and in the result. `at`: where
    the part begins on the axis along which parts are joined. Raises Skip if places step unevenly,
    or only padding remains."""
    inside: list[tuple[Number, Number]] = []
    src, first, steps = [], 0, plain_strides(part.dims)
    for a, count in zip(part.axes, part.box, strict=True):
        if a.places is not None and not isinstance(a.places, EVEN):
            raise Skip("the places are no even steps")
        size, step = (1, 0) if a.axis is None else (part.dims[a.axis], steps[a.axis])
        lo, hi, start, stride = 0, count, 0, 1
        if a.places is not None and a.axis is not None:
            start, stride, hi = a.places.start, a.places.step, count_of(a.places)
        if move.fill is not None:
            lo, hi = largest(-start, 0), smallest(hi, size - start)
            if hi <= lo:
                raise Skip("nothing of the input remains")
        inside.append((lo, hi))
        first += (start + lo * stride) * step
        src.append(stride * step)
    joins = len(move.parts) > 1 or move.fill is not None
    dst = plain_strides(move.dims if joins else part.box)
    place = sum(lo * s for (lo, _), s in zip(inside, dst, strict=True))
    if len(move.parts) > 1:
        place += at * dst[move.axis]
    return plan_copy([hi - lo for lo, hi in inside], src, dst), first, place


def copies(site: Site) -> Choice:
    """A strided copy for each part of the result, transposed in registers where that is better.

    That is where source and target are contiguous along different axes. If parts leave gaps (Pad),
    a phase fills the output first."""
    parts: list[Copied] = []
    moves = moved(site)
    for i, move in enumerate(moves):
        at = 0
        for part in move.parts:
            if not same(prod(part.box), 0) or len(move.parts) == 1:
                copy, first, place = _part(part, move, at)
                parts.append((copy, part.source if len(moves) == 1 else i, first, place))
            at += part.box[move.axis]
    extra = () if moves[0].fill is None else (_filled(site, moves[0].fill),)
    return _choice(site, parts, reads={p.source for m in moves for p in m.parts}, extra=extra)


def _filled(site: Site, fill: np.ndarray) -> Phase:
    """A phase that fills the whole output with the element `fill`."""
    total, chunk, dtype = site.out.type.size, 4096, site.out.dtype
    word = int(np.asarray(fill, dtype).reshape(1).view(f"u{dtype.itemsize}")[0])

    def emit(em: Emit) -> None:
        b, out = em.b, words(em.outs[0].pointer)
        end = b.minimum(b.index(em.end) * chunk, total)
        begin, lanes = b.index(em.begin) * chunk, lanes_of(em.target, dtype.itemsize)
        emit_fill(b, b.const(word, out.elem), out, begin, end, lanes)

    return Phase(-(-total // chunk), emit)


kernel("Pad", Tier.VECTOR, name="pad_constant")(copies)
for _op in (
    "Transpose", "Slice", "Expand", "Tile", "Concat", "Split", "DepthToSpace", "SpaceToDepth",
    "ChannelShuffle",
):  # fmt: skip
    kernel(_op, Tier.VECTOR, name=f"{_op.lower()}_strided")(copies)


@kernel("Pad", Tier.VECTOR)
def pad_indexed(site: Site) -> list[Choice]:
    """Reflected, repeated and wrapped edges, by a table of places for each axis."""
    if (mode := site.attr("mode")) == "constant":
        raise Skip("the pads are constants")
    axes = moved(site)[0].parts[0].axes
    cut = [(k, np.asarray(a.places)) for k, a in enumerate(axes) if a.places is not None]
    tables = [Table(k, at[:, None], None, np.zeros(len(at), bool)) for k, at in cut]
    return choices_for(site, tables, mode)


def _gather(
    site: Site, axis: int, count: int, offset: Callable[[Emit, Val | int], Val], **choice: Any
) -> Choice:
    """The choice for a gather of `count` indices along an axis. For each of them, and each
    index of the axes before, the contiguous elements of the axes behind, a row, are copied.
    `offset(em, k)` emits how many elements the row of index number k lies behind that of index 0.
    `choice`: fields of the Choice, and `each`, the seconds of a row besides those of its bytes."""
    x, y = site.input(0), site.out
    outer, extent, inner = around(x.dims, axis)

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as tile:
            o, k = tile // count, tile % count
            at = offset(em, k)
            x_row = source.pointer + o * (extent * inner) + at
            copy_row(em.b, inner, x_row, em.outs[0].pointer + tile * inner)

    each = choice.pop("each")
    cost = 1e-6 + site.target.time(0, 2 * y.type.nbytes) + typical(outer * count) * each
    return Choice(cost, writes=(PLAIN,), phases=(Phase(outer * count, emit),), **choice)


@kernel("Gather", Tier.VECTOR)
def gather_constant(site: Site) -> Choice:
    """Rows at constant indices: their offsets are a table.

    Where that takes all of the input in order, or is no gather along one axis: strided copies."""
    x = site.input(0)
    if site.input(1).const is None:
        raise Skip("the indices are computed: one out of range could not be reported")
    cut = moved(site)[0].parts[0].cut(x.dims)
    if cut is None or cut[1] is None:
        return copies(site)
    axis, indices = cut
    offsets = np.asarray(indices) * prod(x.dims[axis + 1 :])
    return _gather(
        site, axis, len(indices), lambda em, k: (em.packed[0] + k).load(), each=2e-9,
        reads=(PLAIN, None), packed=(packed_table("offsets", offsets),),
    )  # fmt: skip


@kernel("Gather", Tier.VECTOR)
def gather_rows(site: Site) -> Choice:
    """Rows at computed indices, each checked against the extent.

    One out of range is a fault. A row is all elements behind the axis."""
    x, indices = site.input(0), site.input(1)
    if indices.const is not None:
        raise Skip("the indices are constant")
    if indices.dtype.kind not in "iu":
        raise Skip(f"the indices are {indices.dtype.name}")
    axis = site.attr("axis")
    _, extent, inner = around(x.dims, axis)

    def offset(em: Emit, k: Val | int) -> Val:
        return em.place(em.input(1).pointer + k, extent) * inner

    return _gather(
        site, axis, indices.type.size, offset, each=4e-9, reads=(PLAIN, PLAIN), scratch=64,
        detail=f"rows of {inner}", fault=FAULT.format(extent),
    )  # fmt: skip
