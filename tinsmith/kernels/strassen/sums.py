"""A table that the code reads: where each product of a tile starts, and where its sums are kept."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tinsmith.kernels.strassen.form import PRODUCTS, Product
from tinsmith.kernels.strassen.shape import Shape
from tinsmith.records import dataclass

FIELDS = ("start", "keep", "done", "add", "outer", "outer_keep", "final", "outer_add", "row",
          "column")  # fmt: skip
"""The columns of the table. Places are offsets within a slot (`Room`).

start      the tile that the product is added to
keep       where the sum is kept (0: nowhere)
done       whether it completes a quarter of its level
add        the tile that has to be added to complete it
outer      at level 2: the tile that the quarter is added to,
outer_keep and where that sum is kept (0: nowhere)
final      whether it is a unit of the result,
outer_add  the tile that has to be added to complete that,
row        and the unit's row
column     and column in the tile"""


@dataclass(frozen=True)
class Room:
    """Offsets in the workspace, in elements: the left factors of all panels of a group; a slot of
    tiles for each panel; then the rest."""

    shape: Shape

    @property
    def slots(self) -> int:
        return self.shape.products * self.shape.apart

    def place(self, number: int) -> int:
        """The offset within a slot of: the zeros (`number` 0), or place 1 or 2 of the lowest
        level."""
        return number * self.shape.tile

    def outer(self, number: int, quarter: int) -> int:
        """The offset within a slot of a quarter of place 1 or 2 of the higher of two levels."""
        return (3 + (number - 1) * 4 + quarter) * self.shape.tile

    @property
    def result(self) -> int:
        """One unit of the result, before the epilogue."""
        return self.slots + self.shape.together * self.shape.slot

    @property
    def sizes(self) -> int:
        """The sum of squares of each row, for all panels of a group."""
        return self.result + self.shape.tile

    @property
    def limits(self) -> int:
        """The offset of the limits: one float32 for each panel of a group. Rows whose sum of
        squares is no larger are computed by the definition."""
        s = self.shape
        return self.sizes + s.together * s.side * s.tiling.rows.size

    @property
    def end(self) -> int:
        return self.limits + self.shape.together


def table(shape: Shape) -> np.ndarray[Any, Any]:
    """One row of `FIELDS` for each product."""
    room = Room(shape)
    outer = PRODUCTS if shape.level == 2 else (None,)
    found = [_row(room, high, low) for high, low in product(outer, PRODUCTS)]
    return np.array(found, np.int64).reshape(-1)


def _row(room: Room, high: Product | None, low: Product) -> list[int]:
    start = room.place(1) if low.on else room.place(0)
    keep = room.place(low.keep) if low.keep else 0
    add = room.place(2) if low.add else room.place(0)
    quarter = low.quarter
    if quarter is None:
        return [start, keep, 0, *[0] * 7]
    if high is None:
        return [start, keep, 1, add, 0, 0, 1, 0, quarter // 2, quarter % 2]
    outer = room.outer(1, quarter) if high.on else room.place(0)
    outer_keep = room.outer(high.keep, quarter) if high.keep else 0
    unit = (0, 0, 0, 0)
    if high.quarter is not None:
        outer_add = room.outer(2, quarter) if high.add else room.place(0)
        row, column = high.quarter // 2 * 2 + quarter // 2, high.quarter % 2 * 2 + quarter % 2
        unit = (1, outer_add, row, column)
    return [start, keep, 1, add, outer, outer_keep, *unit]
