"""The softmax of one row of scores, in units of log2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.fold import LARGEST, SUM, fold_row, keep
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Term:
    """What is added to a row of scores: elements from `at` on, or one element for all columns."""

    at: Ptr
    wide: bool
    factor: float = 1.0

    def add(self, score: Val, i: Position, mask: Val | None) -> Val:
        lanes = score.ty.lanes
        if not self.wide:
            value = self.at.load().splat(lanes)
        else:
            value = (self.at + i).load(lanes, mask if lanes > 1 else None)
        if self.factor != 1.0:
            scaled = value * self.factor  # what would overflow stays as it is: see `operands`
            value = (scaled.abs() < float("inf")).select(scaled, value)
        return score + value


Put = Callable[[Position, Val], None]
"""put(i, e): keep the vector e, which begins with element i."""


def exponentials(
    b: Builder, row: Ptr, n: int, lanes: int, terms: Sequence[Term], put: Put | None = None
) -> Val:
    """Turn a row of scores, plus terms, into 2^(score - largest); the reciprocal of their sum.
    They go to where the scores were, or to `put`, with zeros beyond the last."""

    def largest(i: Position, size: int, mask: Val | None, tops: list[Val]) -> list[Val]:
        score = (row + i).load(size)
        for term in terms:
            score = term.add(score, i, mask)
        if terms:
            (row + i).store(score)
        return [keep(mask, score, float("-inf")).max(tops[0])]

    top = fold_row(b, n, lanes, [LARGEST], largest)[0]

    def power(i: Position, size: int, mask: Val | None, sums: list[Val]) -> list[Val]:
        e = m.exp2_below((row + i).load(size) - top.splat(size))
        kept = keep(mask, e, 0.0)
        if put is None:
            (row + i).store(e)
        else:
            put(i, kept)
        return [sums[0] + kept]

    return b.const(1.0, F32) / fold_row(b, n, lanes, [SUM], power)[0]
