"""Loops over the panels of a tiling, and how panels are grouped into tiles for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels.dot.tiles import Columns, Rows, Tiling
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical


@dataclass(frozen=True)
class Grid:
    """How the panels of a product are grouped into tiles for threads: groups of row panels times
    groups of column panels, of which the groups of rows vary fastest."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns


def grid(target: Target, tiling: Tiling, depth: int, seconds: float, items: int = 1) -> Grid:
    """The grid of a product: so many groups of columns that each group's part of B stays in a
    quarter of L2, and enough groups in all for the threads. `depth` is the rows of B, `seconds` the
    time of one product on one core; `items` products, each with this grid, share the threads."""
    panel = 4 * typical(depth) * tiling.columns.size
    per_group = max(1, target.l2 // 4 // max(1, panel))
    columns = -(-typical(tiling.columns.count) // per_group)
    parts = parts_for(PARTS, seconds * items)
    items = typical(items)
    rows = min(typical(tiling.rows.count), max(1, -(-parts // (columns * items))))
    if rows * columns * items < parts:
        columns = min(typical(tiling.columns.count), -(-parts // (rows * items)))
    return Grid(rows, columns)


def part(group: Position, groups: int, count: int) -> tuple[Position, Position]:
    """The panels [first, last) of one of `groups` groups of about equal size."""
    if groups == 1:
        return 0, count
    if not isinstance(count, Size) and groups == count:
        return group, group + 1
    return group * count // groups, (group + 1) * count // groups


def each_row_panel(
    b: Builder, rows: Rows, lo: Position, hi: Position, body: Callable[[Position, int], None]
) -> None:
    """Emit `body(first row, height)` for the panels [lo, hi) of rows, in one loop for each height
    (an int) that panels have."""
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


def _each_free(
    b: Builder, columns: Columns, lo: Position, hi: Position,
    body: Callable[[Position, Position, tuple[int, ...], Any], None],
) -> None:  # fmt: skip
    """`each_column_panel` where the number of columns is free: the full panels, then the rest in
    single vectors, of which the last is masked."""
    lanes, full = columns.tail[0], columns.full
    with b.loop(lo, b.minimum(hi, full)) as c:
        body(c, c * columns.size, columns.widths, columns.widths[-1])
    with b.loop(b.maximum(lo, full), hi) as c:
        column = (c - full) * lanes + full * columns.size
        left = b.index(columns.total) - column
        body(c, column, columns.tail, b.minimum(left, lanes))


def each_column_panel(
    b: Builder, columns: Columns, lo: Position, hi: Position,
    body: Callable[[Position, Position, tuple[int, ...], Any], None],
) -> None:  # fmt: skip
    """Emit `body(panel, first column, widths, valid)` for the panels [lo, hi) of columns: `widths`
    are the lanes of the panel's vectors, `valid` those of its last that are no padding."""
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

        def last() -> None:
            body(c, c * columns.size, columns.tail, columns.valid)

        if isinstance(hi, Val):
            with b.when(hi > c):
                last()
        else:
            last()
