"""Packing the right operand for matrix registers: float32 becomes bfloat16 parts, in the order in
which registers load them.

The packed operand is [panel][channel block][tap][part][vector of the panel] of registers, each 32
channels by 16 outputs. A panel has two vectors of 16 outputs, the last panel perhaps one. Of the
parts of split precision lo comes first, which is multiplied first. `pack` packs constant weights,
`pack_columns_of` and `pack_rows_of` rows that only the run knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.products import Product
from tinsmith.codegen.types import BF16, F32, U8
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Packed
from tinsmith.kernels.amx.pack_left import each_block, load_pair
from tinsmith.kernels.amx.tiling import POSITION, REGISTER, AmxPlan
from tinsmith.kernels.float_products import can_be_split
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position, run

Rows = Callable[[Position], Ptr]
"""rows(i) is a pointer to the first element of row i."""

INTERLEAVED = [lane + second for lane in range(SIDE) for second in (0, SIDE)]


# ---- constant weights


def packed_weights(w: Array, row: Product, columns: bool = False) -> Packed:
    """The `Packed` of constant weights `w`, [outputs, channels, *taps], or, with `columns`, of a
    matrix (k channels, n outputs), in the parts that `row` of the table of products multiplies."""
    outputs, channels, *taps = w.shape[::-1] if columns else w.shape
    size = 2 * row.parts * -(-outputs // SIDE) * SIDE * -(-channels // DEPTH) * DEPTH
    order = pack_columns if columns else pack
    return Packed("weights", order, (w, row.parts), size * math.prod(taps), can_be_split)


def pack(w: Array, parts: int) -> Array:
    """Return weights [outputs, channels, *taps] in the order of the module, flat, as the bits of
    bfloat16 (uint16). `parts`: 1, or 2 for split precision. Padding outputs and channels are 0."""
    found = registers(w)
    packed, at = np.empty(parts * sum(panels.size for panels in found), np.uint16), 0
    for panels in found:
        into = packed[at : at + parts * panels.size]
        into = into.reshape(*panels.shape[:3], parts, *panels.shape[3:])
        for i, part in enumerate(matrix.split_array(panels, parts)[::-1]):
            into[..., i, :, :] = part
        at += into.size
    return packed


def pack_columns(w: Array, parts: int) -> Array:
    """A matrix (k channels, n outputs) as `pack` packs it."""
    return pack(w.T, parts)


def registers(w: Array) -> list[Array]:
    """Return weights [outputs, channels, *taps] as float32 arrays [panel][channel block][tap]
    [vector of the panel][512 elements of a register: 16 pairs of channels x 16 outputs x 2]: one of
    all panels of two vectors, then one of the last panel if it has a single vector."""
    w = w.reshape(*w.shape[:2], -1)
    k, c, taps = w.shape
    outputs, blocks = -(-k // SIDE), -(-c // DEPTH)
    wide = w
    if w.shape[:2] != (outputs * SIDE, blocks * DEPTH):
        wide = np.zeros((outputs * SIDE, blocks * DEPTH, taps), w.dtype)
        wide[:k, :c] = w
    vectors, whole = wide.reshape(outputs, SIDE, blocks, DEPTH // 2, 2, taps), outputs // 2 * 2
    found = []
    for count, some in ((2, vectors[:whole]), (1, vectors[whole:])):
        panels = some.reshape(-1, count, *some.shape[1:]).transpose(0, 3, 6, 1, 4, 2, 5)
        if panels.size:
            found.append(np.ascontiguousarray(panels).reshape(*panels.shape[:4], SIDE * DEPTH))
    return found


# ---- rows that only the run knows; every panel has two vectors


def pack_columns_of(b: Builder, plan: AmxPlan, rows: Rows, count: int, to: Ptr) -> None:
    """Emit code that packs `count` rows of `plan.channels` float32 as a right operand at `to`: each
    row is an output, its elements are the channels. Padding outputs repeat the last row."""
    with b.loop(0, plan.outputs) as vector:
        out = _vector(plan, to, vector)
        lanes = [b.index(b.minimum(vector * SIDE + r, count - 1)) for r in range(SIDE)]
        sources = [rows(lane).fixed() for lane in lanes]

        def block(c: Position, channels: int, out: Ptr = out, sources: list[Ptr] = sources) -> None:
            loaded = (load_pair(b, s + c * DEPTH, channels) for s in sources)
            found = [matrix.split(b, *pair, plan.row.parts) for pair in loaded]
            for i, part in enumerate(zip(*found, strict=True)):
                at = (out + (c * _block(plan) + _part(plan, i))).fixed()
                for j, line in enumerate(transpose([v.bitcast(F32.x(SIDE)) for v in part])):
                    (at + j * POSITION).cast(F32).store(line)

        each_block(b, plan.channels, block)


def pack_rows_of(b: Builder, plan: AmxPlan, rows: Rows, width: int, to: Ptr) -> None:
    """Emit code that packs `plan.channels` rows of `width` float32 as a right operand at `to`: each
    row is a channel, its elements are the outputs. Padding is zeros."""
    vectors = -(-width // SIDE)

    def pair(i: Position, several: bool) -> None:
        sources = [rows(i * 2 + r).fixed() for r in range(1 + several)]
        for n in range(vectors):
            upper, *lower = [(s + n * SIDE).load(SIDE, count=width - n * SIDE) for s in sources]
            lower = lower[0] if several else b.zero(F32.x(SIDE))
            keep(i, n, matrix.split(b, upper, lower, plan.row.parts))

    def keep(i: Position, n: Position, parts: list[Val]) -> None:
        at = _vector(plan, to, n) + i // SIDE * _block(plan) + i % SIDE * POSITION
        for part, value in enumerate(parts):
            (at + _part(plan, part)).cast(BF16).store(value.shuffle(None, INTERLEAVED))

    whole, rest = divmod(plan.channels, 2)
    run(b, 0, whole, lambda i: pair(i, True))
    run(b, whole, whole + rest, lambda i: pair(i, False))
    nothing = [b.zero(BF16.x(DEPTH)) for _ in range(plan.row.parts)]
    for n in range(plan.outputs):
        first = whole + rest if n < vectors else 0
        run(b, first, plan.blocks * SIDE, partial(keep, n=n, parts=nothing))


def _vector(plan: AmxPlan, to: Ptr, number: Position) -> Ptr:
    """Where the first register of vector `number` of 16 outputs lies in the operand packed at `to`:
    registers of the two vectors of a panel alternate."""
    panel, n = number // 2, number % 2
    return (to.cast(U8) + panel * plan.panel_bytes + n * REGISTER).fixed()


def _block(plan: AmxPlan) -> int:
    """Bytes of a channel block of a panel of two vectors, if there is one tap."""
    return plan.row.parts * 2 * REGISTER


def _part(plan: AmxPlan, i: int) -> int:
    """Bytes from the beginning of a channel block (`_block`) to its part i (0: hi)."""
    return (plan.row.parts - 1 - i) * 2 * REGISTER
