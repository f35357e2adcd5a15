"""Convolutions of bytes by split weights (`dot/saturating.py`): how their weights are packed, and
their windows transposed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import U8
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.saturating import VECTORS, fitting, sum_rest, transpose_rows
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.integers_plan import Cut, Plan, pack_weights
from tinsmith.kernels.window.integers_windows import Stretches, source_of
from tinsmith.sizes import Number

Array = np.ndarray[Any, Any]


def pack_fitting(
    w: Array, zero: Array | None, name: str, cut: Cut, tiling: Tiling, pixel: int
) -> Array:
    """`pack_weights` of the fitting weights."""
    return pack_weights(fitting(w), zero, name, cut, tiling, pixel)


def parts_of(plan: Plan) -> tuple[Number, Number]:
    """(into how many parts the pixels of an image are cut, each a tile of the phase
    `sum_windows_by_rest`; vectors of pixels of each)."""
    vectors = plan.rest.vectors
    parts = -(-vectors // VECTORS)
    return parts, -(-vectors // parts)


def room_of(plan: Plan) -> Number:
    """Bytes of workspace that `sum_windows_by_rest` needs."""
    vectors = parts_of(plan)[1]
    return plan.rest.transposed(vectors) + plan.rest.block_sums(vectors)


def sums_at(em: Emit, plan: Plan, image: Position, c: Position, pixel: Position) -> Ptr:
    """Where the sums of the rest of a pixel and of block `c` of columns lie, in scratch as
    [image][block of columns][pixel][column]."""
    rest = plan.rest
    blocks = rest.columns // rest.block
    at = ((image * blocks + c) * rest.rows + pixel) * rest.block
    return (em.scratch.cast(I32) + plan.weights_at + at).fixed()


def sum_windows_by_rest(em: Emit, plan: Plan) -> None:
    """Emit the phase that sums products of windows by the rest of the weights. A tile is some
    vectors of pixels of an image."""
    b, block, rest, source = em.b, plan.block, plan.rest, source_of(em, plan)
    (parts, vectors), depth = parts_of(plan), 4 * plan.depth
    count = int(vectors)
    with b.loop(em.begin, em.end) as t:
        image, first = t // parts, t % parts * (count * block)

        transposed = em.workspace.cast(U8)
        with b.loop(0, count) as i:
            pixel = rest.first(b, first, i)
            pixels = [pixel + j for j in range(block)]
            apart = plan.runs > 1
            runs = [(p // plan.pixels, p % plan.pixels) if apart else (0, p) for p in pixels]
            windows = [source.at(plan, image, *place).cast(U8).fixed() for place in runs]
            with b.loop(0, rest.depth // depth) as tap:
                away = Stretches(em, plan, source.first, source.first, 1).away(tap) * 4
                with b.loop(0, depth // block) as k:
                    to = transposed + i * block + (tap * depth + k * block) * (count * block)
                    transpose_rows(windows, to, away + k * block, count)

        def place(c: Val, i: Val) -> Ptr:
            return sums_at(em, plan, image, c, rest.first(b, first, i))

        room = transposed, transposed + rest.transposed(count)
        sum_rest(em, rest, count, room, (0, rest.columns // block), place)
