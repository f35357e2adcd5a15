"""Attention in one pass: a block of queries at a time, whose scores never leave L1.

For each item (a head of a batch element, or of a window) keys are transposed into panels and
values copied, once; then, for each block of rows: scores, exponentials in place, and the product
with the values, divided by the sums on the way out.
"""

from __future__ import annotations

from tinsmith.codegen.builder import Ptr
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Tier, kernel, one_phase
from tinsmith.kernels.attention.operands import (
    Extents,
    RowOperands,
    extents_of,
    operands_of,
    score_pitch,
    softmax_rows,
    softmax_time,
)
from tinsmith.kernels.attention.pack import copy_queries, pack_keys, pack_values
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, part
from tinsmith.kernels.dot.skeleton import Operands, Tile, offsets, product
from tinsmith.kernels.dot.tiles import Columns, Rows, choose, split_columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

TILE_VECTORS = 2
"""Columns of a tile in vectors: tall tiles serve both products with the same rows."""


@dataclass(frozen=True)
class Shape:
    """Extents, tiles, and where everything lies in the workspace (in elements)."""

    of: Extents
    rows: Rows
    columns: Columns
    value_columns: Columns
    score_row: int

    @property
    def places(self) -> tuple[int, int, int, int, int]:
        """Keys, values, queries, scores, reciprocals of sums; all begin on a cache line."""
        sizes = (
            self.of.width * self.columns.padded,
            self.of.keys * self.value_columns.padded,
            self.rows.size * self.of.width,
            self.rows.size * self.score_row,
        )
        found = [0]
        for size in sizes:
            found.append(found[-1] + -(-size // 16) * 16)
        return found[0], found[1], found[2], found[3], found[4]

    @property
    def workspace(self) -> int:
        return 4 * (self.places[-1] + self.rows.size + 16)


def _shape(target: Target, of: Extents) -> Shape:
    lanes = block_of(target)
    tiling = choose(target, of.queries, of.keys, of.width, most_vectors=TILE_VECTORS)
    vectors = len(tiling.columns.widths) if tiling.columns.full else TILE_VECTORS
    values = split_columns(of.value_width, lanes, vectors, target.has_exact_tails)
    score_row = score_pitch(-(-tiling.columns.padded // lanes) * lanes)
    return Shape(of, tiling.rows, tiling.columns, values, score_row)


@kernel("RowAttention", Tier.SHAPED, dtypes="float32")
def attention_rows(site: Site) -> Choice:
    """Scores, softmax and the product with values by blocks of queries that stay in L1."""
    of, target = extents_of(site), site.target
    shape, operands = _shape(target, of), operands_of(site)
    cost = target.time(of.flops, of.nbytes, 0.85) + softmax_time(target, of)
    groups = min(shape.rows.count, -(-parts_for(PARTS, cost) // of.items))
    return Choice(
        cost=cost,
        reads=site.reads(operands.reads(site), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(of.items * groups, lambda em: _emit(em, shape, operands, groups)),
        packed=operands.packed,
        workspace=shape.workspace,
        detail=f"{of}, tile {shape.rows.size}x{TILE_VECTORS}",
    )


def _emit(em: Emit, s: Shape, operands: RowOperands, groups: int) -> None:
    b, of, maps = em.b, s.of, operands.maps
    book = em.packed[0]
    q, k, v = (em.input(i).pointer for i in range(3))
    y, all_slabs = em.outs[0].pointer, operands.slabs(em)
    work = em.workspace.cast(F32)
    keys, values, queries, scores, sums = ((work + p).fixed() for p in s.places)
    scale = em.site.attr("scale") * LOG2E
    with b.loop(em.begin, em.end) as t:
        item, group = t // groups, b.index(t % groups)

        def pack() -> None:
            pack_keys(b, k, maps.k.start(book, item), of.width, s.columns, keys)
            pack_values(b, v, maps.v.start(book, item), of.keys, s.value_columns, values)

        if groups == 1:
            pack()
        else:
            with b.when(group.eq(0) | t.eq(em.begin)):
                pack()
        q_rows, y_rows = maps.q.start(book, item), maps.y.start(book, item)
        slabs = operands.slabs_of(em, all_slabs, item)

        def block(row: Position, height: int) -> None:
            copy_queries(b, q, q_rows, row, height, of.width, scale, queries)
            _scores(em, s, height, queries, keys, scores)
            softmax_rows(
                b, of.keys, row, height, scores, s.score_row, sums, slabs, block_of(b.target)
            )
            _values(em, s, row, height, scores, values, sums, y, y_rows)

        lo, hi = part(group, groups, s.rows.count)
        each_row_panel(b, s.rows, lo, hi, block)


def _scores(em: Emit, s: Shape, height: int, queries: Ptr, keys: Ptr, scores: Ptr) -> None:
    width = s.of.width

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right = (keys + c * (width * s.columns.size)).fixed()
        tile = product(em.b, Operands(queries, width, right, sum(widths), width), height, widths)
        place = (scores + column).fixed()
        for i, row in enumerate(tile):
            for at, value in offsets(row):
                (place + (i * s.score_row + at)).store(value)

    each_column_panel(em.b, s.columns, 0, s.columns.count, panel)


def _values(
    em: Emit,
    s: Shape,
    row: Position,
    height: int,
    scores: Ptr,
    values: Ptr,
    sums: Ptr,
    y: Ptr,
    y_rows: Start,
) -> None:
    b = em.b

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        right = (values + c * (s.of.keys * s.value_columns.size)).fixed()
        at = Operands(scores, s.score_row, right, sum(widths), s.of.keys)
        tile: Tile = product(b, at, height, widths)
        for i, line in enumerate(tile):
            out = (y + y_rows.at(b.index(row) + i) + column).fixed()
            factor = (sums + i).load()
            for offset, value in offsets(line):
                lanes = value.ty.lanes
                last = offset + lanes == sum(widths)
                count = valid if last else lanes
                (out + offset).store(value * factor.splat(lanes), count=count)

    each_column_panel(b, s.value_columns, 0, s.value_columns.count, panel)
