"""Loops over the panels of a tiling, and how panels are grouped for threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels.dot.tiles import Columns, Rows, Tiling
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position, spots
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical


@dataclass(frozen=True)
class Grid:
    """How a product is shared by threads: its panels of rows are cut into `rows` groups, its panels
    of columns into `columns` groups. Each pair of groups is a tile of the phase, number
    (group of columns) * `rows` + group of rows."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns


def grid(target: Target, tiling: Tiling, depth: int, seconds: float, items: int = 1) -> Grid:
    """The grid of a product: so many groups of columns that each group's part of B fits in a
    quarter of L2, and enough pairs of groups for the threads. `depth`: rows of B; `seconds`: time
    of one product on one core; `items`: how many products, each with this grid, there are."""
    panel = 4 * typical(depth) * tiling.columns.size
    per_group = max(1, target.l2 // 4 // max(1, panel))
    columns = -(-typical(tiling.columns.count) // per_group)
    parts = parts_for(PARTS, seconds * items)
    items = typical(items)
    rows = min(typical(tiling.rows.count), max(1, -(-parts // (columns * items))))
    if rows * columns * items < parts:
        columns = min(typical(tiling.columns.count), -(-parts // (rows * items)))
    return Grid(rows, columns)


def first_row(b: Builder, rows: Rows, panel: Position) -> Position:
    """The first row of a panel of a known number of rows."""
    return panel * rows.size - b.maximum(panel - rows.many, 0)


def each_row_panel(
    b: Builder, rows: Rows, lo: Position, hi: Position, body: Callable[[Position, int], None]
) -> None:
    """Emit `body(first row, height)` for the panels [lo, hi) of rows. There is one loop for each
    `height` (an int) that panels have."""
    for first, last, height, base in rows.variants():
        whole = isinstance(lo, int) and isinstance(hi, int)
        free = isinstance(last, Size)
        start = b.maximum(lo, first) if free or first else lo
        stop = b.minimum(hi, last) if free or last < rows.count else hi
        if whole and not free and last - first == 1:
            body(first * height + base, height)
            continue
        with b.loop(start, stop) as p:
            body(p * height + base, height)


PanelBody = Callable[[Position, Position, tuple[int, ...], Any], None]
"""body(panel, first column, widths, valid): `widths` are the lanes of the panel's vectors, `valid`
those of the last that are no padding."""


def vectors_of(widths: Sequence[int], valid: Any) -> list[tuple[int, int, Any]]:
    """(columns before it, width, how many of its columns exist) for each vector of a panel (see
    `PanelBody`)."""
    counts = (*widths[:-1], valid)
    return [(*spot, count) for spot, count in zip(spots(widths), counts, strict=True)]


def _each_free(b: Builder, columns: Columns, lo: Position, hi: Position, body: PanelBody) -> None:
    """Do `each_column_panel` where only a call tells the number of columns: the full panels, then
    the rest as panels of one vector; `valid` of the last may be less than its lanes."""
    lanes, full = columns.tail[0], columns.full
    with b.loop(lo, b.minimum(hi, full)) as c:
        body(c, c * columns.size, columns.widths, columns.widths[-1])
    with b.loop(b.maximum(lo, full), hi) as c:
        column = (c - full) * lanes + full * columns.size
        left = b.index(columns.total) - column
        body(c, column, columns.tail, b.minimum(left, lanes))


def each_column_panel(
    b: Builder, columns: Columns, lo: Position, hi: Position, body: PanelBody
) -> None:
    """Emit `body(panel, first column, widths, valid)` (see `PanelBody`) for each of the panels
    [lo, hi) of columns."""
    if not isinstance(columns.total, int):
        _each_free(b, columns, lo, hi, body)
        return
    if columns.full:
        stop = b.minimum(hi, columns.full) if columns.tail else hi
        if isinstance(lo, int) and isinstance(stop, int) and stop - lo == 1:
            body(lo, lo * columns.size, columns.widths, columns.widths[-1])
        else:
            with b.loop(lo, stop) as c:
                body(c, c * columns.size, columns.widths, columns.widths[-1])
    if columns.tail:
        c = columns.full
        with b.when(hi > c) if isinstance(hi, Val) else nullcontext():
            body(c, c * columns.size, columns.tail, columns.valid)
