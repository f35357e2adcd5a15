"""The first step: the input of a band as bfloat16 halves, in the order of `Plan`."""

from __future__ import annotations

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.types import BF16, F32
from tinsmith.kernels.amx.plan import Plan
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Source:
    """Where the input lies: a pointer to what the first tap of the first result reads, and the
    elements from one image, block of 16 channels, row and place to the next.

    `flat`: the rows of results lie side by side, in the input as well, and are one.
    """

    pointer: Ptr
    image: int
    block: int
    row: int
    place: int
    flat: bool

    def step(self, plan: Plan) -> int:
        """Elements from one position of flat rows to the next."""
        return self.place if plan.across.out > 1 else self.row


def split(
    b: Builder, plan: Plan, source: Source, image: Val, row: Val, rows: Val, c0: Val, c1: Val,
    to: Ptr,
) -> None:  # fmt: skip
    """Split what `rows` rows of results from row `row` read, of channel blocks [c0, c1)."""
    at = source.pointer + image * source.image + row * (plan.down.stride * source.row)
    at, to = at.fixed(), to.cast(BF16)

    def blocks(at: Ptr, to: Ptr, count: Position) -> None:
        """Of `count` flat positions, or rows."""
        full, rest = divmod(plan.channels, DEPTH)

        def block(c: Position, channels: int) -> None:
            first = (at + c * (2 * source.block)).fixed()
            out = (to + c * (plan.block * DEPTH)).fixed()
            if source.flat:
                _flat(b, plan, source, first, out, count, channels)
            else:
                _rows(b, plan, source, first, out, count, channels)

        if full:
            with b.loop(c0, b.minimum(c1, full)) as c:
                block(c, DEPTH)
        if rest:
            with b.when(c1 > full):
                block(full, rest)

    if source.block == SIDE:  # all channels of a position lie side by side
        with b.loop(0, rows * plan.across.out) as x:
            blocks((at + x * source.step(plan)).fixed(), (to + x * DEPTH).fixed(), 1)
    else:
        blocks(at, to, rows * plan.across.out if source.flat else rows)


def _flat(
    b: Builder, plan: Plan, source: Source, at: Ptr, to: Ptr, count: Position, channels: int
) -> None:
    with b.loop(0, count) as x:
        here = (at + x * source.step(plan)).fixed()
        _halve(b, plan, source, here, (to + x * DEPTH).fixed(), channels)


def _rows(
    b: Builder, plan: Plan, source: Source, at: Ptr, to: Ptr, rows: Position, channels: int
) -> None:
    down, across = plan.down, plan.across
    for i, (p, q) in enumerate(plan.remainders):
        first = (at + (p * source.row + q * source.place)).fixed()
        out = (to + i * plan.plane * DEPTH).fixed()
        with b.loop(0, b.index(rows) + down.reach[p]) as r:
            row = (first + r * (down.stride * source.row)).fixed()
            along = (out + r * (plan.pitch * DEPTH)).fixed()
            with b.loop(0, across.out + across.reach[q]) as x:
                here = (row + x * (across.stride * source.place)).fixed()
                _halve(b, plan, source, here, (along + x * DEPTH).fixed(), channels)


def _halve(b: Builder, plan: Plan, source: Source, at: Ptr, to: Ptr, channels: int) -> None:
    """One position of one channel block."""
    x, y = (load_some(b, at + k * source.block, channels - k * SIDE) for k in range(2))
    put(plan, to, matrix.halve(b, x, y))


def put(plan: Plan, to: Ptr, halves: tuple[Val, Val]) -> None:
    """Keep one position of one channel block."""
    high, low = halves
    to.store(high)
    (to + plan.low * DEPTH).store(low)


def load_some(b: Builder, at: Ptr, channels: int) -> Val:
    """16 channels, of which the first `channels` are there; the others are 0."""
    if channels <= 0:
        return b.zero(F32.x(SIDE))
    return at.load(SIDE, None if channels >= SIDE else b.first_lanes(channels, SIDE))
