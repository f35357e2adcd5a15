"""The second step: sums of products in matrix registers.

A square of two by two registers of results takes twelve products for eight registers that are
loaded, four of positions and four of weights, which the second-level cache keeps up with.
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import SIDE
from tinsmith.codegen.types import I64
from tinsmith.kernels.amx.plan import LINE, Plan
from tinsmith.records import dataclass

REGISTER = SIDE * LINE  # bytes
SQUARE = 4 * REGISTER
MIDDLE = 2  # the second-level cache
POSITIONS, WEIGHTS = 4, 6  # the first registers of either; results are from 0 on


@dataclass(frozen=True)
class Ahead:
    """The weights that a square of registers prefetches: in every step so many lines, at so many
    bytes from its own."""

    distance: Val
    lines: int


def sums(
    b: Builder, plan: Plan, x: Ptr, w: Ptr, taps: Ptr, to: Ptr, high: int, wide: int,
    meanwhile: Callable[[Val], None], ahead: Ahead | None = None,
) -> None:  # fmt: skip
    """The sums of `high` registers of positions from `x` on and `wide` vectors of outputs, to
    `to`[wide][2]; `meanwhile(c)` is what else is done while channel block c is multiplied. All
    pointers are to bytes, but `taps`, which holds what each tap adds to x."""
    for c in range(high * wide):
        matrix.clear(b, c)

    def tap(x: Ptr, w: Ptr) -> None:
        _positions(b, x, high)
        _weights(b, w, wide)
        if ahead is not None:
            later = (w + ahead.distance).fixed()
            for i in range(ahead.lines):
                (later + i * LINE).prefetch(locality=MIDDLE)
        _multiply(b, high, wide)
        _weights(b, w + wide * REGISTER, wide)
        _multiply(b, high, wide)
        _positions(b, x + plan.low * LINE, high)
        _multiply(b, high, wide)

    step = 2 * wide * REGISTER
    with b.loop(0, plan.blocks, carry=[x.value, w.value]) as loop:
        x, w = x.of(loop.vars[0]), w.of(loop.vars[1])
        if plan.taps == 1:
            tap(x, w)
        else:
            with b.loop(0, plan.taps) as t:
                at = (x + (taps.cast(I64) + t).load()).fixed()
                tap(at, (w + t * step).fixed())
        meanwhile(loop.index)
        loop.next([(x + plan.block * LINE).value, (w + plan.taps * step).value])
    for m in range(high):
        for o in range(wide):
            matrix.store(b, m * wide + o, to + (o * 2 + m) * REGISTER, LINE)


def _positions(b: Builder, at: Ptr, high: int) -> None:
    for m in range(high):
        matrix.load(b, POSITIONS + m, at + m * REGISTER, LINE)


def _weights(b: Builder, at: Ptr, wide: int) -> None:
    for o in range(wide):
        matrix.load(b, WEIGHTS + o, at + o * REGISTER, LINE)


def _multiply(b: Builder, high: int, wide: int) -> None:
    for m in range(high):
        for o in range(wide):
            matrix.multiply(b, m * wide + o, POSITIONS + m, WEIGHTS + o)
