"""Normalisations over one contiguous run of elements each: layer, RMS, instance, group, Lp.

A tensor is `units` runs of `n` elements. Statistics take two passes over a run (mean, then the
spread around it), which sits in cache; a third pass normalises and stores.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tinsmith.codegen.builder import Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, View, kernel
from tinsmith.kernels.fold import SUM, Remembered, each_part, fold_row, keep
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.walk import (
    Index,
    Position,
    each_line,
    inverse,
    shifted,
    shifted_view,
    spread,
    walk_of,
)
from tinsmith.records import dataclass
from tinsmith.sizes import typical

Statistics = Callable[[Emit, Remembered, int], "tuple[Val | None, Val]"]
"""statistics(em, x, n): emits the statistics of a run of n elements x, and returns (mean, factor):
y = (x - mean) * factor, or x * factor where mean is None."""


@dataclass(frozen=True)
class Runs:
    """The contiguous runs of elements of x (of shape `dims`), each of which a normalisation treats
    on its own: dimensions `first` and after, with dimension `first` cut into `groups` parts (1:
    whole).

    scale, shift  (number of the input, the dimension of x with which its own first one aligns);
                  None where absent
    divides       results are divided by the statistics' factor, not multiplied
    """

    dims: tuple[int, ...]
    first: int
    groups: int
    scale: tuple[int, int] | None
    shift: tuple[int, int] | None
    divides: bool = False

    @property
    def part(self) -> tuple[int, ...]:
        """The extents of x with those of one run from dimension `first` on."""
        d = self.first
        return (*self.dims[:d], self.dims[d] // self.groups, *self.dims[d + 1 :])

    @property
    def n(self) -> int:
        return prod(self.part[self.first :])

    @property
    def units(self) -> int:
        return prod(self.dims) // self.n


def _check(site: Site) -> tuple[int, ...]:
    dims = site.need_same_shape()
    for v in site.inputs[1:]:
        if v is not None and v.dtype != site.input(0).dtype:
            raise Skip(f"{v.name} is {v.dtype}")
    return dims


def _aligned(site: Site, index: int) -> tuple[int, int] | None:
    """The pair for `Runs.scale` or `Runs.shift` of operand number `index`, whose dimensions are the
    last ones of x; None where it is absent."""
    if not site.has(index):
        return None
    return index, len(site.input(0).dims) - len(site.input(index).dims)


def _choice(site: Site, runs: Runs, statistics: Statistics, stats: bool = False) -> Choice:
    size = typical(prod(runs.dims))
    units, n = runs.units, runs.n
    cost = site.target.time(10.0 * size, 8.0 * size, 0.5) + 1e-7

    def emit(em: Emit, unit: Val) -> None:
        row = (em.input(0).pointer + unit * n).fixed()
        x = Remembered(row)
        mean, factor = statistics(em, x, n)
        if stats:
            assert mean is not None
            (em.outs[1].pointer + unit).store(mean)
            (em.outs[2].pointer + unit).store(factor)
        _normalise(em, runs, x, unit, mean, factor)

    return Choice(
        cost=cost, reads=site.reads([PLAIN if v is not None else None for v in site.inputs], PLAIN),
        writes=(PLAIN,) * len(site.outputs), phases=each_unit(units, cost, emit), inplace=0,
        detail=f"{units} runs of {n}",
    )  # fmt: skip


def _normalise(
    em: Emit, runs: Runs, x: Remembered, unit: Val, mean: Val | None, factor: Val
) -> None:
    """Emit y = (x - mean) * factor * scale + shift for run number `unit`, with the epilogue; with
    `runs.divides` by division by `factor`. None of mean, scale or shift: left out."""
    b, lanes, first, dims = em.b, block_of(em.target), runs.first, runs.dims
    present = [p for p in (runs.scale, runs.shift) if p is not None]
    others = [spread(em.input(i), dims, d) for i, d in present]
    where = walk_of(em, 0, first, others).index(unit // runs.groups)
    if first < len(dims):
        where.append(unit % runs.groups * runs.part[first])
    others = [shifted_view(v, where) for v in others]

    def line(here: Emit, others: list[View], start: Position, length: int, index: Index) -> None:
        scale = others[0] if runs.scale else None
        shift = others[-1] if runs.shift else None
        fixed_scale = scale is not None and scale.spec.lane == 0
        fixed_shift = shift is not None and shift.spec.lane == 0
        f = factor * scale.load(index(0), 1) if scale is not None and fixed_scale else factor
        s = shift.load(index(0), 1) if shift is not None and fixed_shift else None

        def vector(i: Position, size: int, mask: Val | None) -> None:
            value = x.load(start + i, size, mask)
            if mean is not None:
                value = value - mean.splat(size)
            y: Val = value / f.splat(size) if runs.divides else value * f.splat(size)
            if scale is not None and not fixed_scale:
                y = y * scale.load(index(i), size, mask)
            if s is not None:
                y = y + s.splat(size)
            elif shift is not None:
                y = y + shift.load(index(i), size, mask)
            here.finish(y, index(i), mask)

        each_part(b, length, lanes, vector)

    each_line(shifted(em, where), runs.part, others, line, first)


def _total(em: Emit, x: Remembered, n: int, term: Callable[[Val], Val]) -> Val:
    """Emit the sum of term(v) over the n elements v of a run."""

    def step(i: Position, size: int, mask: Val | None, accs: list[Val]) -> list[Val]:
        return [accs[0] + keep(mask, term(x.load(i, size, mask)), 0.0)]

    return fold_row(em.b, n, block_of(em.target), [SUM], step)[0]


def _square(v: Val) -> Val:
    return v * v


def _standard(em: Emit, x: Remembered, n: int) -> tuple[Val, Val]:
    one = inverse(em.b, n, 1)
    mean = _total(em, x, n, lambda v: v) * one
    variance = _total(em, x, n, lambda v: _square(v - mean.splat(v.ty.lanes))) * one
    return mean, em.b.const(1.0, F32) / (variance + em.site.attr("eps")).sqrt()


def _rms(em: Emit, x: Remembered, n: int) -> tuple[None, Val]:
    square = _total(em, x, n, _square) * inverse(em.b, n, 1)
    return None, em.b.const(1.0, F32) / (square + em.site.attr("eps")).sqrt()


def _length(em: Emit, x: Remembered, n: int) -> tuple[None, Val]:
    p = em.site.attr("p")
    total = _total(em, x, n, Val.abs if p == 1 else _square)
    length = total if p == 1 else total.sqrt()
    return None, length.eq(0.0).select(float("inf"), length)


@kernel("LayerNorm", Tier.VECTOR, dtypes="float32")
def layer_norm(site: Site) -> Choice:
    """Layer normalisation over the trailing axes, with or without scale, shift and statistics."""
    dims = _check(site)
    runs = Runs(dims, site.attr("axis") % len(dims), 1, _aligned(site, 1), _aligned(site, 2))
    return _choice(site, runs, _standard, site.attr("with_stats"))


@kernel("RMSNorm", Tier.VECTOR, dtypes="float32")
def rms_norm(site: Site) -> Choice:
    """Root-mean-square normalisation over the trailing axes."""
    dims = _check(site)
    runs = Runs(dims, site.attr("axis") % len(dims), 1, _aligned(site, 1), None)
    return _choice(site, runs, _rms)


@kernel("InstanceNorm", Tier.VECTOR, dtypes="float32")
def instance_norm(site: Site) -> Choice:
    """Instance normalisation of plain images: every plane is a run."""
    dims = _check(site)
    return _choice(site, Runs(dims, 1, dims[1], (1, 1), (2, 1)), _standard)


@kernel("GroupNorm", Tier.VECTOR, dtypes="float32")
def group_norm(site: Site) -> Choice:
    """Group normalisation of plain images: every group of planes is a run."""
    dims = _check(site)
    return _choice(site, Runs(dims, 1, site.attr("groups"), (1, 1), (2, 1)), _standard)


@kernel("LpNorm", Tier.VECTOR, dtypes="float32")
def lp_norm(site: Site) -> Choice:
    """Division of each row by its L1 or L2 length, along the last axis."""
    dims = _check(site)
    axis = site.attr("axis") % len(dims)
    if prod(dims[axis + 1 :]) != 1:
        raise Skip(f"axis {axis} is not the last one")
    return _choice(site, Runs(dims, axis, 1, None, None, True), _length)
