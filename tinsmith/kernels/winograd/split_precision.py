"""Winograd's method on matrix registers: V and U in split precision (sums of high and low
bfloat16), in the layouts of `kernels/amx`.

V is [position][pair of channel blocks][high, low][tile][32 channels]. U of a position is laid out
as `amx.pack_right.pack` packs weights of one tap. `choose.GROWTH` bounds how much the transforms
amplify the errors of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.codegen.types import BF16, F32, U8, Ty
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.amx.pack_right import registers
from tinsmith.kernels.amx.sums import Ahead, Operands, ahead_of, sums
from tinsmith.kernels.amx.tiling import POSITION, REGISTER
from tinsmith.kernels.winograd.fetch import Prefetch
from tinsmith.kernels.winograd.matrices import floats
from tinsmith.kernels.winograd.product import by_width
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.kernels.winograd.weights import SMALL

WORD = Ty("u32")
TOP = 0xFFFF0000  # mask of the bits of a word that are its upper bfloat16


def pack(w: Array, plan: WinogradPlan) -> Array:
    """The weights [K, C, r_h, r_w] as U, flat, as bits of bfloat16; computed in float64."""
    both = np.kron(floats(plan.rows.g), floats(plan.cols.g))
    step = max(64, SMALL // both.size)
    packed, at = np.empty((plan.positions, plan.product.weight_bytes // 2), np.uint16), 0
    for part in registers(w):
        panels, blocks, taps = part.shape[:3]
        for block in part.reshape(panels * blocks, taps, -1):
            size = block.shape[1]
            for i in range(0, size, step):
                u = both @ block[:, i : i + step].astype(np.float64)
                high, low = matrix.split_array(u.astype(np.float32))
                for half, start in ((low, at + i), (high, at + size + i)):
                    packed[:, start : start + half.shape[1]] = half
            at += 2 * size
    return packed.reshape(-1)


class Splitter:
    """Emits stores of V for one tile and a pair of channel blocks of 16, whose high parts are one
    vector of 32 bfloat16, and whose low parts are another. `first` stores float32 of the first
    block where the high parts will go; `second` splits both blocks. `tile`: number within V."""

    def __init__(self, b: Builder, plan: WinogradPlan, space: Ptr, pair: Val, tile: Val) -> None:
        self.b, self.plan = b, plan
        self.at = (space + (pair * (2 * plan.padded_tiles) + tile) * SIDE).fixed()

    def first(self, position: Val | int, v: Val) -> None:
        (self.at + position * self.plan.v_step).store(v)

    def second(self, position: Val | int, v: Val) -> None:
        line = (self.at + position * self.plan.v_step).fixed()
        high, low = matrix.split(self.b, line.load(SIDE), v, endless=False)
        line.cast(BF16).store(high)
        (line.cast(BF16) + self.plan.padded_tiles * DEPTH).store(low)

    def alone(self) -> None:
        """Split a pair whose second block does not exist: it is zeros."""
        with self.b.loop(0, self.plan.positions) as position:
            self.second(position, self.b.zero(F32.x(SIDE)))


def product_stage(
    em: Emit, plan: WinogradPlan, space: Ptr, configuration: Ptr, u0: Val, u1: Val,
    prefetch: Prefetch | None,
) -> None:  # fmt: skip
    """Emit M = V U for the units [u0, u1) of a block, pairs of a position and a panel, on matrix
    registers. `space`: the address of V; `configuration`: workspace for that of the registers;
    `prefetch(i)` is emitted in register tile i of the block, counted through all units."""
    b, product, count = em.b, plan.product, plan.micro.count
    with matrix.matrices(b, configuration), b.loop(u0, u1) as u:
        position, panel = b.index(u // plan.panels), b.index(u % plan.panels)
        x = (space.cast(U8) + position * (4 * plan.v_step)).fixed()
        w = em.packed[0].cast(U8) + position * product.weight_bytes
        w = (w + panel * product.panel_bytes).fixed()
        to = space + plan.m_start + position * plan.m_step
        to = (to + panel * (2 * plan.padded_tiles * SIDE)).cast(U8).fixed()

        def ask(prefetch: Prefetch, piece: Val, i: Val) -> None:
            with b.when(piece.eq(0)):
                prefetch(i)

        def unit(wide: int) -> None:
            apart = plan.padded_tiles * POSITION
            with b.loop(0, product.pieces) as piece, b.loop(0, count) as i:
                rows = i * REGISTER
                at, out = (x + rows).fixed(), (to + rows).fixed()
                fetching = (
                    None if prefetch is None else partial(ask, prefetch, piece, u * count + i)
                )
                ahead = _ahead(em, plan, i, wide)
                of = Operands(at, w, out, apart, ahead=ahead, meanwhile=fetching)
                sums(b, product, piece, wide, of)

        by_width(b, plan, panel, unit)


def _ahead(em: Emit, plan: WinogradPlan, i: Val, wide: int) -> Ahead | None:
    """What register tile i of a unit prefetches of the weights of the next unit; None if all
    weights fit in a quarter of L2. `wide`: vectors of outputs in the unit's panel."""
    product = plan.product
    if 4 * plan.positions * product.weight_bytes <= em.target.l2:
        return None
    return ahead_of(product, i, plan.micro.count, wide)


def transformed_weights(em: Emit, plan: WinogradPlan, k: Val, channel: Val) -> Callable[[Val], Val]:
    """A function that loads the transformed weights of output block `k` and one input channel at a
    position: the sum of their high and low parts."""
    b, product = em.b, plan.product
    panel, block, lane = k // 2, channel // DEPTH, channel % DEPTH
    wide = (panel < plan.outputs // 2).select(b.index(2), b.index(1))
    at = em.packed[0].cast(U8) + panel * product.panel_bytes + block * wide * (2 * REGISTER)
    at = (at + k % 2 * REGISTER + lane // 2 * POSITION).fixed()
    low = ((1 - lane % 2) * SIDE).to("u32").splat(SIDE)

    def load(position: Val) -> Val:
        here = at + position * product.weight_bytes
        both = (here.cast(WORD), (here + wide * REGISTER).cast(WORD))
        first, second = (((p.load(SIDE) << low) & TOP).bitcast(F32.x(SIDE)) for p in both)
        return first + second

    return load
