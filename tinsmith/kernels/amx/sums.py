"""Sums of products in matrix registers: the microkernel of everything in `kernels/amx`.

One register of 16 positions is multiplied by two registers of 16 outputs. In split precision that
is six products for six registers that are loaded. Two registers of positions would be twelve
products for eight loads, but are slower beside a busy hardware thread ("What costs days" in
docs/kernels.md).
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import I64
from tinsmith.kernels.amx.tiling import POSITION, REGISTER, AmxPlan
from tinsmith.records import dataclass

MIDDLE = 2  # the second-level cache
POSITIONS, WEIGHTS = 2, 3  # numbers of the first registers of both; those of sums begin at 0


@dataclass(frozen=True)
class Ahead:
    """The weights that are prefetched while a register of positions is multiplied: with each tap of
    each channel block `lines` cache lines, from `distance` bytes after the tap's own weights."""

    distance: Val
    lines: int


@dataclass(frozen=True)
class Operands:
    """The operands of `sums`, and where the sums go. All pointers are to bytes.

    x, w       the packed register of positions, and the packed panel of outputs
    to         the sums: vectors of outputs lie `apart` bytes apart, positions `stride` bytes
    taps       points to the bytes (int64) that each tap adds to x; None: there is one tap
    ahead      what is prefetched
    meanwhile  emits other work to be done while the first channel block is multiplied
    """

    x: Ptr
    w: Ptr
    to: Ptr
    apart: int
    stride: int = POSITION
    taps: Ptr | None = None
    ahead: Ahead | None = None
    meanwhile: Callable[[], None] | None = None


def ahead_of(plan: AmxPlan, number: Val, count: int, wide: int) -> Ahead:
    """What is prefetched while register of positions `number`, of `count`, is multiplied: its equal
    share of the next panel of weights, which lies after this one of `wide` vectors."""
    parts = plan.row.parts
    lines = -(-parts * wide * REGISTER // POSITION // count)
    return Ahead(number * (lines * POSITION) + plan.panel_bytes // 2 * wide, lines)


def sums(b: Builder, plan: AmxPlan, piece: Val | int, wide: int, of: Operands) -> None:
    """Emit the product of a register of 16 positions and `wide` (1 or 2) vectors of outputs: the
    sums over all taps and the channel blocks of number `piece` of `plan.pieces`. They start from 0
    in piece 0, else from those at `of.to`, and are stored there."""
    row, x, w, begin, end = plan.row, of.x, of.w, b.index(0), b.index(plan.blocks)
    step = row.parts * wide * REGISTER

    def clear() -> None:
        for o in range(wide):
            matrix.clear(b, o)

    def load() -> None:
        for o in range(wide):
            matrix.load(b, o, of.to + o * of.apart, of.stride)

    if plan.pieces == 1:
        clear()
    else:
        piece = b.index(piece)
        b.choose(piece.eq(0), clear, load)
        begin = b.index(piece * plan.blocks // plan.pieces)
        end = b.index((piece + 1) * plan.blocks // plan.pieces)
        x = (x + begin * (plan.block * POSITION)).fixed()
        w = (w + begin * (plan.taps * step)).fixed()

    def tap(x: Ptr, w: Ptr) -> None:
        held = (-1, -1)
        for i, (left, right) in enumerate(row.terms):
            if left != held[0]:
                matrix.load(b, POSITIONS, x + left * plan.part * POSITION, POSITION)
            if right != held[1]:
                at = w + (row.parts - 1 - right) * wide * REGISTER
                for o in range(wide):
                    matrix.load(b, WEIGHTS + o, at + o * REGISTER, POSITION)
            if i == 0 and of.ahead is not None:
                later = (w + of.ahead.distance).fixed()
                for line in range(of.ahead.lines):
                    (later + line * POSITION).prefetch(locality=MIDDLE)
            for o in range(wide):
                row.step(b, o, POSITIONS, WEIGHTS + o)
            held = left, right

    with b.loop(begin, end, carry=[x.value, w.value]) as loop:
        x, w = x.of(loop.vars[0]), w.of(loop.vars[1])
        if of.taps is None:
            tap(x, w)
        else:
            with b.loop(0, plan.taps) as t:
                at = (x + (of.taps.cast(I64) + t).load()).fixed()
                tap(at, (w + t * step).fixed())
        if of.meanwhile is not None:
            with b.when(loop.index.eq(begin)):
                of.meanwhile()
        loop.next([(x + plan.block * POSITION).value, (w + plan.taps * step).value])
    for o in range(wide):
        matrix.store(b, o, of.to + o * of.apart, of.stride)
