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
"""The columns of the table, which has a row for each product. A tile is given by its offset within
a slot (`Room`), in elements; offset 0 is the tile of zeros. `outer...` are for level 2 only.

start       tile to which the product is added, which makes its sum
keep        tile in which the sum is stored for later products; 0: it is not
done        1 if the sum, plus `add`, is a complete quarter of its level's result; else 0
add         tile that is added to the sum for that quarter
outer       tile of the higher level to which the quarter is added, which makes the outer sum
outer_keep  tile in which the outer sum is stored; 0: it is not
final       1 if the (outer) sum, plus `outer_add`, is a finished unit of the result; else 0
outer_add   tile that is added to the outer sum for that unit
row         the unit's row among the `side` x `side` units of a pair of panels
column      the unit's column among them"""


@dataclass(frozen=True)
class Room:
    """Where things lie in a thread's workspace, as offsets in elements. In order: the left factors
    of all row panels of a group; a slot of tiles for each of these panels (`slots`); one unit of
    the result (`result`); `sizes`; `limits`."""

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
        """The offset of one unit of the result, before the epilogue."""
        return self.slots + self.shape.together * self.shape.slot

    @property
    def sizes(self) -> int:
        """The offset of the sums of squares: one float32 for each row of a group's panels."""
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
    """The values of `FIELDS` for each product, row after row, flat; int64."""
    room = Room(shape)
    outer = PRODUCTS if shape.level == 2 else (None,)
    found = [_row(room, high, low) for high, low in product(outer, PRODUCTS)]
    return np.array(found, np.int64).reshape(-1)


def _row(room: Room, high: Product | None, low: Product) -> list[int]:
    """The row of the table for product `low`; at level 2 it belongs to the product `high` of the
    higher level, which is None at level 1."""
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
