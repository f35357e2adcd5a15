"""The plan of a product of packed elements: how it is cut and shared, and where packed operands
lie."""

from __future__ import annotations

from math import prod

from tinsmith.codegen.products import Product
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Site
from tinsmith.kernels.dot import matrices
from tinsmith.kernels.dot.batched import Problem
from tinsmith.kernels.dot.panels import Grid
from tinsmith.kernels.dot.saturating import RowSums
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.dot.zeros import Side
from tinsmith.kernels.layout import LINE
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Plan:
    """How a batch of products A @ B is computed, and where its packed operands lie.

    A thread's workspace holds the packed rows of A of one tile, then the buffer of `finish_tile`.
    Scratch holds the panels of every B, then for each B a table of the zero points and the sums of
    its columns. Of a constant B both are packed arrays instead; if it is split, scratch holds the
    transposed rows of A, and workspace ends with the sums of `RowSums`.

    left, right  how A and B are packed
    each         rows of one matrix A: zero points of rows repeat after so many
    matrices     how many matrices B there are
    stride       lanes from one packed row of A to the next
    constant     B is constant, and packed when the model is compiled
    off_rows     B may have zero points that are not 0: these times the sums of A's rows are taken
                 off (`taken_off`)
    off_columns  A may have some: these times the sums of B's columns are taken off
    sums         of split weights (`dot/saturating.py`): how products by their rest are summed
    """

    problem: Problem
    row: Product
    tiling: Tiling
    cells: Grid
    left: Side
    right: Side
    each: int
    matrices: int
    stride: int
    constant: bool
    off_rows: bool
    off_columns: bool
    sums: RowSums | None = None

    @property
    def depth(self) -> int:
        """Lanes of a packed row of A or column of B."""
        return self.row.depth(self.problem.k)

    @property
    def buffer_at(self) -> int:
        """Lanes of workspace before the buffer of `finish_tile` or `matrices.Registers`."""
        rows = matrices.height(self.row, self.tiling.rows.size)
        return -(-rows * self.stride // LINE) * LINE

    @property
    def panels(self) -> int:
        """Lanes of all packed panels of one B."""
        return self.depth * self.tiling.columns.padded

    @property
    def tables_at(self) -> int:
        """Lanes of scratch before the tables."""
        return self.matrices * self.panels

    @property
    def has_table(self) -> bool:
        return self.off_rows or self.off_columns

    @property
    def scratch(self) -> int:
        """Bytes of scratch."""
        if self.constant:
            return 0 if self.sums is None else self.sums.scratch
        tables = 2 * self.matrices * self.tiling.columns.padded if self.has_table else 0
        return 4 * (self.tables_at + tables)


def constant_matrix(site: Site) -> Array | None:
    """B, if it is a single constant matrix whose zero points are constant, too, or absent;
    otherwise None."""
    w = site.input(1).const
    if w is None or w.ndim < 2 or prod(w.shape[:-2]) != 1:
        return None
    if site.has(3) and site.input(3).const is None:
        return None
    return w.reshape(w.shape[-2:])
