"""How the operands of packed products are packed, and how zero points of bytes are handled.

Wanted are the sums of (a - a_zero) (b - b_zero). If a row of the table of products multiplies
elements of 16 bits, zero points are subtracted while operands are packed ("centred"). If it
multiplies bytes, these are shifted to its own signedness, a' = a + shift and b' = b + shift, and
zero points alike; the sums are then corrected (`taken_off`), all modulo 2^32:

    sum (a - a_zero)(b - b_zero) = sum a' b' - b_zero' rows - a_zero' columns
    rows = sum a',  columns = sum (b' - b_zero')

Operands of float32, which are packed as bfloat16, have no zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.matrix import split_array
from tinsmith.codegen.products import PRODUCTS, Product, packed_lanes
from tinsmith.codegen.types import I32, Ty
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Emit, Site, Skip
from tinsmith.kernels.dot.matmul import pack_columns
from tinsmith.kernels.dot.skeleton import Tile
from tinsmith.kernels.dot.tiles import Columns
from tinsmith.kernels.walk import Position, load_row
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Side:
    """How one operand of a product is packed.

    operand  its number among the inputs of the node
    zero     the number of its zero point among the inputs; None if there is none
    count    how many zero points there are: 1, or one for each row (of A) or column (of B)
    packed   the element type of the packed operand
    signed   whether the elements of the operand itself are signed
    """

    operand: int
    zero: int | None
    count: int
    packed: Ty
    signed: bool

    @property
    def centred(self) -> bool:
        """Whether zero points are subtracted from elements when these are packed."""
        return self.packed.bits > 8

    @property
    def shift(self) -> int:
        """What is added to bytes so that they have the signedness of `packed`: 0, 128 or -128."""
        if self.centred or self.packed.is_signed == self.signed:
            return 0
        return 128 if self.signed else -128

    @property
    def is_zero(self) -> bool:
        """Whether sums need no correction for this operand's zero points: they are known to be 0
        after the shift, or are subtracted when elements are packed."""
        return self.centred or (self.zero is None and not self.shift)

    def zeros(self, em: Emit, at: Position, lanes: int, count: int | None = None) -> Val | None:
        """Emit and return an int32 vector: zero points number `at`, `at` + 1, ..., plus `shift`; a
        single one fills all `lanes`. `count`: how many lanes are read, if not all. An operand
        without zero points has zeros plus `shift`: None, and no code, if that is 0, too."""
        if self.zero is None:
            return em.b.const(self.shift, I32.x(lanes)) if self.shift else None
        view = em.input(self.zero)
        if self.count == 1:
            return (view.pointer.load().to("i32") + self.shift).splat(lanes)
        return (view.pointer + at).load(lanes, count=count).to("i32") + self.shift

    def element(self, x: Val, zero: Val | None) -> Val:
        """Elements x of the operand as they are packed, but in int32: x - zero if `centred`
        (`zero` as `zeros` returns it), otherwise x + shift. Of floats: the bits of the nearest
        bfloat16."""
        if x.ty.is_float:
            x = x.to(self.packed.kind)
            return x.bitcast(x.ty.of("u16")).to("i32")
        wide = x.to("i32")
        if not self.centred:
            return wide + self.shift
        return wide if zero is None else wide - zero

    def stored(self, x: Val, zero: Val | None) -> Val:
        """Elements x as `element` does, in the type `packed`. `zero`: one int32, or None."""
        if not self.centred:
            return x ^ 128 if self.shift else x
        wide = x.to(self.packed.kind)
        return wide if zero is None else wide - zero.to(self.packed.kind).splat(x.ty.lanes)


def side_of(site: Site, operand: int, row: Product, places: int) -> Side:
    """How input `operand` (0: A, 1: B) is packed for `row` of the table of products. Its
    zero points are input `operand` + 2. `places`: how many rows of A, or columns of B, there are.
    Raises Skip if the zero points are neither one nor one for each of these."""
    value, zero = site.input(operand), operand + 2
    packed = (row.left, row.right)[operand]
    if not site.has(zero):
        return Side(operand, None, 1, packed, value.dtype.kind == "i")
    given = site.input(zero)
    count = given.type.size
    if count != 1 and (given.rank != 1 or count != places):
        raise Skip(f"the zero points {given.dims} are not one for each of {places} places")
    return Side(operand, zero, int(count), packed, value.dtype.kind == "i")


def elements(w: Array, zero: Array | None, row: Product) -> Array:
    """Return constant weights w, less what `row` of the table of products wants taken off them when
    they are packed. `zero`: their zero points, of a shape that broadcasts to that of w.

    row of     elements                         type
    16 bits    w - zero                         int16 (int64 if w is not bytes)
    bytes      w, or w - 128 if w is unsigned   int8
    bfloat16   the bits of the nearest          uint16
    """
    if not row.is_whole:
        return split_array(w, 1)[0]
    if row.centred:
        wide = w.astype(np.int16 if w.itemsize == 1 else np.int64)
        return wide if zero is None else wide - zero.astype(wide.dtype)
    return (w ^ 0x80).view(np.int8) if w.dtype.kind == "u" else w


def corrections(w: Array, zero: Array | None, row: Product) -> tuple[Array, Array]:
    """Return what sums are corrected by, as int64 (n,), for weights w (n, k) of which `elements`
    are multiplied: the zero points that these still have, and for each of the n places the sum over
    k of w - zero. Both are 0 for a row that is not of bytes. `zero` has one number, or n."""
    if not row.is_whole or row.centred:
        return np.zeros(len(w), np.int64), np.zeros(len(w), np.int64)
    zeros = np.zeros(len(w), np.int64)
    zeros += 0 if zero is None else zero.reshape(-1)
    sums = w.sum(axis=1, dtype=np.int32) - w.shape[1] * zeros
    return zeros + _shift(w), sums


def _shift(w: Array) -> int:
    return -128 if w.dtype.kind == "u" else 0


def leaves_zeros(w: Array, zero: Array | None, row: Product) -> bool:
    """Whether constant weights w that were packed as `elements(w, zero, row)` still have zero
    points other than 0, for which `taken_off` must correct sums."""
    if not row.is_whole or row.centred:
        return False
    return bool(_shift(w)) if zero is None else bool(np.any(zero.astype(np.int64) + _shift(w)))


def pack_lanes(w: Array, zero: Array | None, name: str, columns: Columns) -> Array:
    """Weights (k, n), packed for the row `name` of the table of products: lanes
    [panel][k / g][column of the panel], flat, where g is the size of the row's k-group."""
    row = PRODUCTS[name]
    zero = None if zero is None else zero.reshape(-1)
    return pack_columns(packed_lanes(elements(w, zero, row), row), columns)


def pack_table(w: Array, zero: Array | None, name: str, columns: Columns) -> Array:
    """Return the `corrections` for weights (k, n) and the row `name` of the table of products:
    int32 (2, n), n padded with zeros."""
    table = np.zeros((2, columns.padded), np.int32)
    table[:, : columns.total] = corrections(w.T, zero, PRODUCTS[name])
    return table


def taken_off(
    tile: Tile, rows: Sequence[Val] | None, lefts: Sequence[Val | None] | None, table: Ptr,
    padded: int,
) -> Tile:  # fmt: skip
    """Emit and return the sums of a tile, corrected for zero points (see the module).

    rows    sums of the rows of A; None: zero points of B are 0
    lefts   zero points of A, one int32 for each row of the tile; None: they are 0
    table   points to the zero points of the tile's columns, and, `padded` elements behind, to the
            sums of these columns
    """
    if rows is None and lefts is None:
        return tile
    widths = [v.ty.lanes for v in tile[0]]
    zeros = load_row(table, widths) if rows is not None else []
    sums = load_row(table + padded, widths) if lefts is not None else []
    found: Tile = [[] for _ in tile]
    for i, line in enumerate(tile):
        left = None if lefts is None else lefts[i]
        for j, v in enumerate(line):
            if rows is not None:
                v = v - zeros[j] * rows[i].splat(v.ty.lanes)
            if left is not None:
                v = v - sums[j] * left.splat(v.ty.lanes)
            found[i].append(v)
    return found
