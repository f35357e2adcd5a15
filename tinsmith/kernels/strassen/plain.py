"""Rows that Strassen's method would compute wrongly, one by one by the definition of the product.

In sums of rows an infinity, a NaN, or an overflow would reach other rows, and rounding errors of
large rows would reach small ones. The definition needs the blocks of the right operand: they are
sums of right factors, which alone are packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels.strassen.form import PRODUCTS
from tinsmith.kernels.walk import Position, spots

NOTHING = 2.0**-21
"""Elements of the right operand that are computed from factors, and smaller than this, are taken
for 0, so that infinity times an element that should be 0 is NaN. Columns are scaled so that their
largest element is 1 to 2; then the sum of more than two factors has errors of about this size."""

if TYPE_CHECKING:
    from tinsmith.kernels.strassen.emit import Work


def plain(w: Work, row: Position) -> None:
    """Emit the results of one row for all columns of `w`, by the definition."""
    line = w.ends.source(row).fixed()
    _store(w, row, lambda c, unit, widths: _unit(w, line, c, unit, widths))


def zeros(w: Work, row: Position) -> None:
    """Emit the results of a row of the left operand that is all 0: zeros, to which the epilogue
    applies."""
    _store(w, row, lambda _, __, widths: [w.b.zero(F32.x(width)) for width in widths])


def _store(
    w: Work, row: Position, results: Callable[[Position, Val, tuple[int, ...]], list[Val]]
) -> None:
    """Emit the stores, with the epilogue, of one row's results: `results(column panel, unit, lanes
    of its vectors)` for every unit of every column panel."""

    def columns(c: Position, column: Position, widths: tuple[int, ...]) -> None:
        with w.b.loop(0, w.shape.side) as unit:
            w.ends.store(row, unit * sum(widths) + column, results(c, unit, widths))

    w.each_column_panel(columns)


def _unit(w: Work, line: Ptr, c: Position, unit: Val, widths: tuple[int, ...]) -> list[Val]:
    """Emit the results of the row at `line` for one unit of column panel c: vectors of `widths`."""
    b, s, size = w.b, w.shape, sum(widths)
    zeros = [b.zero(F32.x(width)) for width in widths]
    right = w.right(c)
    with b.loop(0, s.side, 1, zeros) as parts:
        factors = _block(b, s.level, parts.index, unit)
        with b.loop(0, s.depth, 1, parts.vars) as loop:
            k = loop.index
            x = (line + w.element(parts.index * s.depth + k)).load()
            sums = []
            for (offset, width), total in zip(spots(widths), loop.vars, strict=True):
                value = None
                for factor, present in factors:
                    read = (right + factor * (s.depth * size) + k * size + offset).load(width)
                    read = read if present is None else present.select(read, 0.0)
                    value = read if value is None else value + read
                assert value is not None
                if s.level > 1:
                    value = (value.abs() > NOTHING).select(value, 0.0)
                sums.append(x.splat(width).fma(value, total))
            loop.next(sums)
        parts.next(loop.out)
    return parts.out


def _block(b: Builder, level: int, k: Val, n: Val) -> list[tuple[Val, Val | None]]:
    """The right factors whose sum is block (k, n) of the right operand: pairs of a factor's number
    and the condition under which it is added (None: always). At one level B11, B21, T1 and B22 are
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
