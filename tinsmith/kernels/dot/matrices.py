"""Register tiles on matrix registers, of operands that are packed as those of vectors are.

    for k: for i in registers of rows: for j in those of columns: sums[i][j] += a[i][k] . b[k][j]

A step along k takes SIDE lanes. A tile has at most ROWS rows by WIDE vectors of columns, so that
four registers of sums are added to by four products for four registers that are loaded. Rows of a
register beyond those of the tile are read, too, and computed, and nobody reads their sums: the
memory must be there, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import CONFIGURATION, SIDE
from tinsmith.codegen.products import MATRICES, Product
from tinsmith.codegen.types import I32, U8
from tinsmith.kernels.dot.skeleton import Operands
from tinsmith.kernels.dot.tiles import Columns, Tiling, split_rows
from tinsmith.kernels.walk import Position

WIDE = 2  # vectors of columns
ROWS = 2 * SIDE
LEFT, RIGHT = 4, 6  # the first registers of either operand; sums are from 0 on
LANE = I32.nbytes
SUMS_AT = CONFIGURATION // LANE + ROWS  # lanes
ROOM = LANE * (SUMS_AT + ROWS * WIDE * SIDE)
"""Bytes of workspace: the configuration of the registers, a number for each row, and the sums."""


def tiling(m: int, n: int, depth: int) -> Tiling:
    """How an (m, k) x (k, n) product is cut into tiles of matrix registers; `depth` lanes along
    k."""
    rows, vectors = split_rows(m, ROWS), -(-n // SIDE)
    full, rest = divmod(vectors, WIDE)
    valid = n - (vectors - 1) * SIDE
    columns = Columns(n, (SIDE,) * WIDE, full, (SIDE,) * rest, valid if rest else SIDE)
    if not rest and valid < SIDE:
        tail = (SIDE,) * WIDE
        columns = Columns(n, (SIDE,) * WIDE, full - 1, tail, valid)
    registers = [rows.many * -(-rows.size // SIDE), rows.fewer * -(-(rows.size - 1) // SIDE)]
    computed = float(sum(registers) * SIDE * columns.padded * depth)
    return Tiling(rows, columns, computed, float(m * n * depth))


def height(row: Product, rows: int) -> int:
    """How many rows of A a tile of `rows` rows reads."""
    return -(-rows // SIDE) * SIDE if row.unit == MATRICES else rows


@contextmanager
def configured(b: Builder, row: Product, room: Ptr) -> Iterator[None]:
    """A context in which the code may multiply by a row of the table of products; matrix registers
    are configured for that in the first bytes of `room`."""
    if row.unit != MATRICES:
        yield
        return
    with matrix.matrices(b, room.cast(U8)):
        yield


class Registers:
    """The sums of one tile: `clear` them, `add` the products along any number of stretches of k,
    and `store` them to `room` (ROOM bytes of workspace); then there are `line`s."""

    def __init__(self, b: Builder, room: Ptr, rows: int, vectors: int) -> None:
        self.b, self.down, self.across = b, -(-rows // SIDE), vectors
        self.numbers = (room.cast(I32) + CONFIGURATION // LANE).fixed()
        """A number for each row, for whoever needs some."""
        self.room = (room.cast(I32) + SUMS_AT).fixed()

    def _each(self) -> Iterator[tuple[int, int, int]]:
        """(row, column, number) of each register of sums."""
        for i in range(self.down):
            for j in range(self.across):
                yield i, j, i * self.across + j

    def clear(self) -> None:
        for *_, number in self._each():
            matrix.clear(self.b, number)

    def add(self, at: Operands) -> None:
        """Add the products of the operands: `at.depth` lanes along k, a multiple of SIDE."""
        b, row = self.b, at.row
        with b.loop(0, at.depth // SIDE, carry=[at.a.value, at.b.value]) as loop:
            left, right = at.a.of(loop.vars[0]), at.b.of(loop.vars[1])
            for i in range(self.down):
                matrix.load(b, LEFT + i, left + i * SIDE * at.a_row, LANE * at.a_row)
            for j in range(self.across):
                matrix.load(b, RIGHT + j, right + j * SIDE, LANE * at.b_row)
            for i, j, number in self._each():
                row.step(b, number, LEFT + i, RIGHT + j)
            loop.next([(left + SIDE).value, (right + SIDE * at.b_row).value])

    def store(self) -> None:
        wide = self.across * SIDE
        for i, j, number in self._each():
            matrix.store(self.b, number, self.room + (i * SIDE * wide + j * SIDE), LANE * wide)

    def line(self, row: Position) -> list[Val]:
        """The sums of one row, as vectors."""
        at = (self.room + row * (self.across * SIDE)).fixed()
        return [(at + j * SIDE).load(SIDE) for j in range(self.across)]
