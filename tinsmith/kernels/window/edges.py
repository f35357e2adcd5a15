"""Zero points of depthwise convolutions of bytes, whose padding is 0 in memory.

Sums are wanted of (x - zero) w over the taps that see the input. They begin with - zero w over
these taps, so padding adds nothing. Which taps see the input depends on the row and the column of
the output, but is the same for all rows that are not near an edge: these share a row of the table.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Edges:
    """The table of what sums begin with, and which of its rows an output has. Each of the `top`
    first rows of outputs and of the rows from `last` on has a row of its own; those between share
    one. Each column has its own. `rows` and `columns`: for each row and column of the table, which
    taps see the input."""

    top: int
    last: int
    rows: tuple[tuple[bool, ...], ...]
    columns: tuple[tuple[bool, ...], ...]

    @property
    def places(self) -> int:
        """Entries of the table for each channel."""
        return len(self.rows) * len(self.columns)

    def start(
        self, b: Builder, table: Ptr | None, width: int, first: tuple[Val | int, Val | int],
        tile: tuple[int, int],
    ) -> list[Val]:  # fmt: skip
        """What the sums of a tile of (rows, columns) begin with, one vector for each output, row by
        row. `first` is its first output; `table` that of a block of `width` channels."""
        assert table is not None
        if self.places == 1:
            return [table.load(width)] * (tile[0] * tile[1])
        found, (row, column) = [], first
        for q in range(tile[0]):
            line = table + self._row(b, row + q) * (len(self.columns) * width) + column * width
            line = line.fixed()
            found += [(line + p * width).load(width) for p in range(tile[1])]
        return found

    def _row(self, b: Builder, row: Val | int) -> Val | int:
        """The row of the table for a row of outputs."""
        below = b.maximum(row, self.last - 1) - (self.last - 1)
        return b.minimum(row, self.top) + below


NO_EDGES = Edges(0, 1, ((True,),), ((True,),))
"""Sums begin alike everywhere: no window sees padding."""


def edges_of(geo: Geometry) -> Edges:
    """The edges of a convolution. Raises Skip where its sizes are free, or its kernel is deep."""
    if geo.is_free:
        raise Skip("its padding is not 0, and its sizes are free")
    if geo.kernel[0] > 1:
        raise Skip("its padding is not 0, and its kernel is deep")
    rows, columns = (
        tuple(
            tuple(0 <= o * geo.stride[d] - geo.begin[d] + k * geo.dilation[d] < geo.size[d]
                  for k in range(geo.kernel[d]))
            for o in range(geo.out[d])
        )
        for d in (1, 2)
    )  # fmt: skip
    inner = [o for o, seen in enumerate(rows) if all(seen)]
    if not inner:
        return Edges(len(rows), len(rows) + 1, rows, columns)
    top, last = inner[0], inner[-1] + 1
    return Edges(top, last, (*rows[: top + 1], *rows[last:]), columns)


def pack_start(
    w: np.ndarray, zero: int, edges: Edges, width: int, dtype: str = "float32"
) -> np.ndarray:
    """The table of `Edges` as [block][row][column][channel]: -zero times the sum of the taps of w
    that see the input."""
    if edges == NO_EDGES:
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)[:, None, None]
    else:
        taps = w.reshape(len(w), len(edges.rows[0]), len(edges.columns[0])).astype(np.int64)
        sums = np.einsum("cab,ra,kb->crk", taps, np.array(edges.rows), np.array(edges.columns))
    channels, rows, columns = sums.shape
    wide = np.zeros((-(-channels // width) * width, rows, columns), dtype)
    wide[:channels] = -zero * sums
    blocks = wide.reshape(-1, width, rows, columns).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks).reshape(-1)
