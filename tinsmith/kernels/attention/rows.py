"""Attention in float32 vectors: both products by register tiles of a block of queries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Choice, Emit, Site, Tier, kernel
from tinsmith.kernels.attention.blocks import Rooms, offer, pitch_of, softmax_time
from tinsmith.kernels.attention.operands import Extents, extents_of, operands_of
from tinsmith.kernels.attention.pack import copy_queries, pack_keys, pack_values
from tinsmith.kernels.attention.tables import RowMap, Start
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, offsets, product
from tinsmith.kernels.dot.tiles import Columns, Rows, accumulators, choose, split_columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

TILE_VECTORS = 2
"""Columns of a tile in vectors: tall tiles serve both products with the same rows."""
FEW, NEAR = 2, 2
"""Blocks of queries up to which, and distance of rows in their width up to which, values are read
where they lie: packing them takes as long."""


@dataclass(frozen=True)
class Tiles:
    """`blocks.Products` in float32: blocks of queries are the rows of the tiles."""

    of: Extents
    rows: Rows
    columns: Columns  # of the keys
    values: Columns
    in_place: bool  # values are not packed
    lanes: int

    @property
    def blocks(self) -> int:
        return self.rows.count

    @property
    def pitch(self) -> int:
        return pitch_of(-(-self.columns.padded // self.lanes) * self.lanes)

    @property
    def rooms(self) -> tuple[int, ...]:
        keys, values = self.of.width * self.columns.padded, self.of.keys * self.values.padded
        queries, scores = self.rows.size * self.of.width, self.rows.size * self.pitch
        elements = keys, 0 if self.in_place else values, queries, scores, self.rows.size + 16
        return tuple(4 * e for e in elements)

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        return nullcontext()

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Position, int], None]
    ) -> None:
        each_row_panel(b, self.rows, lo, hi, body)

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        pack_keys(b, k, self.of.width, self.columns, rooms[0])
        if not self.in_place:
            pack_values(b, v, self.of.keys, self.values, rooms[1])

    def scores(
        self, b: Builder, q: Start, row: Position, height: int, scale: float, rooms: Rooms
    ) -> None:
        width, (keys, _, queries, scores, _) = self.of.width, rooms
        copy_queries(b, q, row, height, width, scale, queries)

        def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            right = (keys + c * (width * self.columns.size)).fixed()
            tile = product(b, Operands(queries, width, right, sum(widths), width), height, widths)
            place = (scores + column).fixed()
            for i, line in enumerate(tile):
                for at, value in offsets(line):
                    (place + (i * self.pitch + at)).store(value)

        each_column_panel(b, self.columns, 0, self.columns.count, panel)

    def put(self, b: Builder, row: Val, rooms: Rooms) -> None:
        return None

    def results(
        self, b: Builder, v: Start, y: Start, row: Position, height: int, rooms: Rooms
    ) -> None:
        _, values, _, scores, sums = rooms

        def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            right, step, on = values + c * (self.of.keys * self.values.size), sum(widths), None
            if self.in_place:
                right, step = v.at(0) + column, v.stride
                on = b.first_lanes(valid, widths[-1]) if valid != widths[-1] else None
            at = Operands(scores, self.pitch, right.fixed(), step, self.of.keys, on)
            for i, line in enumerate(product(b, at, height, widths)):
                out = (y.at(b.index(row) + i) + column).fixed()
                factor = (sums + i).load()
                for offset, value in offsets(line):
                    lanes = value.ty.lanes
                    count = valid if offset + lanes == sum(widths) else lanes
                    (out + offset).store(value * factor.splat(lanes), count=count)

        each_column_panel(b, self.values, 0, self.values.count, panel)


def _tiles(target: Target, of: Extents, v: RowMap) -> Tiles:
    lanes = block_of(target)
    few = of.queries * TILE_VECTORS < accumulators(target)
    tiling = choose(target, of.queries, of.keys, of.width, most_vectors=6 if few else TILE_VECTORS)
    vectors = max(1, accumulators(target) // tiling.rows.size)
    values = split_columns(of.value_width, lanes, vectors, target.has_exact_tails)
    few = tiling.rows.count <= FEW
    in_place = v.stride is not None and (few or v.stride <= NEAR * of.value_width)
    return Tiles(of, tiling.rows, tiling.columns, values, in_place, lanes)


@kernel("RowAttention", Tier.SHAPED, dtypes="float32")
def attention_rows(site: Site) -> Choice:
    """Scores, softmax and the product with values by blocks of queries that stay in L1."""
    of, target, operands = extents_of(site), site.target, operands_of(site)
    tiles = _tiles(target, of, operands.maps.v)
    cost = target.time(of.flops, of.nbytes, 0.85) + softmax_time(target, of)
    groups = min(tiles.blocks, -(-parts_for(PARTS, cost) // of.items))
    detail = f"{of}, tile {tiles.rows.size}x{len(tiles.values.widths)}"
    return offer(site, of, operands, tiles, cost, groups, detail)
