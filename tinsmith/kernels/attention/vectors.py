"""Attention in float32 vectors: both products by register tiles of a block of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Site, Tier, kernel
from tinsmith.kernels.attention.blocks import Blocks, Rooms, pitch_of, softmax_time
from tinsmith.kernels.attention.operands import Reach, extents_of, operands_of
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, vectors_of
from tinsmith.kernels.dot.skeleton import Operands, product
from tinsmith.kernels.dot.tiles import Columns, Rows, accumulators, choose, split_columns
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position, store_rows
from tinsmith.records import dataclass
from tinsmith.sizes import same, typical

TILE_VECTORS = 2
"""The most vectors of columns of a register tile: tall narrow tiles suit both products, which have
the same rows. Estimated."""
ALONE = 6
"""With so many queries or fewer, keys are not packed: packing takes as long as it saves.
Estimated."""
FEW, NEAR = 2, 2
"""Values are not packed if an item has at most FEW blocks of queries, or if its values lie at most
NEAR times their width apart: packing takes as long as it saves. Estimated."""


@dataclass(frozen=True)
class VectorBlocks(Blocks):
    """Attention in vectors of float32: a block is as many queries as a register tile has rows.

    rows, columns  how queries are cut into blocks, and keys into panels
    values         how the elements of values are cut into panels
    in_place, few  whether values, and keys, are read in place, not packed
    """

    rows: Rows
    columns: Columns
    values: Columns
    in_place: bool
    few: bool

    def within(self, reach: Reach) -> VectorBlocks:
        of = replace(self.of, keys=reach.count)
        widths = self.columns.widths
        columns = split_columns(of.keys, widths[0], len(widths), False)
        return replace(self, of=of, columns=columns)

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Position, int], None]
    ) -> None:
        each_row_panel(b, self.rows, lo, hi, body)

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        if not self.few:
            pack_keys(b, k, self.of.width, self.columns, rooms.keys)
        if not self.in_place:
            pack_values(b, v, self.of.keys, self.values, rooms.values)

    def scores(
        self, b: Builder, q: Start, k: Start, row: Position, height: int, scale: float, rooms: Rooms
    ) -> None:
        width = self.of.width
        with b.loop(0, height) as i:
            source, sink = q.at(b.index(row) + i).fixed(), (rooms.queries + i * width).fixed()

            def move(d: Position, size: int, mask: Val | None) -> None:
                value = (source + d).load(size, mask)
                factor = b.const(scale, F32.x(size))
                (sink + d).store(value * factor, mask)

            b.vectors(width, block_of(b.target), move)

        if self.few:
            scores_in_place(b, self, k, height, rooms)
            return

        def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            free = not isinstance(self.of.keys, int)  # then panels are of two sizes
            at = column * width if free else c * (width * self.columns.size)
            right = (rooms.keys + at).fixed()
            at = Operands(rooms.queries, width, right, sum(widths), width)
            tile = product(b, at, height, widths)
            store_rows((rooms.scores + column).fixed(), tile, self.pitch)

        each_column_panel(b, self.columns, 0, self.columns.count, panel)

    def results(
        self, b: Builder, v: Start, y: Start, row: Position, height: int, rooms: Rooms
    ) -> None:
        keys = self.of.keys

        def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            right, step, on = rooms.values + c * (keys * self.values.size), sum(widths), None
            if self.in_place:
                right, step = v.at(0) + column, v.stride
                on = b.first_lanes(valid, widths[-1]) if valid != widths[-1] else None
            of = Operands(rooms.scores, self.pitch, right.fixed(), step, keys, on)
            for i, line in enumerate(product(b, of, height, widths)):
                out = (y.at(b.index(row) + i) + column).fixed()
                factor = (rooms.inverses + i).load()
                for value, (at, width, count) in zip(line, vectors_of(widths, valid), strict=True):
                    (out + at).store(value * factor.splat(width), count=count)

        each_column_panel(b, self.values, 0, self.values.count, panel)


@kernel("RowAttention", Tier.SHAPED, dtypes="float32")
def attention_rows(site: Site) -> Choice:
    """Attention in float32, by blocks of queries whose scores stay in L1."""
    of, target, operands = extents_of(site), site.target, operands_of(site)
    lanes, limit, v = block_of(target), accumulators(target), operands.maps.v
    usual = of.typical()
    few = usual.queries * TILE_VECTORS < limit
    tiling = choose(target, of.queries, of.keys, of.width, most_vectors=6 if few else TILE_VECTORS)
    rows, columns = tiling.rows, tiling.columns
    values = split_columns(
        of.value_width, lanes, max(1, limit // rows.size), target.has_exact_tails
    )
    near = typical(rows.count) <= FEW or typical(v.stride or 0) <= NEAR * of.value_width
    in_place = v.stride is not None and near
    few_queries = isinstance(of.queries, int) and of.queries <= ALONE and of.width % lanes == 0
    reaches = operands.mask is not None and usual.keys > usual.queries
    pitch = pitch_of(-(-columns.padded // lanes) * lanes, reaches)
    packed = 0 if in_place else of.keys * values.padded
    padded = -(-of.keys // lanes) * lanes if reaches else columns.padded
    keys = 0 if few_queries else of.width * padded
    elements = keys, packed, rows.size * of.width, rows.size * pitch
    sizes = tuple(4 * e for e in (*elements, rows.size + 16))
    blocks = VectorBlocks(
        of, operands, rows.count, pitch, lanes, sizes, reaches, rows, columns, values, in_place,
        few_queries,
    )  # fmt: skip
    cost = target.time(usual.flops, usual.nbytes, 0.85) + softmax_time(target, usual)
    groups = min(typical(rows.count), -(-parts_for(PARTS, cost) // usual.items))
    return blocks.choice(site, cost, groups, f"{of}, tile {rows.size}x{len(values.widths)}")


def scores_in_place(
    b: Builder, blocks: VectorBlocks, k: Start, height: Position, rooms: Rooms
) -> None:
    """Emit the scores of `height` packed queries by all keys, to `rooms.scores`. Keys are read at
    `k`, not packed, as many together as a vector has lanes; each has a vector of partial sums,
    whose lanes are added up at the end. If the last group has fewer keys, the last key fills it up.
    Rows must be whole vectors."""
    lanes, keys, width = blocks.lanes, blocks.of.keys, blocks.of.width
    whole = keys // lanes * lanes

    def group(first: Position, last: Val | None) -> None:
        rows = [b.index(first) + r for r in range(lanes)]
        sources = [k.at(row if last is None else row.min(last)).fixed() for row in rows]
        zeros = [b.zero(F32.x(lanes)) for _ in sources]
        with b.loop(0, height) as i:
            query = (rooms.queries + i * width).fixed()
            with b.loop(0, width, lanes, zeros) as loop:
                factor = (query + loop.index).load(lanes)
                parts = [(source + loop.index).load(lanes) for source in sources]
                loop.next([p.fma(factor, s) for p, s in zip(parts, loop.vars, strict=True)])
            sums = transpose(loop.out)
            while len(sums) > 1:
                sums = [x + y for x, y in zip(sums[::2], sums[1::2], strict=True)]
            (rooms.scores + i * blocks.pitch + first).store(sums[0])

    if not same(whole, 0):
        with b.loop(0, whole, lanes) as first:
            group(first, None)
    if not same(whole, keys):
        with b.loop(whole, keys, lanes) as first:
            group(first, b.index(keys) - 1)


def pack_keys(b: Builder, k: Start, width: int, columns: Columns, to: Ptr) -> None:
    """Emit code that packs the keys of an item, rows of `width` elements, to `to` as
    [panel][element][key of the panel]. `columns` cuts the keys into panels; padding repeats the
    last key."""
    lanes = block_of(b.target)
    whole = width // lanes * lanes

    def group(first: Position, size: int, sink: Ptr, line: int) -> None:
        """Pack the `size` keys from number `first` on as neighbouring columns: their elements e go
        to sink[e * line : e * line + size]."""

        def source(r: int) -> Ptr:
            row = first + min(r, size - 1)
            if isinstance(row, int) or not isinstance(columns.total, int):
                row = b.minimum(row, columns.total - 1)
            return k.at(row).fixed()

        sources = [source(r) for r in range(lanes)]
        if whole:
            with b.loop(0, whole, lanes) as d:
                square = transpose([(s + d).load(lanes) for s in sources])
                out = (sink + d * line).fixed()
                for j, column in enumerate(square):
                    part = column if size == lanes else column.shuffle(None, range(size))
                    (out + j * line).store(part)
        if whole < width:
            with b.loop(whole, width) as d:
                out = (sink + d * line).fixed()
                for r in range(size):
                    (out + r).store((sources[r] + d).load())

    free = not isinstance(columns.total, int)
    if free or columns.full:
        vectors = len(columns.widths)
        with b.loop(0, columns.full * vectors) as number:
            panel, slot = number // vectors, number % vectors
            sink = to + panel * (width * columns.size) + slot * lanes
            group(number * lanes, lanes, sink.fixed(), columns.size)
    if free:
        with b.loop(columns.full * columns.size, columns.total, lanes) as first:
            group(first, lanes, (to + first * width).fixed(), lanes)
        return
    at, line = columns.full * columns.size, sum(columns.tail)
    for j, size in enumerate(columns.tail):
        sink = to + (columns.full * width * columns.size + j * lanes)
        group(at + j * lanes, size, sink.fixed(), line)


def pack_values(b: Builder, v: Start, depth: int, columns: Columns, to: Ptr) -> None:
    """Emit code that packs the values of an item, `depth` rows, to `to` as [panel][row][element of
    the panel]. `columns` cuts a row's elements into panels; padding is zeros."""
    panels = [(c, columns.widths, columns.widths[-1]) for c in range(columns.full)]
    if columns.tail:
        panels.append((columns.full, columns.tail, columns.valid))
    with b.loop(0, depth) as row:
        source = v.at(row).fixed()
        for c, widths, valid in panels:
            sink = (to + c * depth * columns.size + row * sum(widths)).fixed()
            for at, width, count in vectors_of(widths, valid):
                (sink + at).store((source + (c * columns.size + at)).load(width, count=count))
