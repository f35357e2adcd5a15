"""The zero point of the input in depthwise convolutions of bytes, where padding is 0 in memory.

An output is the sum of (x - zero) w over the taps inside the image. The kernel adds up x w, in
which padding counts 0; so its sum must begin with the sum of -zero w over the taps inside the
image. That is a table of starts: which taps lie inside depends on the output's row and column. Rows
far from an edge share one row of it.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.kernels._kernel import Skip
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.weights import whole_blocks
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Edges:
    """The rows and columns of the table of starts, and which of them an output has.

    top      rows of outputs before this number have a row of the table each
    last     rows of outputs from this number on likewise; all rows between share one
    rows     for each row of the table: whether each kernel row lies inside the image
    columns  for each column of the table, one for each column of outputs (in NO_EDGES one in all):
             whether each kernel column lies inside the image
    """

    top: int
    last: int
    rows: tuple[tuple[bool, ...], ...]
    columns: tuple[tuple[bool, ...], ...]

    @property
    def places(self) -> int:
        """How many starts the table has for each channel."""
        return len(self.rows) * len(self.columns)

    def start(
        self, b: Builder, table: Ptr | None, width: int, first: tuple[Val | int, Val | int],
        tile: tuple[int, int],
    ) -> list[Val]:  # fmt: skip
        """Load what the sums of a tile of (rows, columns) begin with: a vector for each output, row
        by row. `first`: the (row, column) of its first output; `table`: the address of the starts
        of a channel block."""
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
"""A table of one start for all outputs, as no window reads padding."""


def edges_of(geo: Geometry, zero: int) -> Edges:
    """The table for the input's zero point: NO_EDGES if that is 0 or no window reads padding.
    Otherwise raises Skip if sizes are free, the kernel has several planes or depth is padded."""
    if not zero or not any(map(any, geo.halo)):
        return NO_EDGES
    if geo.is_free:
        raise Skip("its padding is not 0, and its sizes are free")
    if geo.kernel[0] > 1 or geo.begin[0] or geo.after[0]:
        raise Skip("its padding is not 0, and its kernel or its padding is deep")
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
    """The table of starts as [block of `width` channels][row][column][lane], flat, of type `dtype`:
    -zero times the sum of the weights w [C, 1, *taps] of the taps inside the image; of all taps for
    NO_EDGES."""
    if edges == NO_EDGES:
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)[:, None, None]
    else:
        taps = w.reshape(len(w), len(edges.rows[0]), len(edges.columns[0])).astype(np.float64)
        sums = np.array(edges.rows, np.float64) @ taps @ np.array(edges.columns, np.float64).T
    blocks = whole_blocks((-zero * sums).astype(dtype), width).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks).reshape(-1)
