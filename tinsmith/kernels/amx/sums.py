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
from tinsmith.kernels.amx.plan import POSITION, Plan
from tinsmith.records import dataclass

REGISTER = SIDE * POSITION  # bytes
SQUARE = 4 * REGISTER
MIDDLE = 2  # the second-level cache
POSITIONS, WEIGHTS = 4, 6  # the first registers of either; results are from 0 on


@dataclass(frozen=True)
class Ahead:
    """The weights that a square of registers prefetches: in every step so many cache lines, at so
    many bytes from its own."""

    distance: Val
    lines: int


def sums(
    b: Builder, plan: Plan, x: Ptr, w: Ptr, taps: Ptr, to: Ptr, tall: int, wide: int,
    meanwhile: Callable[[], None], ahead: Ahead | None,
) -> None:  # fmt: skip
    """The sums of `tall` registers of positions from `x` on and `wide` vectors of outputs, to
    `to`[wide][2]; `meanwhile` is what else is done while the first channel block is multiplied. All
    pointers are to bytes, but `taps`, which holds what each tap adds to x."""
    for c in range(tall * wide):
        matrix.clear(b, c)

    def tap(x: Ptr, w: Ptr) -> None:
        _positions(b, x, tall)
        _weights(b, w, wide)
        if ahead is not None:
            later = (w + ahead.distance).fixed()
            for i in range(ahead.lines):
                (later + i * POSITION).prefetch(locality=MIDDLE)
        _multiply(b, tall, wide)
        _weights(b, w + wide * REGISTER, wide)
        _multiply(b, tall, wide)
        _positions(b, x + plan.low * POSITION, tall)
        _multiply(b, tall, wide)

    step = 2 * wide * REGISTER
    with b.loop(0, plan.blocks, carry=[x.value, w.value]) as loop:
        x, w = x.of(loop.vars[0]), w.of(loop.vars[1])
        if plan.taps == 1:
            tap(x, w)
        else:
            with b.loop(0, plan.taps) as t:
                at = (x + (taps.cast(I64) + t).load()).fixed()
                tap(at, (w + t * step).fixed())
        with b.when(loop.index.eq(0)):
            meanwhile()
        loop.next([(x + plan.block * POSITION).value, (w + plan.taps * step).value])
    for m in range(tall):
        for o in range(wide):
            matrix.store(b, m * wide + o, to + (o * 2 + m) * REGISTER, POSITION)


def _positions(b: Builder, at: Ptr, tall: int) -> None:
    for m in range(tall):
        matrix.load(b, POSITIONS + m, at + m * REGISTER, POSITION)


def _weights(b: Builder, at: Ptr, wide: int) -> None:
    for o in range(wide):
        matrix.load(b, WEIGHTS + o, at + o * REGISTER, POSITION)


def _multiply(b: Builder, tall: int, wide: int) -> None:
    for m in range(tall):
        for o in range(wide):
            matrix.multiply(b, m * wide + o, POSITIONS + m, WEIGHTS + o)
