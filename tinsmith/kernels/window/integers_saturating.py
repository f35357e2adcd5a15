"""Convolutions of bytes by split weights (`dot/saturating.py`): how their weights are packed, and
their windows transposed."""

from __future__ import annotations

from tinsmith.codegen.products import U8
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.panels import first_row
from tinsmith.kernels.dot.saturating import VECTORS, ChunkSums, Places, fitting, transpose_rows
from tinsmith.kernels.dot.tiles import Tiling
from tinsmith.kernels.sharing import uneven
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.integers_plan import Cut, Plan, Shares, pack_weights, tile_room
from tinsmith.kernels.window.integers_windows import Stretches, source_of

UNEVEN = 1.2
"""Parts are enough for the threads if the busiest one's time is at most so many equal shares.
Estimated."""


def pack_fitting(
    w: Array, zero: Array | None, name: str, cut: Cut, tiling: Tiling, pixel: int
) -> Array:
    """`pack_weights` of the fitting weights."""
    return pack_weights(fitting(w), zero, name, cut, tiling, pixel)


def chunks(plan: Plan, threads: int) -> Shares:
    """How the work of a convolution by split weights is cut: its pixels into chunks of at most
    VECTORS vectors, or of one panel of rows; and, if these are too few for the threads, its panels
    of columns, for each of which a chunk is transposed again."""
    most, rows, columns = VECTORS * plan.block, plan.tiling.rows, plan.tiling.columns.count
    panels = -(-rows.count // max(1, most // rows.size))
    runs = plan.runs if panels > 1 else -(-plan.runs // max(1, most // rows.total))
    parts = plan.images * runs * panels
    enough = (c for c in range(1, columns) if uneven(parts * c, threads) <= UNEVEN)
    across = next(enough, columns)
    return Shares(across, runs, panels, across == 1)


def _sums(plan: Plan, used: int) -> ChunkSums:
    """The sums of a chunk, if a thread needs `used` bytes of workspace besides."""
    rest, rows, shares = plan.rest, plan.tiling.rows, plan.shares
    pixels = min(rows.total, -(-rows.count // shares.panels) * rows.size)
    pixels *= -(-plan.runs // shares.runs)
    return ChunkSums(rest, min(-(-pixels // rest.block), int(rest.vectors)), used, here=True)


def room_of_sums(plan: Plan, used: int) -> int:
    """Bytes of workspace, `used` bytes included, that a thread needs for the sums of a chunk by a
    panel of columns."""
    columns = plan.tiling.columns
    return _sums(plan, used).room(columns.size or sum(columns.tail))


class Chunk:
    """A chunk of the pixels of an image: code that transposes its windows into the thread's
    workspace, and then (`sums`) sums their products by the rest. The chunk begins with the first
    pixel of `panel`, a panel of rows, in run number `run`."""

    def __init__(
        self, em: Emit, plan: Plan, image: Position, run: Position, panel: Position
    ) -> None:
        self._em, self._sums = em, _sums(plan, tile_room(em.site, plan))
        self._first = first_row(em.b, plan.tiling.rows, panel) + run * plan.pixels
        self._rows = (em.workspace + self._sums.at).cast(U8)
        b, block, rest, source = em.b, plan.block, plan.rest, source_of(em, plan)
        count, depth = self._sums.count, 4 * plan.depth
        with b.loop(0, count) as i:
            pixel = rest.first(b, self._first, i)
            pixels = [pixel + j for j in range(block)]
            apart = plan.runs > 1
            places = [(p // plan.pixels, p % plan.pixels) if apart else (0, p) for p in pixels]
            windows = [source.at(plan, image, *place).cast(U8).fixed() for place in places]
            with b.loop(0, rest.depth // depth) as tap:
                away = Stretches(em, plan, source.first, source.first, 1).away(tap) * 4
                with b.loop(0, depth // block) as k:
                    to = self._rows + i * block + (tap * depth + k * block) * (count * block)
                    transpose_rows(windows, to, away + k * block, count)

    def sums(self, column: Position, vectors: int) -> Places:
        """Emit code that sums the products by the rest, of so many vectors of columns from `column`
        on. Returns where the sums lie."""
        c = column // self._sums.rest.block
        return self._sums.sum(self._em, self._rows, self._first, (c, c + vectors))
