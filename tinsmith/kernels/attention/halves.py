"""Rows of one item as bfloat16 halves, in the order in which registers are loaded.

Queries are positions, as `amx.split` has them. Keys and values are right operands, as
`amx.weights.pack` has them, [panel][channel block][low, high][vector of the panel] of registers; a
panel has two vectors. For scores, outputs are keys and channels the elements of their rows; for
results, outputs are elements of values and channels keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.types import BF16, F32, U8
from tinsmith.kernels.amx.plan import POSITION, Plan
from tinsmith.kernels.amx.split import load_some, put
from tinsmith.kernels.amx.sums import REGISTER
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position, run

VECTORS = 2  # of a panel
BLOCK = 2 * VECTORS * REGISTER  # bytes of a channel block of a panel
INTERLEAVED = [lane + half for lane in range(SIDE) for half in (0, SIDE)]


def split_queries(
    b: Builder, plan: Plan, q: Start, first: Val, count: Val, scale: float, to: Ptr
) -> None:
    """`count` rows from `first` on, times a factor."""
    factor = b.const(scale, F32.x(SIDE))
    with b.loop(0, count) as i:
        source = q.at(first + i).fixed()
        out = (to.cast(BF16) + i * DEPTH).fixed()

        def block(c: Position, count: int, source: Ptr = source, out: Ptr = out) -> None:
            x, y = _load(b, source + c * DEPTH, count)
            to = (out + c * (DEPTH * plan.block)).fixed()
            put(plan, to, matrix.halve(b, x * factor, y * factor))

        _each_block(b, plan.channels, block)


def split_keys(b: Builder, plan: Plan, k: Start, keys: int, to: Ptr) -> None:
    """The rows of all keys, transposed in pairs of elements; padding repeats the last key."""
    with b.loop(0, plan.outputs) as vector:
        out = _vector(plan, to, vector)
        lanes = [b.index(b.minimum(vector * SIDE + r, keys - 1)) for r in range(SIDE)]
        sources = [k.at(lane).fixed() for lane in lanes]

        def block(c: Position, count: int, out: Ptr = out, sources: list[Ptr] = sources) -> None:
            pairs = [matrix.halve(b, *_load(b, s + c * DEPTH, count)) for s in sources]
            for half in range(2):
                at = (out + (c * BLOCK + (1 - half) * VECTORS * REGISTER)).fixed()
                square = transpose([pair[half].bitcast(F32.x(SIDE)) for pair in pairs])
                for i, row in enumerate(square):
                    (at + i * POSITION).cast(F32).store(row)

        _each_block(b, plan.channels, block)


def split_values(b: Builder, plan: Plan, v: Start, width: int, to: Ptr) -> None:
    """The rows of all values, interleaved in pairs; what does not exist is zero."""
    vectors = -(-width // SIDE)

    def pair(i: Position, several: bool) -> None:
        sources = [v.at(i * 2 + r).fixed() for r in range(1 + several)]
        for n in range(vectors):
            mask = b.first_lanes(width - n * SIDE, SIDE) if width - n * SIDE < SIDE else None
            upper, *lower = [(s + n * SIDE).load(SIDE, mask) for s in sources]
            keep(i, n, matrix.halve(b, upper, lower[0] if several else b.zero(F32.x(SIDE))))

    def keep(i: Position, n: Position, halves: tuple[Val, Val]) -> None:
        at = _vector(plan, to, n) + i // SIDE * BLOCK + i % SIDE * POSITION
        for half, value in zip((1, 0), halves, strict=True):
            place = at + half * VECTORS * REGISTER
            place.cast(BF16).store(value.shuffle(None, INTERLEAVED))

    whole, rest = divmod(plan.channels, 2)
    run(b, 0, whole, lambda i: pair(i, True))
    run(b, whole, whole + rest, lambda i: pair(i, False))
    nothing = b.zero(BF16.x(DEPTH)), b.zero(BF16.x(DEPTH))
    for n in range(plan.outputs):
        first = whole + rest if n < vectors else 0
        run(b, first, plan.blocks * SIDE, partial(keep, n=n, halves=nothing))


def _vector(plan: Plan, to: Ptr, number: Position) -> Ptr:
    """Where a vector of outputs begins."""
    panel, n = number // VECTORS, number % VECTORS
    return (to.cast(U8) + panel * plan.panel_bytes + n * REGISTER).fixed()


def _load(b: Builder, at: Ptr, count: int) -> tuple[Val, Val]:
    """`count` elements, and zeros, as two vectors."""
    return load_some(b, at, count), load_some(b, at + SIDE, count - SIDE)


def _each_block(b: Builder, channels: int, body: Callable[[Position, int], None]) -> None:
    """body(block, channels of it)."""
    full, rest = divmod(channels, DEPTH)
    if full:
        with b.loop(0, full) as c:
            body(c, DEPTH)
    if rest:
        body(full, rest)
