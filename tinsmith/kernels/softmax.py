"""Softmax and log-softmax, along the last axis or across vectors of the inner ones."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, View, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.places import (
    Index,
    Position,
    Sizes,
    at_outer,
    each_block,
    each_line,
    finish_run,
    shifted,
)
from tinsmith.kernels.rowfold import LARGEST, SUM, Remembered, each_part, fold_row, is_short, keep
from tinsmith.kernels.sharing import parts_for

Unit = Callable[[Emit, Val], None]

FLOPS = 30.0
"""Instructions for one element of either, with one exponential."""


def _shape(site: Site) -> tuple[int, int, int]:
    """(outer, n, inner) of the axis, or Skip."""
    dims = site.input(0).dims
    if site.out.dims != dims:
        raise Skip(f"the output {site.out.dims} is not the input's shape {dims}")
    if prod(dims) == 0:
        raise Skip("the input is empty")
    axis = site.attr("axis") % len(dims)
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def _choice(site: Site, log: bool) -> Choice:
    outer, n, inner = _shape(site)
    target = site.target
    size = outer * n * inner
    cost = target.time(FLOPS * size, 8.0 * size, 0.5) + 1e-7
    lanes = block_of(target)
    if inner == 1:
        units, emit, workspace = outer, _rows(site, n, log), 4 * -(-n // lanes) * lanes
    else:
        width = lanes * _width(site, n, inner)
        units = outer * -(-inner // width)
        emit, workspace = _columns(site, n, inner, log), 4 * n * width
    tiles = parts_for(units, cost)

    def run(em: Emit) -> None:
        with em.b.loop(em.begin * units // tiles, em.end * units // tiles) as unit:
            emit(em, unit)

    return Choice(
        cost=cost,
        reads=site.reads((PLAIN,), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(tiles, run),
        workspace=workspace,
        inplace=0,
        detail=f"{outer} x {n} x {inner}",
    )


@kernel("Softmax", Tier.VECTOR, dtypes="float32")
def softmax(site: Site) -> Choice:
    """Softmax in three passes, a row (or a vector of columns) at a time."""
    return _choice(site, log=False)


@kernel("LogSoftmax", Tier.VECTOR, dtypes="float32")
def log_softmax(site: Site) -> Choice:
    """Log-softmax in three passes, a row (or a vector of columns) at a time."""
    return _choice(site, log=True)


def _rows(site: Site, n: int, log: bool) -> Unit:
    axis = site.attr("axis") % len(site.out.dims)

    def emit(em: Emit, row: Val) -> None:
        b, lanes = em.b, block_of(em.target)
        x = Remembered((em.ins[0].pointer + row * n).fixed())  # type: ignore[union-attr]
        kept = Kept(em.workspace.cast(F32), is_short(n, lanes))

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
            if length != n:
                kept.flush()

            def vector(i: Position, size: int, mask: Val | None) -> None:
                value = kept.load(i if length == n else start + i, size)
                wide = factor.splat(size)
                here.finish(value - wide if log else value * wide, index(i), mask)

            each_part(b, length, lanes, vector)

        each_line(at_outer(em, axis, row), em.site.out.dims, (), line, axis)

    return emit


class Kept:
    """The exponentials of a row: values of a short one, workspace of a long one."""

    def __init__(self, buffer: Ptr, short: bool) -> None:
        self.buffer, self.short = buffer, short
        self._values: dict[tuple[int, int], Val] = {}

    def store(self, at: Position, value: Val) -> None:
        if self.short and isinstance(at, int):
            self._values[at, value.ty.lanes] = value
        else:
            (self.buffer + at).store(value)

    def load(self, at: Position, size: int) -> Val:
        found = self._values.get((at, size)) if isinstance(at, int) else None
        return found if found is not None else (self.buffer + at).load(size)

    def flush(self) -> None:
        """Put all values into the buffer, to be read at other places than they were computed."""
        for (at, _), value in self._values.items():
            (self.buffer + at).store(value)
        self._values.clear()


def _width(site: Site, n: int, inner: int) -> int:
    """Neighbouring vectors that are computed together: more while they fit a part of L1."""
    lanes = block_of(site.target)
    return max(1, min(4, -(-inner // lanes), site.target.l1 // 2 // (4 * n * lanes)))


def _columns(site: Site, n: int, inner: int, log: bool) -> Unit:
    """Vectors along the inner dimensions; the axis is a loop."""
    axis = site.attr("axis") % len(site.out.dims)
    lanes, width = block_of(site.target), _width(site, n, inner)
    blocks = -(-inner // (lanes * width))

    def emit(em: Emit, unit: Val) -> None:
        b = em.b
        outer = unit // blocks
        here = at_outer(em, axis, outer)
        x = (em.ins[0].pointer + outer * (n * inner)).fixed()  # type: ignore[union-attr]
        kept = em.workspace.cast(F32)

        def several(first: Position, sizes: Sizes) -> None:
            pitch = sum(size for size, _ in sizes)
            factors = _factors(b, (x + first).fixed(), kept, n, inner, sizes, log)
            with b.loop(0, n) as row:
                place = [*(0,) * axis, row, *(0,) * (len(site.out.dims) - axis - 1)]
                there = shifted(here, place)
                at = 0
                for factor, (size, mask) in zip(factors, sizes, strict=True):
                    value = (kept + (row * pitch + at)).load(size)
                    y = value - factor if log else value * factor
                    finish_run(there, y, axis + 1, first + at, mask)
                    at += size

        each_block(b, unit % blocks, inner, lanes, width, several)

    return emit


def _factors(
    b: Builder, x: Ptr, kept: Ptr, n: int, inner: int, sizes: Sizes, log: bool
) -> list[Val]:
    """For each vector of columns the reciprocal of the sum (or its logarithm); leaves their
    exponentials (or the distances from the largest) in `kept`, which is dense."""
    pitch = sum(size for size, _ in sizes)
    starts = [sum(size for size, _ in sizes[:k]) for k in range(len(sizes))]
    with b.loop(0, n, 1, [b.const(float("-inf"), F32.x(size)) for size, _ in sizes]) as loop:
        tops = []
        for at, (size, mask), top in zip(starts, sizes, loop.vars, strict=True):
            value = (x + loop.index * inner + at).load(size, mask)
            (kept + loop.index * pitch + at).store(value)
            tops.append(value.max(top))
        loop.next(tops)
    tops = loop.out
    with b.loop(0, n, 1, [b.zero(top.ty) for top in tops]) as loop:
        sums = []
        for at, (size, _), top, total in zip(starts, sizes, tops, loop.vars, strict=True):
            place = kept + loop.index * pitch + at
            less = place.load(size) - top
            e = m.exp_below(less)
            place.store(less if log else e)
            sums.append(total + e)
        loop.next(sums)
    return [m.log(t) if log else b.const(1.0, t.ty) / t for t in loop.out]
