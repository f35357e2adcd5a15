"""Reductions along any axes of plain tensors, vectorised along whichever axis is contiguous.

Dimensions are merged into runs, in turn kept and reduced. Where the innermost run is reduced, rows
are folded along it; where it is kept, vectors of neighbouring results are folded side by side. The
other reduced runs are loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import Ty, from_dtype
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.fold import (
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Fold,
    ShortRows,
    combine,
    fold_row,
    keep,
    short_rows,
)
from tinsmith.kernels.layout import lanes_of, plain_strides
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.walk import (
    Blocks,
    Part,
    Position,
    digits,
    finish_run,
    inverse,
    merged,
    shifted_to,
)
from tinsmith.records import dataclass
from tinsmith.sizes import typical

BLOCK = 4
"""Vectors that are folded side by side where the innermost run is kept, which hides the latency of
an addition (estimated)."""

Before = Callable[[Val, int], Val]
"""before(x, k): the function of elements whose values are folded, such as their squares; x is a
vector of elements, k the number of its accumulator."""

Total = Callable[[Fold, Before], list[Val]]
"""total(fold, before): emits one pass over the input, and returns for each accumulator the fold of
before(x, k) over its elements x."""


@dataclass(frozen=True)
class Kind:
    """A kind of reduction: result = after(fold of before(x) over all x, count), where `count` is
    how many elements x there are. `evaluate` emits it by `total` and `fold`, which has the element
    type's identity, and returns the result for each accumulator."""

    fold: Fold
    before: Callable[[Val], Val] = lambda x: x
    after: Callable[[Val, int], Val] = lambda total, count: total
    whole: bool = False  # also for integers

    def evaluate(self, total: Total, fold: Fold, count: int) -> list[Val]:
        return [self.after(t, count) for t in total(fold, lambda x, _: self.before(x))]


class LogSumExp(Kind):
    """log(sum of e^x) in two passes: the largest element, then the sum of e^(x - largest)."""

    def evaluate(self, total: Total, fold: Fold, count: int) -> list[Val]:
        tops = [
            (t.abs() < float("inf")).select(t, t.b.zero(t.ty)) for t in total(MAX, lambda x, _: x)
        ]

        def relative(x: Val, k: int) -> Val:
            top = tops[k]
            return m.exp(x - (top if top.ty == x.ty else top.splat(x.ty.lanes)))

        return [m.log(s) + top for s, top in zip(total(SUM, relative), tops, strict=True)]


def _square(x: Val) -> Val:
    return x * x


KINDS = {
    "sum": Kind(SUM, whole=True),
    "mean": Kind(SUM, after=lambda total, count: total * inverse(total.b, count, total.ty.lanes)),
    "max": Kind(MAX, whole=True),
    "min": Kind(MIN, whole=True),
    "prod": Kind(PRODUCT, whole=True),
    "l1": Kind(SUM, before=lambda x: x.abs()),
    "l2": Kind(SUM, before=_square, after=lambda total, _: total.sqrt()),
    "sumsquare": Kind(SUM, before=_square, whole=True),
    "logsum": Kind(SUM, after=lambda total, _: m.log(total)),
    "logsumexp": LogSumExp(SUM),
}


@dataclass(frozen=True)
class Run:
    """Neighbouring dimensions of the input, all kept or all `reduced`, merged into one: its extent
    and stride, in elements."""

    extent: int
    stride: int
    reduced: bool


def runs_of(dims: Sequence[int], reduced: set[int]) -> list[Run]:
    """The dimensions of a dense tensor merged into runs, outermost first, in turn kept and
    `reduced`; extents of 1 vanish."""
    steps = plain_strides(dims)
    result = [0 if d in reduced else step for d, step in enumerate(steps)]
    return [Run(e, steps[d], d in reduced) for e, d in merged(dims, [steps, result])]


def axes_of_site(site: Site, rank: int) -> set[int]:
    """The dimensions that a Reduce site reduces, of an input of this rank; no axes mean all, or
    none with `noop_with_empty_axes`. Raises Skip where the axes are not constant."""
    numbers: tuple[int, ...] = ()
    if site.has(1):
        numbers = tuple(int(a) for a in site.const(1, "the list of axes").reshape(-1))
    if not numbers:
        return set() if site.attr("noop_with_empty_axes") else set(range(rank))
    return {a % rank for a in numbers}


def identity_of(fold: Fold, dtype: np.dtype) -> Fold:
    """The fold with its identity for an element type: for MAX and MIN of integers and truth values,
    which have no infinity, the least or the greatest value."""
    if dtype.kind == "f" or fold in (SUM, PRODUCT):
        return fold
    if dtype.kind == "b":
        return Fold(fold.how, 0 if fold == MAX else 1)
    info = np.iinfo(dtype)
    return Fold(fold.how, info.min if fold == MAX else info.max)


@dataclass(frozen=True)
class Plan:
    """A reduction: its kind, the runs of its input, and how they are walked.

    fold   the kind's, with the identity of the element type `ty`
    lanes  elements of a vector
    count  input elements of one result
    """

    runs: list[Run]
    kind: Kind
    fold: Fold
    ty: Ty
    lanes: int
    count: int

    @property
    def inner(self) -> Run | None:
        """The innermost run, whose elements are the lanes; None if there is none."""
        return self.runs[-1] if self.runs else None

    @property
    def loops(self) -> list[Run]:
        """The reduced runs, each a loop, without the innermost run."""
        return [r for r in self.runs[:-1] if r.reduced]

    @property
    def outer(self) -> list[Run]:
        """The kept runs without the innermost run."""
        return [r for r in self.runs[:-1] if not r.reduced]

    @property
    def blocks(self) -> Blocks | None:
        """The innermost run in blocks that are folded side by side; None if it is not kept."""
        if self.inner is None or self.inner.reduced:
            return None
        return Blocks(self.inner.extent, self.lanes, BLOCK)

    @property
    def short(self) -> ShortRows | None:
        """The input as short rows, of which each lane of a vector folds one. None unless elements
        have 4 bytes or more, the runs are a kept and a reduced one (a matrix, reduced along its
        last axis), and `short_rows` takes it."""
        if [r.reduced for r in self.runs] != [False, True] or self.ty.nbytes < 4:
            return None
        rows, row = self.runs
        return short_rows(rows.extent, row.extent, self.lanes)


@kernel("Reduce", Tier.VECTOR, dtypes="float32 float64 int8 uint8 int32 int64 bool")
def reduce(site: Site) -> Choice:
    """Sums, means, extremes, products and norms along any axes of a plain tensor."""
    x, plan = site.input(0), plan_of(site)
    nbytes = float(typical(x.type.nbytes + site.out.type.nbytes))
    cost = site.target.time(2.0 * typical(prod(x.dims)), nbytes, 0.25) + 1e-7
    rows = prod(r.extent for r in plan.outer)
    short, blocks = plan.short, plan.blocks
    units = short.units if short else rows * (blocks.number if blocks else 1)

    def emit(em: Emit, unit: Val) -> None:
        if short:
            short.emit(em, unit, functools.partial(_fold_across, plan))
        elif blocks:
            _fold_vectors(em, plan, blocks, unit)
        else:
            _fold_rows(em, plan, unit)

    return Choice(
        cost=cost, reads=site.reads_first(PLAIN, PLAIN), writes=(PLAIN,),
        phases=each_unit(units, cost, emit), repeats=short is not None and short.overlap,
        detail=" ".join(f"{'-' if r.reduced else '+'}{r.extent}" for r in plan.runs),
    )  # fmt: skip


def plan_of(site: Site) -> Plan:
    """The reduction of a Reduce site. Raises Skip where the input is empty, axes are not constant,
    the output has another number of elements, or the kind has no code for the element type."""
    x = site.input(0)
    dims, name = x.dims, site.attr("kind")
    axes = axes_of_site(site, len(dims))
    if prod(dims) == 0:
        raise Skip("the input is empty")
    kept = tuple(1 if i in axes else d for i, d in enumerate(dims))
    if prod(site.out.dims) != prod(kept):
        raise Skip(f"the output {site.out.dims} does not hold the reduced shape {kept}")
    count = prod(dims) // prod(kept)
    kind = KINDS[name]
    if (x.dtype.kind != "f" and not kind.whole) or (
        x.dtype == np.float64 and name.startswith("log")
    ):
        raise Skip(f"{name} of {x.dtype}")
    fold = identity_of(kind.fold, x.dtype)
    return Plan(
        runs_of(dims, axes), kind, fold, from_dtype(x.dtype),
        lanes_of(site.target, x.dtype.itemsize), count,
    )  # fmt: skip


def outer_offset(plan: Plan, flat: Position) -> Position:
    """The offset in the input, in elements, of place number `flat` over the runs `plan.outer`, of
    which the last goes fastest."""
    offset: Position = 0
    for k, digit in digits(flat, [(r.extent, k) for k, r in enumerate(plan.outer)]):
        offset = digit * plan.outer[k].stride + offset
    return offset


def nest(
    b: Builder, loops: Sequence[Run], x: Ptr, accs: list[Val],
    body: Callable[[Ptr, list[Val]], list[Val]],
) -> list[Val]:  # fmt: skip
    """Emit nested `loops` over the input from x on, with `accs = body(pointer, accs)` inside, and
    return the last accumulators."""
    if not loops:
        return body(x, accs)
    first, *rest = loops
    with b.loop(0, first.extent, 1, accs) as loop:
        loop.next(nest(b, rest, (x + loop.index * first.stride).fixed(), loop.vars, body))
    return loop.out


def _fold_rows(em: Emit, plan: Plan, unit: Position) -> None:
    """Emit result number `unit`, where the innermost run is reduced: each row of contiguous
    elements is folded along the lanes of vectors. Without runs the row is one element."""
    b = em.b
    x = (em.input(0).pointer + outer_offset(plan, unit)).fixed()
    n = plan.inner.extent if plan.inner else 1

    def total(fold: Fold, before: Before) -> list[Val]:
        def row(at: Ptr, accs: list[Val]) -> list[Val]:
            def step(i: Position, size: int, mask: Val | None, parts: list[Val]) -> list[Val]:
                value = keep(mask, before((at + i).load(size, mask), 0), fold.identity)
                return [combine(fold, parts[0], value)]

            one = fold_row(b, n, plan.lanes, [fold], step, 4, plan.ty)[0]
            return [combine(fold, accs[0], one)] if plan.loops else [one]

        return nest(b, plan.loops, x, [b.const(fold.identity, plan.ty)], row)

    result = plan.kind.evaluate(total, plan.fold, plan.count)[0]
    rank = len(em.site.out.dims)
    shifted_to(em, 0, rank, unit).finish(result, [0] * rank)


def _fold_across(plan: Plan, columns: list[Val]) -> Val:
    """The results of short rows, as one vector with a lane for each row; `columns[j]` has element j
    of all rows."""

    def total(fold: Fold, before: Before) -> list[Val]:
        return [functools.reduce(functools.partial(combine, fold), [before(v, 0) for v in columns])]

    return plan.kind.evaluate(total, plan.fold, plan.count)[0]


def _fold_vectors(em: Emit, plan: Plan, blocks: Blocks, unit: Val) -> None:
    """Emit block number `unit` of neighbouring results, where the innermost run is kept: vectors of
    neighbours are folded to vectors of results."""
    b, (row, block) = em.b, (unit // blocks.number, unit % blocks.number)
    x = (em.input(0).pointer + outer_offset(plan, row)).fixed()

    def several(first: Position, parts: Sequence[Part]) -> None:
        def total(fold: Fold, before: Before) -> list[Val]:
            def step(at: Ptr, accs: list[Val]) -> list[Val]:
                return [
                    combine(fold, acc, before((at + p.offset).load(p.lanes, p.mask), k))
                    for k, (acc, p) in enumerate(zip(accs, parts, strict=True))
                ]

            start = [b.const(fold.identity, plan.ty.x(p.lanes)) for p in parts]
            return nest(b, plan.loops, (x + first).fixed(), start, step)

        flat = row * blocks.count + first
        results = plan.kind.evaluate(total, plan.fold, plan.count)
        for result, p in zip(results, parts, strict=True):
            finish_run(em, result, 0, flat + p.offset, p.mask)

    blocks.emit(b, block, several)
