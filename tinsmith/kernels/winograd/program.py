"""Multiplication by a constant matrix as straight-line code that shares subexpressions.

A program computes the rows of matrix @ inputs. A sum of two terms that several rows contain (up to
a factor) is computed once. Rows that share sums form a group and are computed together. Groups are
small, so that a two-dimensional transform can hold a group of all columns in registers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.kernels.winograd.matrices import Bilinear, Matrix, floats
from tinsmith.records import dataclass

Terms = tuple[tuple[float, int], ...]
"""A sum: (factor, variable) for each term."""


@dataclass(frozen=True)
class Program:
    """Straight-line code for matrix @ inputs. Variables 0, 1, ... are the inputs, then the results
    of the steps.

    inputs  how many inputs there are
    steps   sums that several rows share; a step uses only variables before its own
    rows    the results
    groups  the numbers of the rows that are computed together
    """

    inputs: int
    steps: tuple[Terms, ...]
    rows: tuple[Terms, ...]
    groups: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def operations(self) -> int:
        """Vector instructions of the whole program."""
        return sum(_operations(t) for t in (*self.steps, *self.rows))


def _operations(terms: Terms) -> int:
    """The instructions of a sum: additions and multiply-adds, and one more if its first term has to
    be multiplied or negated."""
    units = sum(abs(c) == 1 for c, _ in terms)
    return len(terms) - 1 + (units == 0) + (all(c == -1 for c, _ in terms))


@functools.lru_cache(maxsize=256)
def data_program(axis: Bilinear) -> Program:
    """The program that transforms data along one axis: multiplication by B^T."""
    return program(axis.bt)


@functools.lru_cache(maxsize=256)
def result_program(axis: Bilinear) -> Program:
    """The program that makes results of products along one axis: multiplication by A^T."""
    return program(axis.at)


def program(matrix: Matrix) -> Program:
    """The program for matrix @ inputs, in which rows share sums as the module says."""
    inputs = len(matrix[0])
    rows = [{k: float(v) for k, v in enumerate(row) if v} for row in floats(matrix)]
    steps: list[Terms] = []
    while True:
        pairs: dict[tuple[int, int, float, float], int] = {}
        for row in rows:
            for (i, a), (k, c) in itertools.combinations(sorted(row.items()), 2):
                key = (i, k, c / a, a / c)
                pairs[key] = pairs.get(key, 0) + 1
        shared = [
            (count, abs(ratio) == 1, -i, -k, ratio, inverse)
            for (i, k, ratio, inverse), count in pairs.items()
            if count > 1 and (_is_exact(ratio) or _is_exact(inverse))
        ]
        if not shared:
            break
        _, _, minus_i, minus_k, ratio, inverse = max(shared)
        i, k, new = -minus_i, -minus_k, inputs + len(steps)
        unit, other = (i, k) if _is_exact(ratio) else (k, i)
        for row in rows:
            if i in row and k in row and row[k] / row[i] == ratio:
                row[new] = row.pop(unit)
                del row[other]
        steps.append(((1.0, unit), (ratio if unit == i else inverse, other)))
    results = tuple(tuple((c, k) for k, c in row.items()) for row in rows)
    return Program(inputs, tuple(steps), results, _groups(inputs, steps, results))


def _is_exact(value: float) -> bool:
    """Whether a factor is exact in float32, so that code can multiply by it."""
    return float(np.float32(value)) == value


def _groups(
    inputs: int, steps: Sequence[Terms], rows: Sequence[Terms]
) -> tuple[tuple[int, ...], ...]:
    """The numbers of the rows, in groups. Rows that use a step in common, directly or through other
    rows, are one group; rows that use no step are put together by twos."""
    needs = []
    for step in steps:
        needs.append(
            {inputs + len(needs)}.union(*(needs[k - inputs] for _, k in step if k >= inputs))
        )
    uses = [set().union(*(needs[k - inputs] for _, k in row if k >= inputs)) for row in rows]
    groups: list[tuple[list[int], set[int]]] = []
    for i, use in enumerate(uses):
        joined, sums = [i], set(use)
        apart = []
        for members, others in groups:
            if others & use:
                joined, sums = members + joined, sums | others
            else:
                apart.append((members, others))
        groups = [*apart, (joined, sums)]
    alone = [members[0] for members, sums in groups if not sums]
    together = [tuple(sorted(members)) for members, sums in groups if sums]
    pairs = [tuple(alone[i : i + 2]) for i in range(0, len(alone), 2)]
    return tuple(sorted(together + pairs))


def run(code: Program, read: Callable[[int], Val], rows: Sequence[int] | None = None) -> list[Val]:
    """Emit the `rows` of a program, by number (None: all), and return their values. `read(k)` emits
    input k; it is called at most once, where that is first used."""
    memo: dict[int, Val] = {}

    def value(k: int) -> Val:
        if k not in memo:
            memo[k] = read(k) if k < code.inputs else total(code.steps[k - code.inputs])
        return memo[k]

    def total(terms: Terms) -> Val:
        ordered = sorted(terms, key=lambda t: (t[0] != 1, abs(t[0]) != 1))
        (first, k), rest = ordered[0], ordered[1:]
        x = value(k)
        if first == 1:
            acc = x
        elif first == -1 and rest and rest[0][0] != -1:
            acc = value(rest[0][1]) * rest[0][0] - x
            rest = rest[1:]
        else:
            acc = -x if first == -1 else x * first
        for c, k in rest:
            x = value(k)
            acc = acc + x if c == 1 else acc - x if c == -1 else x.fma(c, acc)
        return acc

    return [total(code.rows[i]) for i in (range(len(code.rows)) if rows is None else rows)]
