"""The operands of products whose elements are packed: their types, and zero points of bytes.

Sums are wanted of (a - a_zero) (b - b_zero). A product of wide elements takes zero points off while
operands are packed. Another packs bytes a' = a + shift, b' = b + shift of its own signedness, and

    sum (a - a_zero)(b - b_zero) = sum a' b' - b_zero' rows - a_zero' columns

where `rows` are the sums of a', `columns` those of b' - b_zero', and zero points are shifted as
their operands. Everything is modulo 2^32. Operands of float32, packed as bfloat16, have no zero
points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.matrix import split_array
from tinsmith.codegen.products import PRODUCTS, Product, packed_lanes
from tinsmith.codegen.types import I32, Ty
from tinsmith.kernels._kernel import Emit, Site, Skip
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.skeleton import Tile, offsets
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Side:
    """One operand of a product of bytes, or of float32 as bfloat16.

    operand, zero   their numbers among the inputs; `zero` is None where there is no zero point
    count   zero points: 1, or one for each row or column
    packed  the element type when it is packed
    signed  of the operand itself
    """

    operand: int
    zero: int | None
    count: int
    packed: Ty
    signed: bool

    @property
    def centred(self) -> bool:
        return self.packed.bits > 8

    @property
    def shift(self) -> int:
        """What is added to elements and zero points, where they stay bytes."""
        if self.centred or self.packed.is_signed == self.signed:
            return 0
        return 128 if self.signed else -128

    @property
    def is_zero(self) -> bool:
        """Whether sums need no correction for this operand's zero point: it is known to be 0 after
        the shift, or is taken off when elements are packed."""
        return self.centred or (self.zero is None and not self.shift)

    def zeros(self, em: Emit, at: Position, lanes: int, count: int | None = None) -> Val | None:
        """`lanes` zero points from number `at` on (the only one for each, where there is one), plus
        `shift`, as int32; of these `count` are read, if given. None where all are known to be 0."""
        if self.zero is None:
            return em.b.const(self.shift, I32.x(lanes)) if self.shift else None
        view = em.input(self.zero)
        if self.count == 1:
            return (view.pointer.load().to("i32") + self.shift).splat(lanes)
        return (view.pointer + at).load(lanes, count=count).to("i32") + self.shift

    def element(self, x: Val, zero: Val | None) -> Val:
        """Elements x of the operand as they are packed, but in int32: less their zero point `zero`
        (as `zeros` gives it) where they are `centred`, otherwise plus `shift`. Of floats: the bits
        of the nearest bfloat16."""
        if x.ty.is_float:
            x = x.to(self.packed.kind)
            return x.bitcast(x.ty.of("u16")).to("i32")
        wide = x.to("i32")
        if not self.centred:
            return wide + self.shift
        return wide if zero is None else wide - zero

    def stored(self, x: Val, zero: Val | None) -> Val:
        """Elements as `element` packs them, in the type `packed`; `zero` is one int32 for all."""
        if not self.centred:
            return x ^ 128 if self.shift else x
        wide = x.to(self.packed.kind)
        return wide if zero is None else wide - zero.to(self.packed.kind).splat(x.ty.lanes)


def side_of(site: Site, operand: int, row: Product, places: int) -> Side:
    """How input `operand` (0: A, 1: B) is packed for `row`, with its zero point, which is two
    inputs further. `places`: how many rows (of A) or columns (of B) may have zero points of their
    own. Raises Skip where the zero points are neither one nor one for each of these."""
    value, zero = site.input(operand), operand + 2
    packed = (row.left, row.right)[operand]
    if not site.has(zero):
        return Side(operand, None, 1, packed, value.dtype.kind == "i")
    given = site.input(zero)
    count = given.type.size
    if count != 1 and (given.rank != 1 or count != places):
        raise Skip(f"the zero points {given.dims} are not one for each of {places} places")
    return Side(operand, zero, int(count), packed, value.dtype.kind == "i")


@dataclass(frozen=True)
class Known:
    """Constant weights (k, n), as `known` prepares them for a row of the table of products, before
    they are packed. Elements of bytes are int16, bits uint16, else int64.

    elements  (k, n): w - zero where the row takes zero points off; else w + shift, as int8;
              of float32 the bits of the nearest bfloat16
    zeros     (n,): zero + shift; 0 where there is nothing left to take off
    columns   (n,): sums over k of w - zero; 0 likewise"""

    elements: Array
    zeros: Array  # (n,), shifted
    columns: Array  # sums of elements less `zeros`


def known(w: Array, zero: Array | None, row: Product) -> Known:
    """Constant weights w (k, n) as a row of the table of products takes them.

    Rows that are centred: elements w - zero; zeros and columns are 0. Others, with s = -128 for
    uint8, 0 for int8: elements w + s, zeros zero + s, columns the sums over k of w - zero."""
    n = w.shape[1]
    if not row.is_whole:
        (bits,), nothing = split_array(w, 1), np.zeros(n, np.int64)
        return Known(bits, nothing, nothing)
    zeros = np.zeros(n, np.int64) if zero is None else np.broadcast_to(zero.reshape(-1), n)
    wide, zeros = w.astype(np.int16 if w.itemsize == 1 else np.int64), zeros.astype(np.int64)
    if row.centred:
        wide -= zeros.astype(wide.dtype)
        return Known(wide, np.zeros(n, np.int64), np.zeros(n, np.int64))
    shift = _shift(w)
    sums = wide.sum(axis=0, dtype=np.int64) - len(w) * zeros
    wide += np.int16(shift)
    return Known(wide, zeros + shift, sums)


def _shift(w: Array) -> int:
    return -128 if w.dtype.kind == "u" else 0


def leaves_zeros(w: Array, zero: Array | None, row: Product) -> bool:
    """Whether `known` leaves zero points other than 0 of these weights."""
    if not row.is_whole or row.centred:
        return False
    return bool(np.any((0 if zero is None else zero.astype(np.int64)) + _shift(w)))


def pack_lanes(w: Array, zero: Array | None, name: str, columns: Columns) -> Array:
    """Weights (k, n) as [panel][k / g][columns of the panel], packed for the row `name` of the
    table of products, whose k-groups have g elements."""
    row = PRODUCTS[name]
    return pack_columns(packed_lanes(known(w, zero, row).elements, row), columns)


def pack_table(w: Array, zero: Array | None, name: str, columns: Columns) -> Array:
    """For weights (k, n) and the row `name` of the table of products: the zero points of columns,
    then the sums of columns (see `Known`), as int32; n is padded with zeros."""
    found = known(w, zero, PRODUCTS[name])
    table = np.zeros((2, columns.padded), np.int64)
    table[0, : columns.total], table[1, : columns.total] = found.zeros, found.columns
    return table.astype(np.int32)


def taken_off(
    em: Emit, tile: Tile, rows: Sequence[Val] | None, lefts: Sequence[Val | None] | None,
    table: Ptr, padded: int,
) -> Tile:  # fmt: skip
    """Sums of a tile of products, corrected for zero points.

    rows    sums of the rows of A (None: zero points of columns are 0)
    lefts   zero points of A (None: they are 0), one int32 for each row of the tile
    table   zero points of the tile's columns, and, `padded` elements further on, the sums of its
            columns
    """
    if rows is None and lefts is None:
        return tile
    places = [(at, v.ty.lanes) for at, v in offsets(tile[0])]
    zeros = [(table + at).load(n) for at, n in places] if rows is not None else []
    sums = [(table + (padded + at)).load(n) for at, n in places] if lefts is not None else []
    found = []
    for i, line in enumerate(tile):
        values = list(line)
        for j, v in enumerate(line):
            if rows is not None:
                v = v - zeros[j] * rows[i].splat(v.ty.lanes)
            left = None if lefts is None else lefts[i]
            if left is not None:
                v = v - sums[j] * left.splat(v.ty.lanes)
            values[j] = v
        found.append(values)
    return found
