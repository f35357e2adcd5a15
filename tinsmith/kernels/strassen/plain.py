"""Rows that Strassen's sums would spoil, computed one by one by the definition of the product.

An infinity, a NaN, or a number whose sums might overflow must not reach other rows; nor may the
rounding errors of large rows reach small ones. The right operand itself is not kept: its blocks are
recovered by adding right factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.strassen.form import PRODUCTS
from tinsmith.kernels.walk import Position

NOTHING = 2.0**-21
"""Recovered elements below this are taken for 0. Columns are scaled so that their largest element
is 1 to 2, and a block recovered from more than two factors has errors of this size; infinity times
what should be 0 must be NaN, not infinite."""

if TYPE_CHECKING:
    from tinsmith.kernels.strassen.emit import Work


def plain(w: Work, row: Position) -> None:
    """Compute and store the results of one row for all of `w`'s columns, by the definition."""
    b, s = w.b, w.shape
    line = w.ends.source(row).fixed()

    def columns(c: Position, column: Position, widths: tuple[int, ...]) -> None:
        with b.loop(0, s.side) as unit:
            w.ends.store(row, unit * sum(widths) + column, _unit(w, line, c, unit, widths))

    w.each_column_panel(columns)


def zeros(w: Work, row: Position) -> None:
    """Store the results of a row whose elements are all 0: zeros, to which the epilogue applies."""
    b, s = w.b, w.shape

    def columns(_: Position, column: Position, widths: tuple[int, ...]) -> None:
        with b.loop(0, s.side) as unit:
            values = [b.zero(F32.x(width)) for width in widths]
            w.ends.store(row, unit * sum(widths) + column, values)

    w.each_column_panel(columns)


def _unit(w: Work, line: Ptr, c: Position, unit: Val, widths: tuple[int, ...]) -> list[Val]:
    """The results of the row at `line` for one unit of column panel c, summed over all of K: a
    vector for each of the `widths`."""
    b, s, size = w.b, w.shape, sum(widths)
    zeros = [b.zero(F32.x(width)) for width in widths]
    right = w.right(c)
    with b.loop(0, s.side, 1, zeros) as parts:
        factors = _block(b, s.level, parts.index, unit)
        with b.loop(0, s.depth, 1, parts.vars) as loop:
            k = loop.index
            x = (line + _element(w, parts.index * s.depth + k)).load()
            sums, offset = [], 0
            for width, total in zip(widths, loop.vars, strict=True):
                value = None
                for factor, present in factors:
                    read = (right + factor * (s.depth * size) + k * size + offset).load(width)
                    read = read if present is None else present.select(read, 0.0)
                    value = read if value is None else value + read
                assert value is not None
                if s.level > 1:
                    value = (value.abs() > NOTHING).select(value, 0.0)
                sums.append(x.splat(width).fma(value, total))
                offset += width
            loop.next(sums)
        parts.next(loop.out)
    return parts.out


def _element(w: Work, k: Val) -> Val:
    """The offset of element k in a row of the left operand."""
    return k if w.ends.step == w.lanes else k // w.lanes * w.ends.step + k % w.lanes


def _block(b: Builder, level: int, k: Val, n: Val) -> list[tuple[Val, Val | None]]:
    """The numbers of the right factors whose sum is block (k, n) of the right operand, each with
    the condition under which it is added (None: always). At one level B11, B21, T1 and B22 are
    factors 0, 1, 3 and 4, and B12 = B11 + T1."""
    found: list[tuple[Val, Val | None]] = [(b.index(0), None)]
    for digit in reversed(range(level)):
        down, across = k // 2**digit % 2, n // 2**digit % 2
        first = down + down * across * 3
        summed = (b.index(1) - down) * across
        more = summed.ne(0)
        both: list[tuple[Val, Val | None]] = []
        for factor, present in found:
            both.append((factor * len(PRODUCTS) + first, present))
            condition = more if present is None else present & more
            both.append((factor * len(PRODUCTS) + summed * 3, condition))
        found = both
    return found
