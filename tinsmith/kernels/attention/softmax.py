"""The softmax of one row of scores that lies in L1, in units of log2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.places import Position
from tinsmith.kernels.rowfold import keep, parts

Step = Callable[[Position, int, "Val | None", Val], Val]
"""step(position, lanes, mask, accumulator) -> accumulator."""

UNROLLED = 4
"""Rows of at most so many vectors are straight code; others take as many vectors at a time."""


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
        return score + value if self.factor == 1.0 else value.fma(self.factor, score)


def fold(b: Builder, n: int, lanes: int, identity: float, how: str, step: Step) -> Val:
    """A step over positions 0 .. n - 1, with several accumulators, merged by `how`."""
    full, rest = divmod(n, lanes)
    chains = max(1, min(UNROLLED, full))
    sums = [b.const(identity, F32.x(lanes)) for _ in range(chains)]
    rounds = full // chains
    if rounds > 1:
        with b.loop(0, rounds * chains * lanes, chains * lanes, sums) as loop:
            at = loop.index
            loop.next([step(at + c * lanes, lanes, None, v) for c, v in enumerate(loop.vars)])
        sums = loop.out
    elif rounds:
        sums = [step(c * lanes, lanes, None, v) for c, v in enumerate(sums)]
    for c in range(full - rounds * chains):
        sums[c] = step((rounds * chains + c) * lanes, lanes, None, sums[c])
    tails: list[Val] = []
    if rest and b.target.has_masks:
        sums[-1] = step(full * lanes, lanes, b.first_lanes(rest, lanes), sums[-1])
    elif rest:
        for at, size in parts(lanes, rest):
            tails.append(step(full * lanes + at, size, None, b.const(identity, F32.x(size))))
    while len(sums) > 1:
        half = (len(sums) + 1) // 2
        pairs = zip(sums, sums[half:], strict=False)
        sums = [_merge(how, x, y) for x, y in pairs] + sums[len(sums) - half : half]
    values = [v.reduce(how) if v.ty.lanes > 1 else v for v in [*sums[: bool(full or rest)], *tails]]
    total = values[0]
    for v in values[1:]:
        total = _merge(how, total, v)
    return total


def _merge(how: str, x: Val, y: Val) -> Val:
    return x.max(y) if how == "max" else x + y


def exponentials(b: Builder, row: Ptr, n: int, lanes: int, terms: Sequence[Term]) -> Val:
    """Turn a row of scores, plus terms, into 2^(score - largest); the reciprocal of their sum."""

    def largest(i: Position, size: int, mask: Val | None, top: Val) -> Val:
        score = (row + i).load(size)
        for term in terms:
            score = term.add(score, i, mask)
        if terms:
            (row + i).store(score)
        return keep(mask, score, float("-inf")).max(top)

    top = fold(b, n, lanes, float("-inf"), "max", largest)

    def power(i: Position, size: int, mask: Val | None, total: Val) -> Val:
        e = m.exp2_below((row + i).load(size) - top.splat(size))
        (row + i).store(e)
        return total + keep(mask, e, 0.0)

    return b.const(1.0, F32) / fold(b, n, lanes, 0.0, "add", power)
