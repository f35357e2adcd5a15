"""Packing the left operand for matrix registers: float32 becomes bfloat16 parts, in the layout of
`amx/tiling.py`.

A position of a channel block is 32 bfloat16, one for each channel. In split precision each has
a hi and a lo, `AmxPlan.part` positions apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.types import BF16, F32
from tinsmith.kernels.amx.tiling import AmxPlan
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Source:
    """Where the float32 input lies: a pointer to what the first tap of the first result reads, and
    the strides of images, blocks of 16 channels, rows and columns (`place`), in elements.

    `flat`: the rows of an image lie without gaps, and each result reads its own place alone, so
    that all rows are packed as one.
    """

    pointer: Ptr
    image: int
    block: int
    row: int
    place: int
    flat: bool


@dataclass(frozen=True)
class LeftPacker:
    """Emits code that packs bands (some rows of an image) of the input `source`."""

    b: Builder
    plan: AmxPlan
    source: Source

    def band(self, image: Val, row: Val, rows: Val, c0: Val, c1: Val, to: Ptr) -> None:
        """Emit code that packs what the results in rows [row, row + rows) of one image read, of
        channel blocks [c0, c1). `to`: where the packed band begins (its channel block 0)."""
        b, plan, source = self.b, self.plan, self.source
        at = source.pointer + image * source.image + row * (plan.down.stride * source.row)
        at, to = at.fixed(), to.cast(BF16)

        def blocks(at: Ptr, to: Ptr, count: Position) -> None:
            """Pack `count` positions (of a flat source) or rows of the channel blocks [c0, c1)."""

            def block(c: Position, channels: int) -> None:
                first = (at + c * (2 * source.block)).fixed()
                out = (to + c * (plan.block * DEPTH)).fixed()
                if source.flat:
                    self._line(first, out, count, self._step, channels)
                else:
                    self._rows(first, out, count, channels)

            each_block(b, plan.channels, block, c0, c1)

        if source.block == SIDE:  # all channels of a position lie side by side
            with b.loop(0, rows * plan.across.out) as x:
                blocks((at + x * self._step).fixed(), (to + x * DEPTH).fixed(), 1)
        else:
            blocks(at, to, rows * plan.across.out if source.flat else rows)

    @property
    def _step(self) -> int:
        """Elements of a flat source from one position to the next."""
        return self.source.place if self.plan.across.out > 1 else self.source.row

    def _rows(self, at: Ptr, to: Ptr, rows: Position, channels: int) -> None:
        """Pack what `rows` rows of results read of one channel block: a plane for each pair of
        remainders of rows and columns by the strides. `channels` as in `_line`."""
        b, plan, source = self.b, self.plan, self.source
        down, across = plan.down, plan.across
        for i, (p, q) in enumerate(plan.remainders):
            first = (at + (p * source.row + q * source.place)).fixed()
            out = (to + i * plan.plane * DEPTH).fixed()
            with b.loop(0, b.index(rows) + down.reach[p]) as r:
                row = (first + r * (down.stride * source.row)).fixed()
                along = (out + r * (plan.pitch * DEPTH)).fixed()
                step = across.stride * source.place
                self._line(row, along, across.out + across.reach[q], step, channels)

    def _line(self, at: Ptr, to: Ptr, count: Position, step: int, channels: int) -> None:
        """Pack `count` positions of one channel block, `step` elements apart in the input. Only the
        first `channels` of its 32 channels are there; others become 0."""
        with self.b.loop(0, count) as x:
            here, out = (at + x * step).fixed(), (to + x * DEPTH).fixed()
            pair = load_pair(self.b, here, channels, self.source.block)
            put(self.plan, out, matrix.split(self.b, *pair, self.plan.row.parts))


def pack_row(b: Builder, plan: AmxPlan, source: Ptr, factor: Val, to: Ptr) -> None:
    """Emit code that packs one row of `plan.channels` contiguous float32 at `source`, times
    `factor` (a vector of 16 lanes), as one position of the packed operand. `to`: the position in
    the first channel block."""

    def block(c: Position, channels: int) -> None:
        x, y = load_pair(b, source + c * DEPTH, channels)
        out = (to + c * (DEPTH * plan.block)).fixed()
        put(plan, out, matrix.split(b, x * factor, y * factor, plan.row.parts))

    each_block(b, plan.channels, block)


def put(plan: AmxPlan, to: Ptr, parts: list[Val]) -> None:
    """Emit stores of one position of a channel block: each of `parts`, hi first, a vector of 32
    bfloat16, to its part of the packed operand. `to`: the position in the first part."""
    for i, part in enumerate(parts):
        (to + i * plan.part * DEPTH).store(part)


def each_block(
    b: Builder, channels: int, body: Callable[[Position, int], None], first: Position = 0,
    last: Val | None = None,
) -> None:  # fmt: skip
    """Emit `body(block, valid)` for the blocks [first, last) of `channels` cut by 32 (`last` None:
    to the end). `valid` (an int): channels of the block, fewer than 32 perhaps in the very last."""
    full, rest = divmod(channels, DEPTH)
    if full:
        with b.loop(first, full if last is None else b.minimum(last, full)) as c:
            body(c, DEPTH)
    if rest:
        with nullcontext() if last is None else b.when(last > full):
            body(full, rest)


def load_pair(b: Builder, at: Ptr, channels: int, apart: int = SIDE) -> tuple[Val, Val]:
    """Load 32 channels (float32) as two vectors of 16, the second `apart` elements after the first.
    Only the first `channels` of the 32 are read; the others are 0."""
    return _load(b, at, channels), _load(b, at + apart, channels - SIDE)


def _load(b: Builder, at: Ptr, channels: int) -> Val:
    return at.load(SIDE, count=channels) if channels > 0 else b.zero(F32.x(SIDE))
