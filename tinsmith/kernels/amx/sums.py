"""The second step: sums of products in matrix registers.

A register of positions by two of outputs takes six products for six registers that are loaded. Two
of positions would take twelve for eight, but are slower where the core's other thread is busy: see
"What costs days" in docs/kernels.md.
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
MIDDLE = 2  # the second-level cache
POSITIONS, WEIGHTS = 2, 3  # the first registers of either; results are from 0 on


@dataclass(frozen=True)
class Ahead:
    """The weights that a register of positions prefetches: in every step so many cache lines, at so
    many bytes from its own."""

    distance: Val
    lines: int


def ahead_of(plan: Plan, number: Val, count: int, wide: int) -> Ahead:
    """What register `number` of `count` prefetches of the panel that follows one of `wide`
    vectors."""
    lines = -(-2 * wide * SIDE // count)
    return Ahead(number * (lines * POSITION) + plan.panel_bytes // 2 * wide, lines)


def sums(
    b: Builder, plan: Plan, piece: Val, x: Ptr, w: Ptr, taps: Ptr | None, to: Ptr, apart: int,
    wide: int, meanwhile: Callable[[], None] | None, ahead: Ahead | None, stride: int = POSITION,
) -> None:  # fmt: skip
    """A piece of the sums of a register of positions, at `x`, and `wide` vectors of outputs, which
    go to `to`, `apart` bytes apart, `stride` bytes from one position to the next, and are added to
    what is there but for the first piece. `meanwhile` is what else is done while the first channel
    block is multiplied. All pointers are to bytes, but `taps`, which holds what each tap adds to x,
    where there are several."""
    step, begin, end = 2 * wide * REGISTER, b.index(0), b.index(plan.blocks)

    def clear() -> None:
        for o in range(wide):
            matrix.clear(b, o)

    def load() -> None:
        for o in range(wide):
            matrix.load(b, o, to + o * apart, stride)

    if plan.pieces == 1:
        clear()
    else:
        b.choose(piece.eq(0), clear, load)
        begin = b.index(piece * plan.blocks // plan.pieces)
        end = b.index((piece + 1) * plan.blocks // plan.pieces)
        x = (x + begin * (plan.block * POSITION)).fixed()
        w = (w + begin * (plan.taps * step)).fixed()

    def tap(x: Ptr, w: Ptr) -> None:
        matrix.load(b, POSITIONS, x, POSITION)
        _weights(b, w, wide)
        if ahead is not None:
            later = (w + ahead.distance).fixed()
            for i in range(ahead.lines):
                (later + i * POSITION).prefetch(locality=MIDDLE)
        _multiply(b, wide)
        _weights(b, w + wide * REGISTER, wide)
        _multiply(b, wide)
        matrix.load(b, POSITIONS, x + plan.low * POSITION, POSITION)
        _multiply(b, wide)

    with b.loop(begin, end, carry=[x.value, w.value]) as loop:
        x, w = x.of(loop.vars[0]), w.of(loop.vars[1])
        if taps is None:
            tap(x, w)
        else:
            with b.loop(0, plan.taps) as t:
                at = (x + (taps.cast(I64) + t).load()).fixed()
                tap(at, (w + t * step).fixed())
        if meanwhile is not None:
            with b.when(loop.index.eq(begin)):
                meanwhile()
        loop.next([(x + plan.block * POSITION).value, (w + plan.taps * step).value])
    for o in range(wide):
        matrix.store(b, o, to + o * apart, stride)


def _weights(b: Builder, at: Ptr, wide: int) -> None:
    for o in range(wide):
        matrix.load(b, WEIGHTS + o, at + o * REGISTER, POSITION)


def _multiply(b: Builder, wide: int) -> None:
    for o in range(wide):
        matrix.multiply(b, o, POSITIONS, WEIGHTS + o)
