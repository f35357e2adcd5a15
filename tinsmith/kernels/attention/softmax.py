"""The softmax of one row of scores, and the changes to scores before it: bias, mask, soft cap,
window. Scores are in units of log2 (multiplied by log2(e)), so that exponentials are powers of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I32, U8
from tinsmith.kernels.fold import LARGEST, SUM, fold_row, keep
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

NOTHING = float("-inf")


class Change(Protocol):
    """A change to the scores of a row. `apply(score, i, mask)` returns the changed vector of
    `score`, whose lanes are the columns from i on; lanes outside `mask` are beyond the row's end
    (None: no lane is)."""

    def apply(self, score: Val, i: Position, mask: Val | None) -> Val: ...


@dataclass(frozen=True)
class Term:
    """A bias or mask: numbers that are added, times `factor`, to a row of scores. With `wide` there
    is one for each column, from `at` on, else the one at `at` for all columns. Bytes are a boolean
    mask instead: a score whose byte is 0 becomes minus infinity, others stay."""

    at: Ptr
    wide: bool
    factor: float = 1.0

    def apply(self, score: Val, i: Position, mask: Val | None) -> Val:
        lanes = score.ty.lanes
        if not self.wide:
            value = self.at.load().splat(lanes)
        else:
            value = (self.at + i).load(lanes, mask if lanes > 1 else None)
        if self.at.elem == U8:
            return value.ne(0).select(score, NOTHING)
        if self.factor != 1.0:
            scaled = value * self.factor  # what would overflow stays as it is: see `operands`
            value = (scaled.abs() < float("inf")).select(scaled, value)
        return score + value


@dataclass(frozen=True)
class Cap:
    """A soft cap: each score s becomes limit * tanh(s / limit), of a magnitude below `limit`."""

    limit: float

    def apply(self, score: Val, i: Position, mask: Val | None) -> Val:
        return m.tanh(score * (1 / self.limit)) * self.limit


@dataclass(frozen=True)
class Window:
    """A window: query number `row` sees the columns from `row` + `low` to `row` + `high`, both
    included (None: no bound on that side). Its other scores become minus infinity."""

    row: Val
    low: int | None
    high: int | None

    def apply(self, score: Val, i: Position, mask: Val | None) -> Val:
        b, lanes = score.b, score.ty.lanes
        steps = b.vector(list(range(lanes)), I32) if lanes > 1 else b.const(0, I32)
        column = b.index(i).to("i32").splat(lanes) + steps
        first = self.row.to("i32").splat(lanes)
        if self.low is not None:
            score = (column >= first + self.low).select(score, NOTHING)
        return score if self.high is None else (column <= first + self.high).select(score, NOTHING)


Put = Callable[[Position, Val], None]
"""put(i, e): keep the vector e, which begins with element i."""


def exponentials(
    b: Builder, row: Ptr, n: int, lanes: int, changes: Sequence[Change],
    cleared: tuple[bool, bool], put: Put | None,
) -> Val:  # fmt: skip
    """Emit the softmax of a row of `n` scores (float32, in units of log2) without its division:
    e[i] = 2^(s[i] - max s), where s are the scores after `changes`. Return 1 / sum(e).

    Without `put`, e overwrites the scores, and lanes beyond n are undefined. With `put`, it gets
    vectors of e, 0 beyond n, and the row keeps s. `cleared` is (zeros, nans): if all of s are -inf,
    e and the result are NaN; with `zeros` they are 0. With `nans` they are 0 wherever they would be
    NaN."""
    zeros, nans = cleared

    def largest(i: Position, size: int, mask: Val | None, tops: list[Val]) -> list[Val]:
        score = (row + i).load(size)
        for change in changes:
            score = change.apply(score, i, mask)
        if changes:
            (row + i).store(score)
        return [keep(mask, score, NOTHING).max(tops[0])]

    top = fold_row(b, n, lanes, [LARGEST], largest)[0]
    top = top.eq(NOTHING).select(b.zero(F32), top) if zeros else top

    def power(i: Position, size: int, mask: Val | None, sums: list[Val]) -> list[Val]:
        e = m.exp2_below((row + i).load(size) - top.splat(size))
        kept = keep(mask, e, 0.0)
        if put is None:
            (row + i).store(e)
        else:
            put(i, kept)
        return [sums[0] + kept]

    def clear(i: Position, size: int, mask: Val | None) -> None:
        if put is None:
            (row + i).store(b.zero(F32.x(size)), mask)
        else:
            put(i, b.zero(F32.x(size)))

    total = fold_row(b, n, lanes, [SUM], power)[0]
    inverse = b.const(1.0, F32) / total
    if nans:  # a NaN anywhere makes the sum NaN
        with b.when(total.is_nan()):
            b.vectors(n, lanes, clear)
        return total.is_nan().select(b.zero(F32), inverse)
    return total.eq(0.0).select(b.zero(F32), inverse) if zeros else inverse
