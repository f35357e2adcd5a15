"""The left operands of a recurrent layer's products: rows of float32 as they lie, or rounded to
bfloat16 or to bytes; and how sums of their products become float32 again.

Rows are rounded to bytes as by DynamicQuantizeLinear, with one scale and one zero point for all
that are rounded together: a byte q stands for (q - zero) scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.math import nearest, rint
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.skeleton import Tile
from tinsmith.kernels.fold import fold_whole
from tinsmith.kernels.layout import lanes_of
from tinsmith.kernels.recurrent.layer import Layer
from tinsmith.kernels.walk import Position, offsets
from tinsmith.records import dataclass
from tinsmith.sizes import largest

LEVELS = 255.0  # the greatest byte


@dataclass(frozen=True)
class Quantisation:
    """How numbers x are rounded to bytes q: x is about (q - zero) scale. Scalars of float32."""

    scale: Val
    zero: Val


@dataclass(frozen=True)
class Left:
    """Rows of a left operand at `at`, `stride` lanes apart, packed for the row of the table of
    products that multiplies them. With `quant` their elements are bytes q; or q - zero, if that row
    takes wider elements (`Product.centred`)."""

    at: Ptr
    stride: int
    quant: Quantisation | None = None


def left_bytes(layer: Layer, rows: int) -> int:
    """The bytes of workspace for rows that `left_rows` rounds to bytes or to bfloat16: `rows` rows
    of the inputs, or all of a state. 0 if the layer rounds neither."""
    inputs, recurrent = layer.matrices
    if not (layer.rounded or inputs.halves or recurrent.halves):
        return 0
    return 4 * largest(rows * inputs.depth, layer.batch * recurrent.depth)


def quantisation_of(
    em: Emit, layer: Layer, at: Ptr, rows: Any, width: int, stride: int
) -> Quantisation | None:
    """Emit the search for the least and the greatest of `rows` rows of `width` float32 at `at`,
    `stride` elements apart, and return how all are rounded: the range of these two and 0 becomes
    the bytes 0 .. 255. None if the layer does not round to bytes."""
    if not layer.rounded:
        return None
    b, lanes = em.b, layer.lanes
    with b.loop(0, rows, carry=[b.zero(F32.x(lanes))] * 2) as outer:
        line = (at + outer.index * stride).fixed()

        def both(i: Position, count: int, ends: Sequence[Val]) -> list[Val]:
            x = (line + i).load(lanes, count=count)
            return [x.max(ends[0]), x.min(ends[1])]

        outer.next(fold_whole(b, width, lanes, outer.vars, both))
    high, low = outer.out[0].reduce("max"), outer.out[1].reduce("min")
    scale = high.eq(low).select(b.const(1.0, F32), high - low) / LEVELS
    return Quantisation(scale, rint((-low / scale).max(0.0).min(LEVELS)))


def left_rows(
    em: Emit, layer: Layer, number: int, source: Ptr, rows: Any, stride: int,
    quant: Quantisation | None,
) -> Left:  # fmt: skip
    """The `rows` float32 rows at `source`, `stride` elements apart, as the left operand of matrix
    `number` of the layer (0: input weights, 1: recurrent weights). Emits code that rounds them into
    the workspace, to bytes by `quant`, or to bfloat16 if the matrix is `halves`; else nothing is
    emitted, and they are read where they lie."""
    b, matrix = em.b, layer.matrices[number]
    if quant is None and not matrix.halves:
        return Left(source, stride)
    width, lanes = (layer.inputs, layer.hidden)[number], matrix.row.group
    kind = matrix.row.left
    to, step = em.workspace.cast(kind), matrix.depth * lanes

    with b.loop(0, rows) as row:
        line, sink = (source + row * stride).fixed(), (to + row * step).fixed()

        def move(i: Position, n: int, mask: Val | None) -> None:
            x = (line + i).load(n, mask)
            if quant is not None:
                low = quant.zero if matrix.row.centred else b.zero(F32)
                scale, zero, off = (v.splat(n) for v in (quant.scale, quant.zero, low))
                x = nearest((rint(x / scale) + zero).max(0.0).min(LEVELS) - off)
            (sink + i).store(x.to(kind.kind), mask)

        b.vectors(width, lanes_of(em.target, F32.nbytes), move)
        for at in range(width, step):
            (sink + at).store(b.zero(kind))
    return Left(em.workspace.cast(matrix.row.lane), matrix.depth, quant)


def real(
    em: Emit, layer: Layer, number: int, sums: Tile, left: Left, column: Callable[[], Position]
) -> Tile:
    """`sums`, of products of `left` and matrix `number` of the layer, as float32. If the matrix has
    no scales: unchanged. Else: less what the zero point of `left` adds (unless it was taken off
    when rows were packed), times the scale of the column and, for bytes, that of `left`.
    `column()` is the number of the first column, through all directions."""
    if layer.matrices[number].scale is None:
        return sums
    name, places = "wr"[number], dict(zip(layer.arrays, em.packed, strict=True))
    first, quant = column(), left.quant
    factors = (places[f"{name}_scale"] + first).fixed()
    columns = places.get(f"{name}_sums")
    found: Tile = [[] for _ in sums]
    for j, (at, v) in enumerate(offsets(sums[0])):
        lanes, off = v.ty.lanes, None
        factor = (factors + at).load(lanes)
        if quant is not None:
            factor = factor * quant.scale.splat(lanes)
            if columns is not None:
                zero = nearest(quant.zero).splat(lanes)
                off = (columns + first + at).load(lanes) * zero
        for line, row in zip(found, sums, strict=True):
            x = row[j] if off is None else row[j] - off
            line.append(x.to("f32") * factor)
    return found
