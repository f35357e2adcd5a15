"""Softmax and log-softmax, along the last axis or across vectors of the inner ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.conditions import by_formula
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, View, kernel
from tinsmith.kernels.fold import LARGEST, SUM, Remembered, each_part, fold_row, is_short, keep
from tinsmith.kernels.layout import Around, around, block_of
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.walk import (
    Blocks,
    Index,
    Part,
    Position,
    each_line,
    finish_run,
    shifted,
    shifted_to,
)
from tinsmith.sizes import typical

FLOPS = 30.0
"""Operations for one element of a softmax or log-softmax, with one exponential (estimated)."""
VECTORS = 4
"""Neighbouring vectors that are computed side by side, if half of L1 holds their columns, so that
their exponentials hide each other's latency (estimated)."""


def _choice(site: Site, log: bool) -> Choice:
    dims = site.need_same_shape()
    axis = site.attr("axis") % len(dims)
    split, lanes = around(dims, axis), block_of(site.target)
    size = typical(prod(dims))
    cost = site.target.time(FLOPS * size, 8.0 * size, 0.5) + 1e-7
    if split.inner == 1:
        units, emit = split.outer, partial(_row, axis=axis, n=split.n, log=log)
        kept = -(-split.n // lanes) * lanes
    else:
        fit = site.target.l1 // 2 // (4 * typical(split.n) * lanes)
        blocks = Blocks(split.inner, lanes, max(1, min(VECTORS, fit)))
        units = split.outer * blocks.number
        emit = partial(_columns, axis=axis, split=split, blocks=blocks, log=log)
        kept = split.n * blocks.width
    return Choice(
        cost=cost, reads=site.reads((PLAIN,), PLAIN), writes=(PLAIN,),
        phases=each_unit(units, cost, emit), workspace=4 * kept, inplace=0, detail=str(split),
    )  # fmt: skip


@kernel("Softmax", Tier.VECTOR, dtypes="float32")
def softmax(site: Site) -> Choice:
    """Softmax in three passes, a row (or a vector of columns) at a time."""
    return _choice(site, log=False)


@kernel("LogSoftmax", Tier.VECTOR, dtypes="float32")
def log_softmax(site: Site) -> Choice:
    """Log-softmax in three passes, a row (or a vector of columns) at a time."""
    return _choice(site, log=True)


def _row(em: Emit, row: Val, axis: int, n: int, log: bool) -> None:
    """Emit a unit of a softmax along contiguous rows of n elements: one row."""
    b, lanes = em.b, block_of(em.target)
    x = Remembered((em.input(0).pointer + row * n).fixed())
    kept = Remembered(em.workspace.cast(F32), is_short(n, lanes))

    def largest(i: Position, size: int, mask: Val | None, accs: list[Val]) -> list[Val]:
        return [keep(mask, x.load(i, size, mask), LARGEST.identity).max(accs[0])]

    top = fold_row(b, n, lanes, [LARGEST], largest)[0]

    def total(i: Position, size: int, mask: Val | None, accs: list[Val]) -> list[Val]:
        less = x.load(i, size, mask) - top.splat(size)
        e = m.exp_below(less)
        kept.store(i, less if log else e)
        return [accs[0] + keep(mask, e, 0.0)]

    sums = fold_row(b, n, lanes, [SUM], total)[0]
    factor = m.log(sums) if log else b.const(1.0, F32) / sums

    def line(here: Emit, _: list[View], start: Position, length: int, index: Index) -> None:
        with by_formula():
            whole = length == n
        if not whole:
            kept.flush()

        def vector(i: Position, size: int, mask: Val | None) -> None:
            value = kept.load(start + i, size)
            wide = factor.splat(size)
            here.finish(value - wide if log else value * wide, index(i), mask)

        each_part(b, length, lanes, vector)

    each_line(shifted_to(em, 0, axis, row), em.site.out.dims, (), line, axis)


def _columns(em: Emit, unit: Val, axis: int, split: Around, blocks: Blocks, log: bool) -> None:
    """Emit a unit of a softmax whose axis is not the last: a block of neighbours in the inner
    dimensions, with vectors along these and loops along the axis."""
    b, n, inner, outer = em.b, split.n, split.inner, unit // blocks.number
    here = shifted_to(em, 0, axis, outer)
    x = (em.input(0).pointer + outer * (n * inner)).fixed()
    kept = em.workspace.cast(F32)

    def several(first: Position, parts: Sequence[Part]) -> None:
        pitch = sum(p.lanes for p in parts)
        factors = _factors(b, (x + first).fixed(), kept, split, parts, log)
        with b.loop(0, n) as row:
            there = shifted(here, [*(0,) * axis, row])
            for factor, p in zip(factors, parts, strict=True):
                value = (kept + (row * pitch + p.offset)).load(p.lanes)
                y = value - factor if log else value * factor
                finish_run(there, y, axis + 1, first + p.offset, p.mask)

    blocks.emit(b, unit % blocks.number, several)


def _factors(
    b: Builder, x: Ptr, kept: Ptr, split: Around, parts: Sequence[Part], log: bool
) -> list[Val]:
    """Emit the sums of a block of columns, which begins at x. Return for each of its vectors
    (`parts`) the last step's operand: 1 / the sum of e^(x - largest), or with `log` the logarithm
    of the sum. The code writes e^(x - largest), or with `log` x - largest, to `kept`, [row of the
    axis][column of the block]."""
    n, inner, pitch = split.n, split.inner, sum(p.lanes for p in parts)
    with b.loop(0, n, 1, [b.const(float("-inf"), F32.x(p.lanes)) for p in parts]) as loop:
        tops = []
        for p, top in zip(parts, loop.vars, strict=True):
            value = (x + loop.index * inner + p.offset).load(p.lanes, p.mask)
            (kept + loop.index * pitch + p.offset).store(value)
            tops.append(value.max(top))
        loop.next(tops)
    tops = loop.out
    with b.loop(0, n, 1, [b.zero(top.ty) for top in tops]) as loop:
        sums = []
        for p, top, total in zip(parts, tops, loop.vars, strict=True):
            place = kept + loop.index * pitch + p.offset
            less = place.load(p.lanes) - top
            e = m.exp_below(less)
            place.store(less if log else e)
            sums.append(total + e)
        loop.next(sums)
    return [m.log(t) if log else b.const(1.0, t.ty) / t for t in loop.out]
