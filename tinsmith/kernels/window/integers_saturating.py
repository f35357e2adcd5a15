"""Exact convolutions of bytes by instructions whose sums of pairs saturate.

The row "pmaddubsw" of the table of products adds two products of an unsigned by a signed byte in 16
bits: 255 (w0 + w1) must lie between -32768 and 32767, so |w0 + w1| <= MOST (weights of different
signs always fit). Weights are split into w = fitting + rest: in each pair that does not fit, the
larger weight is made smaller. The rest is sparse: of weights with a normal distribution 2 % have
one at 256 inputs, 1 % at 1,024. Its products are summed beforehand, for some vectors of pixels at a
time, whose windows are transposed for that:

    sums[pixel][column] = sum over the column's entries (k, e) of window[pixel][k] * e

The tiles of products by the fitting weights add them (`added`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import U8, multiply_pairs
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.skeleton import Tile
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.integers_plan import Cut, Plan, pack_weights
from tinsmith.kernels.window.integers_windows import Stretches, source_of

Array = np.ndarray[Any, Any]

MOST = 128  # 255 * 128 < 32768
VECTORS = 7  # of pixels: in registers in the phase `sum_rest`, at most
REST, ENTRY = 20.0, 0.04
"""Operations of float32 in the time of one sum of the rest: REST, and ENTRY for each input of a
window, of which some have entries. Fitted to eight 1x1 layers of 128 to 2,048 inputs, Zen 3, one
thread, by profiles of single layers (docs/kernels.md): costs over those of `conv_integer` are
within 8 % of what was measured."""
DENSE = 0.03
"""Weights with a larger share of entries in the rest are not split: the rest takes too long."""


def split_weights(w: Array) -> tuple[Array, Array, Array]:
    """(whole, at, rest) for weights w [outputs, inputs, *taps] of int8: `whole` is w as [outputs,
    taps, inputs], `at` are the places in it, flat and in order, of the weights that have a rest,
    and `rest` is what each of these, the larger weight of its pair, is above what fits."""
    whole = np.ascontiguousarray(w.reshape(*w.shape[:2], -1).swapaxes(1, 2))
    pairs = whole.reshape(-1, 2)
    both = pairs[:, 0].astype(np.int16) + pairs[:, 1]
    at = np.flatnonzero(np.abs(both) > MOST)  # of different signs they always fit
    larger = np.abs(pairs[at].astype(np.int16)).argmax(axis=1)
    return whole, 2 * at + larger, both[at] - np.sign(both[at]) * MOST


def is_sparse(w: Array) -> bool:
    """Whether few enough weights have a rest (`Packed.fits`, which is asked about the array of zero
    points, too, which has one axis and always fits)."""
    return w.ndim < 2 or len(split_weights(w)[1]) <= DENSE * w.size


def pack_fitting(
    w: Array, zero: Array | None, name: str, cut: Cut, tiling: Tiling, pixel: int
) -> Array:
    """`pack_weights` of the fitting weights."""
    whole, at, rest = split_weights(w)
    fitting = whole.copy()
    fitting.reshape(-1)[at] -= rest.astype(np.int8)
    fitting = fitting.swapaxes(1, 2).reshape(w.shape)
    return pack_weights(fitting, zero, name, cut, tiling, pixel)


def pack_rest(w: Array, columns: int) -> Array:
    """The entries of the rest of w, as int32: for each of `columns` columns, padding included, the
    number of its first entry, and last the number of all; then k and e of each entry."""
    _, at, rest = split_weights(w)
    output, k = np.divmod(at, w[0].size)
    first = np.searchsorted(output, np.arange(columns + 1))
    return np.concatenate([first, np.stack([k, rest], axis=1).reshape(-1)]).astype(np.int32)


# ---- code


def rest_vectors(plan: Plan) -> tuple[int, int]:
    """(tiles of an image in the phase `sum_rest`, vectors of pixels of each)."""
    vectors = -(-plan.runs * plan.pixels // plan.block)
    tiles = -(-vectors // VECTORS)
    return tiles, -(-vectors // tiles)


def _depth(plan: Plan) -> int:
    """Elements of a window, which is the depth of the product."""
    return plan.geo.taps * plan.cut.inputs


def rest_room(plan: Plan) -> int:
    """Bytes of workspace that `sum_rest` needs: transposed windows, and sums of a block of
    columns."""
    return rest_vectors(plan)[1] * plan.block * (_depth(plan) + 4 * plan.block) * plan.split


def rest_time(target: Target, plan: Plan) -> float:
    """Seconds that `sum_rest` takes, of weights as they usually are."""
    columns, pixels = plan.cut.columns, plan.images * plan.runs * plan.pixels
    return target.time(pixels * (columns * (REST + ENTRY * _depth(plan)) + _depth(plan)), 0.0)


def sum_rest(em: Emit, plan: Plan) -> None:
    """Emit the phase that sums products by the rest, to scratch, as [image][block of
    columns][pixel][column]. A tile is some vectors of pixels of an image. A vector that would go
    beyond the image begins earlier, to end with it."""
    b, block, (tiles, vectors) = em.b, plan.block, rest_vectors(plan)
    count = int(vectors)
    windows = em.workspace.cast(U8)
    sums = (windows + count * block * _depth(plan)).cast(I32)
    with b.loop(em.begin, em.end) as t:
        image, first = t // tiles, t % tiles * (count * block)

        def pixel(i: Val) -> Position:
            return b.minimum(first + i * block, plan.runs * plan.pixels - block)

        with b.loop(0, count) as i:
            to = (windows + i * block).fixed()
            _transpose_windows(em, plan, image, pixel(i), to, count)
        with b.loop(0, plan.cut.columns // block) as c:
            _sum_columns(em, plan, windows, sums, c, count)
            with b.loop(0, count) as i:
                lines = [(sums + (j * count + i) * block).load(block) for j in range(block)]
                to = _rest_at(em, plan, image, c, pixel(i))
                for j, line in enumerate(transpose(lines)):
                    (to + j * block).store(line)


def _rest_at(em: Emit, plan: Plan, image: Position, c: Position, pixel: Position) -> Ptr:
    """Where the sums of a pixel and of block `c` of columns lie."""
    blocks, pixels = plan.cut.columns // plan.block, plan.runs * plan.pixels
    at = ((image * blocks + c) * pixels + pixel) * plan.block
    return (em.scratch.cast(I32) + plan.rest_at + at).fixed()


def _transpose_windows(
    em: Emit, plan: Plan, image: Position, pixel: Position, to: Ptr, count: int
) -> None:
    """Emit code that writes the windows [pixel][k] of a vector of pixels from number `pixel` on as
    [k][pixel], with `count` vectors from one k to the next."""
    b, block, source = em.b, plan.block, source_of(em, plan)
    pixels = [pixel + j for j in range(block)]
    runs = [(0, p) if plan.runs == 1 else (p // plan.pixels, p % plan.pixels) for p in pixels]
    windows = [source.at(plan, image, *place).cast(U8).fixed() for place in runs]
    depth = 4 * plan.depth
    with b.loop(0, _depth(plan) // depth) as t:
        away = Stretches(em, plan, source.first, source.first, 1).away(t) * 4
        with b.loop(0, depth // block) as i:
            lines = [(w + away + i * block).load(block) for w in windows]
            for j, line in enumerate(transpose(lines)):
                (to + (t * depth + (i * block + j)) * (count * block)).store(line)


def _sum_columns(em: Emit, plan: Plan, windows: Ptr, sums: Ptr, c: Val, count: int) -> None:
    """Emit code that writes the sums of block `c` of columns to `sums`, as [column][pixel], of
    `count` vectors of pixels."""
    b, block, table = em.b, plan.block, em.packed[1].cast(I32)
    entries = table + (plan.cut.columns + 1)
    with b.loop(0, block) as j:
        first = (table + (c * block + j)).fixed()
        lo, hi = ((first + i).load().to("i64") for i in range(2))
        with b.loop(lo, hi, carry=[b.zero(I32.x(block))] * count) as loop:
            entry = (entries + loop.index * 2).fixed()
            k, e = entry.load().to("i64"), (entry + 1).load().splat(block)
            line, found = (windows + k * (count * block)).fixed(), []
            for i, acc in enumerate(loop.vars):
                found.append(multiply_pairs(acc, (line + i * block).load(block).to("i32"), e))
            loop.next(found)
        for i, v in enumerate(loop.out):
            (sums + (j * count + i) * block).store(v)


def added(em: Emit, plan: Plan, sums: Tile, place: tuple[Position, Position, Position]) -> Tile:
    """Emit and return the sums of a tile with those of the rest. `place`: the image, and the
    numbers of the tile's first pixel and first column."""
    image, pixel, column = place
    found: Tile = [list(line) for line in sums]
    for j in range(len(sums[0])):
        at = _rest_at(em, plan, image, column // plan.block + j, pixel)
        for i, line in enumerate(found):
            line[j] = line[j] + (at + i * plan.block).load(plan.block)
    return found
