"""Register tiles on matrix registers, of operands that are packed as they are for vectors.

    for k: for i in registers of rows: for j in registers of columns:
        sums[i][j] += a[i][k] . b[k][j]

A step along k takes SIDE lanes. A tile has at most ROWS rows by WIDE vectors of columns: four
registers of sums, so that each step loads four registers for four products. A register always holds
SIDE rows. Where the tile has fewer, whatever follows them in memory is read and multiplied, too;
these sums are ignored.
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
LEFT, RIGHT = 4, 6  # numbers of the first registers of A and of B; those of sums begin at 0
LANE = I32.nbytes
SUMS_AT = CONFIGURATION // LANE + ROWS  # lanes
ROOM = LANE * (SUMS_AT + ROWS * WIDE * SIDE)
"""Bytes of workspace: for the configuration of the registers, an int32 for each row, and sums."""


def tiling(m: int, n: int, depth: int) -> Tiling:
    """How a product (m, `depth` lanes) x (depth, n) is cut for matrix registers."""
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
    """How many rows of A a tile of `rows` rows reads: whole registers, if `row` of the table
    of products multiplies on matrix registers."""
    return -(-rows // SIDE) * SIDE if row.unit == MATRICES else rows


@contextmanager
def configured(b: Builder, row: Product, room: Ptr) -> Iterator[None]:
    """A context in which code may multiply by `row` of the table of products. If that needs matrix
    registers, they are configured, by means of the first bytes of `room`."""
    if row.unit != MATRICES:
        yield
        return
    with matrix.matrices(b, room.cast(U8)):
        yield


class Registers:
    """The sums of one tile of `rows` rows by `vectors` vectors of columns, while code is emitted:
    `clear` them, `add` products (several times, for pieces of k), `store` them to `room` (ROOM
    bytes of workspace), and load them by `line`."""

    def __init__(self, b: Builder, room: Ptr, rows: int, vectors: int) -> None:
        self.b, self.down, self.across = b, -(-rows // SIDE), vectors
        self.numbers = (room.cast(I32) + CONFIGURATION // LANE).fixed()
        """A pointer to one int32 for each row, which callers may use."""
        self.room = (room.cast(I32) + SUMS_AT).fixed()

    def _each(self) -> Iterator[tuple[int, int, int]]:
        """Yield (row, column, register's number) of each register of sums in the tile."""
        for i in range(self.down):
            for j in range(self.across):
                yield i, j, i * self.across + j

    def clear(self) -> None:
        for *_, number in self._each():
            matrix.clear(self.b, number)

    def add(self, at: Operands) -> None:
        """Add the products of the operands over `at.depth` lanes along k, a multiple of SIDE."""
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
        """Load one row of the tile's sums, which `store` has stored, as vectors of SIDE int32."""
        at = (self.room + row * (self.across * SIDE)).fixed()
        return [(at + j * SIDE).load(SIDE) for j in range(self.across)]
