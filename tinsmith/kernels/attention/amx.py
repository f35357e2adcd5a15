"""Attention on matrix registers: both products are those of bfloat16 halves.

Keys and values of an item are split once; queries, and exponentials, a block at a time, in the
order of positions that `amx.split` gives an input.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.matrix import CONFIGURATION, DEPTH, SIDE
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import BF16, F32, U8
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.amx.plan import FINISHING, POSITION, SPLITTING, Axis, Plan, slots
from tinsmith.kernels.amx.split import put
from tinsmith.kernels.amx.sums import REGISTER, sums
from tinsmith.kernels.amx.weights import need_default_precision
from tinsmith.kernels.attention.blocks import Rooms, offer, pitch_of, softmax_time
from tinsmith.kernels.attention.halves import (
    VECTORS,
    split_keys,
    split_queries,
    split_values,
)
from tinsmith.kernels.attention.operands import Extents, extents_of, operands_of
from tinsmith.kernels.attention.softmax import Put
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.sharing import parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass

TOGETHER = 3
"""Registers of queries that are multiplied by a panel of keys, or values, one after the other,
while it is in the nearest cache that holds it."""
ROWS = TOGETHER * SIDE
TEAM = 2  # parts of the queries for each thread: every part splits keys and values again
PACKING = 56.0  # issue slots of a row of keys or values, for each block of 32 elements
POWERS = 60.0  # issue slots of 32 exponentials that are split, from and to the second-level cache


@dataclass(frozen=True)
class Registers:
    """`blocks.Products` on matrix registers: the plans of both, for blocks of ROWS queries."""

    of: Extents
    keyed: Plan
    valued: Plan
    lanes = DEPTH

    @property
    def blocks(self) -> int:
        return -(-self.of.queries // ROWS)

    @property
    def pitch(self) -> int:
        return pitch_of(self.keyed.outputs * SIDE)

    @property
    def rooms(self) -> tuple[int, ...]:
        """After the usual ones: exponentials, and a tile of results."""
        halves = self.keyed.weight_bytes, self.valued.weight_bytes, self.keyed.size * POSITION
        return (
            *halves,
            self.pitch * 4 * ROWS,
            ROWS * 4,
            self.valued.size * POSITION,
            VECTORS * REGISTER,
        )

    def registers(self, em: Emit) -> AbstractContextManager[None]:
        return matrix.matrices(em.b, em.workspace)

    def each_block(
        self, b: Builder, lo: Position, hi: Position, body: Callable[[Position, Val], None]
    ) -> None:
        with b.loop(lo, hi) as block:
            row = b.index(block * ROWS)
            body(row, b.index(b.minimum(ROWS, self.of.queries - row)))

    def pack(self, b: Builder, k: Start, v: Start, rooms: Rooms) -> None:
        split_keys(b, self.keyed, k, self.of.keys, rooms[0])
        split_values(b, self.valued, v, self.of.value_width, rooms[1])

    def scores(
        self, b: Builder, q: Start, row: Val, height: Val, scale: float, rooms: Rooms
    ) -> None:
        plan, (keys, _, queries, to) = self.keyed, (r.cast(U8) for r in rooms[:4])
        split_queries(b, plan, q, row, height, scale, queries)
        with b.loop(0, plan.panels) as panel, b.loop(0, (height + (SIDE - 1)) // SIDE) as register:
            x = (queries + register * REGISTER).fixed()
            w = (keys + panel * plan.panel_bytes).fixed()
            at = (to + panel * (VECTORS * SIDE * 4) + register * (SIDE * self.pitch * 4)).fixed()
            zero = b.index(0)
            sums(b, plan, zero, x, w, None, at, SIDE * 4, VECTORS, None, None, self.pitch * 4)

    def put(self, b: Builder, row: Val, rooms: Rooms) -> Put:
        """Keeps them as halves."""
        plan, to = self.valued, (rooms[5].cast(BF16) + row * DEPTH).fixed()

        def one(i: Position, e: Val) -> None:
            x, y = (e.shuffle(None, range(at, at + SIDE)) for at in (0, SIDE))
            put(plan, (to + i * plan.block).fixed(), matrix.halve(b, x, y, endless=False))

        return one

    def results(self, b: Builder, v: Start, y: Start, row: Val, height: Val, rooms: Rooms) -> None:
        plan, width = self.valued, self.of.value_width
        values, powers, tile = (rooms[i].cast(U8) for i in (1, 5, 6))
        with b.loop(0, plan.panels) as panel, b.loop(0, (height + (SIDE - 1)) // SIDE) as register:
            x = (powers + register * REGISTER).fixed()
            w = (values + panel * plan.panel_bytes).fixed()
            sums(b, plan, b.index(0), x, w, None, tile, REGISTER, VECTORS, None, None)
            first = register * SIDE
            with b.loop(0, b.minimum(SIDE, height - first)) as i:
                factor = (rooms[4] + first + i).load().splat(SIDE)
                out = y.at(row + first + i).fixed()
                for n in range(VECTORS):
                    column = panel * (VECTORS * SIDE) + n * SIDE
                    value = (tile.cast(F32) + (n * SIDE * SIDE) + i * SIDE).load(SIDE)
                    mask = None
                    if width % (VECTORS * SIDE):
                        mask = b.first_lanes(b.index(width) - column, SIDE)
                    (out + column).store(value * factor, mask)


def _registers(of: Extents) -> Registers:
    """Every register of queries is a part of its own: no sums wait in memory (`Plan.pieces`)."""

    def plan(channels: int, outputs: int) -> Plan:
        panels = -(-outputs // (VECTORS * SIDE))
        return Plan(1, channels, panels * VECTORS, Axis(ROWS), Axis(1), parts=TOGETHER)

    return Registers(of, plan(of.width, of.keys), plan(of.keys, of.value_width))


@kernel("RowAttention", Tier.SHAPED, dtypes="float32", isas="amx")
def attention_amx(site: Site) -> Choice:
    """Scores and results by products of bfloat16 halves on matrix registers."""
    need_default_precision(site)
    of, target = extents_of(site), site.target
    if min(of.width, of.value_width) < SIDE:
        raise Skip(f"rows of {of.width} and {of.value_width} do not fill a register's row")
    products = _registers(of)
    cost = _products_time(target, products) + softmax_time(target, of)
    most = TEAM * site.threads
    groups = min(products.blocks, -(-parts_for(most, cost, most) // of.items))
    return offer(site, of, operands_of(site), products, cost, groups, str(of), CONFIGURATION)


def _products_time(target: Target, s: Registers) -> float:
    """Seconds of the products and all that is split for them, once, on one core."""
    of = s.of
    total = -(-of.queries // SIDE) / TOGETHER * (slots(s.keyed) + slots(s.valued))
    total += PACKING * of.keys * (s.keyed.blocks + s.valued.outputs / VECTORS)
    total += of.queries * (SPLITTING * s.keyed.blocks + POWERS * s.valued.blocks)
    total += of.queries * FINISHING * s.valued.outputs
    return of.items * total * 2.0 * target.lanes / target.peak + target.time(0, of.nbytes)
