"""Attention on matrix registers: both products of bfloat16, in split precision (hi and lo) or not.

Both products are those of `kernels/amx`, whose words for their sizes are those of convolutions:

    product              positions             channels               outputs
    scores = q k^T       queries of a block    elements of a row      keys
    results = e v        queries of a block    keys                   elements of a value

Keys and values of an item are packed once; queries and exponentials e a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import CONFIGURATION, DEPTH, SIDE
from tinsmith.codegen.products import MATRICES
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import BF16, F32, U8
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.amx import tiling
from tinsmith.kernels.amx.pack_left import pack_row, put
from tinsmith.kernels.amx.pack_right import pack_columns_of, pack_rows_of
from tinsmith.kernels.amx.sums import Operands, sums
from tinsmith.kernels.amx.tiling import POSITION, REGISTER, RESULTS, AmxPlan, Axis
from tinsmith.kernels.attention.blocks import Blocks, Rooms, pitch_of, softmax_time
from tinsmith.kernels.attention.operands import extents_of, operands_of
from tinsmith.kernels.attention.softmax import Put
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.float_products import float_product
from tinsmith.kernels.sharing import parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

TOGETHER = 3
"""Matrix registers, of 16 queries each, that a block of queries fills: all are multiplied by one
panel of keys, or of values, while the panel is in a near cache. Estimated."""
ROWS = TOGETHER * SIDE
TEAM = 2  # parts of the queries for each thread, each of which packs keys and values; estimated
PACKING, POWERS = 56.0, 60.0
"""PACKING: issue slots that pack 32 elements of a key or value. POWERS: issue slots that read 32
exponentials, split them into bfloat16 parts and store these, from and to the second-level cache.
Fitted on an Intel Xeon with AMX, 2 cores; the command was not recorded."""


@dataclass(frozen=True)
class MatrixBlocks(Blocks):
    """Attention on matrix registers, by blocks of ROWS queries. `keyed` is the plan of the product
    of queries and keys, `valued` that of exponentials and values."""

    keyed: AmxPlan
    valued: AmxPlan

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        return matrix.matrices(em.b, em.workspace)

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Position, Val], None]
    ) -> None:
        with b.loop(lo, hi) as block:
            row = b.index(block * ROWS)
            body(row, b.index(b.minimum(ROWS, self.of.queries - row)))

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        pack_columns_of(b, self.keyed, k.at, self.of.keys, rooms.keys)
        pack_rows_of(b, self.valued, v.at, self.of.value_width, rooms.values)

    def scores(
        self, b: Builder, q: Start, k: Start, row: Val, height: Val, scale: float, rooms: Rooms
    ) -> None:
        factor, line = b.const(scale, F32.x(SIDE)), self.pitch * 4
        with b.loop(0, height) as i:
            source = q.at(row + i).fixed()
            to = (rooms.queries.cast(BF16) + i * DEPTH).fixed()
            pack_row(b, self.keyed, source, factor, to)
        with _tiles(b, self.keyed, rooms.queries, rooms.keys, height) as (panel, register, x, w):
            to = rooms.scores.cast(U8) + panel * (2 * SIDE * 4) + register * (SIDE * line)
            sums(b, self.keyed, 0, 2, Operands(x, w, to.fixed(), SIDE * 4, line))

    def put(self, b: Builder, row: Val, rooms: Rooms) -> Put:
        """The function that splits exponentials into bfloat16 parts and stores these in
        `rooms.more[0]`, the packed left operand of the product with the values."""
        plan, to = self.valued, (rooms.more[0].cast(BF16) + row * DEPTH).fixed()

        def one(i: Position, e: Val) -> None:
            x, y = (e.shuffle(None, range(at, at + SIDE)) for at in (0, SIDE))
            at = (to + i * plan.block).fixed()
            put(plan, at, matrix.split(b, x, y, plan.row.parts, endless=False))

        return one

    def results(self, b: Builder, v: Start, y: Start, row: Val, height: Val, rooms: Rooms) -> None:
        plan, width, (powers, tile) = self.valued, self.of.value_width, rooms.more
        with _tiles(b, plan, powers, rooms.values, height) as (panel, register, x, w):
            sums(b, plan, 0, 2, Operands(x, w, tile.cast(U8), REGISTER))
            first = register * SIDE
            with b.loop(0, b.minimum(SIDE, height - first)) as i:
                factor = (rooms.inverses + first + i).load().splat(SIDE)
                out = y.at(row + first + i).fixed()
                for n in range(2):
                    column = panel * (2 * SIDE) + n * SIDE
                    value = (tile.cast(F32) + (n * SIDE * SIDE) + i * SIDE).load(SIDE)
                    mask = None
                    if width % (2 * SIDE):
                        mask = b.first_lanes(b.index(width) - column, SIDE)
                    (out + column).store(value * factor, mask)


@contextmanager
def _tiles(
    b: Builder, plan: AmxPlan, left: Ptr, right: Ptr, height: Val
) -> Iterator[tuple[Val, Val, Ptr, Ptr]]:
    """A context whose code runs for each pair of a panel of the packed operand `right` and a
    register of 16 of the `height` packed queries at `left`. It yields the numbers of panel and
    register, then pointers to register and panel."""
    with b.loop(0, plan.panels) as panel, b.loop(0, (height + (SIDE - 1)) // SIDE) as register:
        x = (left.cast(U8) + register * REGISTER).fixed()
        w = (right.cast(U8) + panel * plan.panel_bytes).fixed()
        yield panel, register, x, w


@kernel("RowAttention", Tier.SHAPED, dtypes="float32", isas="amx", numbers=True)
def attention_amx(site: Site) -> Choice:
    """Attention by products of bfloat16, in split precision or not, on matrix registers.

    Rows of queries, keys and values must have 16 elements or more.
    """
    row = float_product(site, MATRICES)
    of, target = extents_of(site), site.target
    if min(of.width, of.value_width) < SIDE:
        raise Skip(f"rows of {of.width} and {of.value_width} do not fill a register's row")

    def plan(channels: int, outputs: int) -> AmxPlan:
        """The plan of one of the two products, of `channels` by `outputs` (see the module). Every
        register of queries is a share, so that sums stay in registers until they are complete."""
        vectors = -(-outputs // (2 * SIDE)) * 2
        return AmxPlan(1, channels, vectors, Axis(ROWS), Axis(1), shares=TOGETHER, row=row)

    keyed, valued = plan(of.width, of.keys), plan(of.keys, of.value_width)
    pitch = pitch_of(keyed.outputs * SIDE)
    packed = keyed.weight_bytes, valued.weight_bytes, keyed.size * POSITION
    sizes = (*packed, ROWS * pitch * 4, ROWS * 4, valued.size * POSITION, RESULTS)
    blocks = MatrixBlocks(
        of, operands_of(site), -(-of.queries // ROWS), pitch, DEPTH, sizes, False, keyed,
        valued,
    )  # fmt: skip
    cost = _products_time(target, blocks) + softmax_time(target, of)
    most = TEAM * site.threads
    groups = min(blocks.blocks, -(-parts_for(most, cost, most) // of.items))
    return blocks.choice(site, cost, groups, str(of), CONFIGURATION)


def _products_time(target: Target, s: MatrixBlocks) -> float:
    """Estimated seconds of both products, with packing, on one core."""
    of = s.of
    total = -(-of.queries // SIDE) / TOGETHER * (tiling.slots(s.keyed) + tiling.slots(s.valued))
    total += PACKING * of.keys * (s.keyed.blocks + s.valued.outputs / 2)
    total += of.queries * (tiling.SPLITTING * s.keyed.blocks + POWERS * s.valued.blocks)
    total += of.queries * tiling.FINISHING * s.valued.outputs
    return of.items * total * 2.0 * target.lanes / target.peak + target.time(0, of.nbytes)
