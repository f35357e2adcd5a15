"""The table of what becomes of each product of a tile, and the parts of the workspace."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tinsmith.kernels.strassen.form import PRODUCTS, Product
from tinsmith.kernels.strassen.shape import Shape
from tinsmith.records import dataclass

FIELDS = ("start", "keep", "done", "add", "outer", "outer_keep", "final", "outer_add", "row",
          "column")  # fmt: skip
"""The columns of the table, which has a row for each product. Tiles are offsets within a slot
(`Room`), in elements; offset 0 is the tile of zeros. `outer...` are for level 2 only.

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
    """The parts of a thread's workspace, as offsets in elements. In order: the left factors of all
    row panels of a group, at 0; a slot of tiles for each of these panels; one unit of the result;
    sums of squares of rows; limits of panels."""

    shape: Shape

    @property
    def slots(self) -> int:
        """The offset of the slots: `Shape.slot` elements for each row panel of a group."""
        return self.shape.products * self.shape.apart

    def place(self, number: int) -> int:
        """The offset within a slot of a tile by `number`: 0 the tile of zeros, 1 and 2 places 1 and
        2 (`form.Product`) of the lowest level."""
        return number * self.shape.tile

    def outer(self, number: int, quarter: int) -> int:
        """The offset within a slot of the tile for `quarter` (0 to 3) of place `number` (1 or 2) of
        the higher of two levels."""
        return (3 + (number - 1) * 4 + quarter) * self.shape.tile

    @property
    def result(self) -> int:
        """The offset of the unit of the result to which the epilogue is applied next."""
        return self.slots + self.shape.together * self.shape.slot

    @property
    def sizes(self) -> int:
        """The offset of the sums of squares, one float32 for each row of a group's panels."""
        return self.result + self.shape.tile

    @property
    def limits(self) -> int:
        """The offset of the limits, one float32 for each panel of a group. Rows whose sum of
        squares is at most this are computed by the definition."""
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
    """The row of the table for product `low`. At level 2 it is one of the seven products of which
    the product `high` of the higher level consists; at level 1 `high` is None."""
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
