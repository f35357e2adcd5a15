"""Attention in one pass on matrix registers: both products are those of bfloat16 halves.

As `attention_rows`, a block of queries at a time: keys and values of an item are split once; then
queries, and exponentials, in the order of positions that `amx.split` gives an input.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import LOG2E
from tinsmith.codegen.matrix import CONFIGURATION, DEPTH, SIDE
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import BF16, F32, U8
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.amx.plan import FINISHING, POSITION, SPLITTING, Axis, Plan, slots
from tinsmith.kernels.amx.split import put
from tinsmith.kernels.amx.sums import REGISTER, sums
from tinsmith.kernels.amx.weights import need_default_precision
from tinsmith.kernels.attention.halves import (
    VECTORS,
    split_keys,
    split_queries,
    split_values,
)
from tinsmith.kernels.attention.operands import (
    Extents,
    RowOperands,
    extents_of,
    operands_of,
    score_pitch,
    softmax_rows,
    softmax_time,
)
from tinsmith.kernels.attention.softmax import Put
from tinsmith.kernels.attention.tables import Start
from tinsmith.kernels.dot.panels import part
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
class Shape:
    """Extents; the plans of the two products of ROWS queries."""

    of: Extents
    scores: Plan
    results: Plan

    @property
    def query_blocks(self) -> int:
        return -(-self.of.queries // ROWS)

    @property
    def pitch(self) -> int:
        """Elements from the scores of one query to those of the next."""
        return score_pitch(self.scores.outputs * SIDE)

    @property
    def places(self) -> list[int]:
        """Where keys, values, queries, scores, exponentials, results, and reciprocals of sums begin
        in the workspace, and its end, in bytes."""
        sizes = (
            self.scores.weight_bytes,
            self.results.weight_bytes,
            self.scores.size * POSITION,
            self.pitch * 4 * ROWS,
            self.results.size * POSITION,
            VECTORS * REGISTER,
            ROWS * 4,
        )
        return list(accumulate(sizes, initial=CONFIGURATION))


def _shape(of: Extents) -> Shape:
    """Every register of queries is a part of its own: no sums wait in memory (`Plan.pieces`)."""

    def plan(channels: int, outputs: int) -> Plan:
        panels = -(-outputs // (VECTORS * SIDE))
        return Plan(1, channels, panels * VECTORS, Axis(ROWS), Axis(1), parts=TOGETHER)

    return Shape(of, plan(of.width, of.keys), plan(of.keys, of.value_width))


@kernel("RowAttention", Tier.SHAPED, dtypes="float32", isas="amx")
def attention_amx(site: Site) -> Choice:
    """Scores and results by products of bfloat16 halves on matrix registers."""
    need_default_precision(site)
    of, target = extents_of(site), site.target
    if min(of.width, of.value_width) < SIDE:
        raise Skip(f"rows of {of.width} and {of.value_width} do not fill a register's row")
    shape, operands = _shape(of), operands_of(site)
    cost = _products_time(target, shape) + softmax_time(target, of)
    most = TEAM * site.threads
    groups = min(shape.query_blocks, -(-parts_for(most, cost, most) // of.items))
    return Choice(
        cost=cost,
        reads=site.reads(operands.reads(site), PLAIN),
        writes=(PLAIN,),
        phases=one_phase(of.items * groups, lambda em: _emit(em, shape, operands, groups)),
        packed=operands.packed,
        workspace=shape.places[-1],
        detail=str(of),
    )


def _products_time(target: Target, s: Shape) -> float:
    """Seconds of the products and all that is split for them, once, on one core."""
    of = s.of
    total = -(-of.queries // SIDE) / TOGETHER * (slots(s.scores) + slots(s.results))
    total += PACKING * of.keys * (s.scores.blocks + s.results.outputs / VECTORS)
    total += of.queries * (SPLITTING * s.scores.blocks + POWERS * s.results.blocks)
    total += of.queries * FINISHING * s.results.outputs
    return of.items * total * 2.0 * target.lanes / target.peak + target.time(0, of.nbytes)


def _emit(em: Emit, s: Shape, operands: RowOperands, groups: int) -> None:
    b, of, maps, book = em.b, s.of, operands.maps, em.packed[0]
    q, k, v = (em.input(i).pointer for i in range(3))
    y, all_slabs = em.outs[0].pointer, operands.slabs(em)
    work = em.workspace.cast(U8)
    keys, values, *rooms = ((work + p).fixed() for p in s.places[:-1])
    scale = em.site.attr("scale") * LOG2E
    with matrix.matrices(b, em.workspace), b.loop(em.begin, em.end) as t:
        item, group = b.index(t // groups), b.index(t % groups)
        with b.when(group.eq(0) | t.eq(em.begin)):
            split_keys(b, s.scores, k, maps.k.start(book, item), of.keys, keys)
            split_values(b, s.results, v, maps.v.start(book, item), of.value_width, values)
        q_rows, y_rows = maps.q.start(book, item), maps.y.start(book, item)
        slabs = operands.slabs_of(em, all_slabs, item)
        with b.loop(*part(group, groups, s.query_blocks)) as block:
            row = b.index(block * ROWS)
            height = b.index(b.minimum(ROWS, of.queries - row))
            queries, scores, powers, tile, inverse = rooms
            split_queries(b, s.scores, q, q_rows, row, height, scale, queries)
            _scores(em, s, queries, keys, scores, height)
            softmax_rows(
                b, of.keys, row, height, scores.cast(F32), s.pitch, inverse.cast(F32), slabs,
                DEPTH, partial(_put_powers, b, s.results, powers),
            )  # fmt: skip
            _results(em, s, powers, values, tile, inverse.cast(F32), row, height, y, y_rows)


def _put_powers(b: Builder, plan: Plan, powers: Ptr, row: Val) -> Put:
    """What keeps the exponentials of a row, as halves."""
    to = (powers.cast(BF16) + row * DEPTH).fixed()

    def one(i: Position, e: Val) -> None:
        x, y = (e.shuffle(None, range(at, at + SIDE)) for at in (0, SIDE))
        put(plan, (to + i * plan.block).fixed(), matrix.halve(b, x, y, endless=False))

    return one


def _scores(em: Emit, s: Shape, queries: Ptr, keys: Ptr, to: Ptr, height: Val) -> None:
    """Of `height` queries, in rows of `pitch` elements."""
    b, plan = em.b, s.scores
    with b.loop(0, plan.panels) as panel, b.loop(0, (height + (SIDE - 1)) // SIDE) as register:
        x = (queries + register * REGISTER).fixed()
        w = (keys + panel * plan.panel_bytes).fixed()
        at = (to + panel * (VECTORS * SIDE * 4) + register * (SIDE * s.pitch * 4)).fixed()
        zero = b.index(0)
        sums(b, plan, zero, x, w, None, at, SIDE * 4, VECTORS, None, None, s.pitch * 4)


def _results(
    em: Emit, s: Shape, powers: Ptr, values: Ptr, tile: Ptr, inverse: Ptr, row: Val, height: Val,
    y: Ptr, y_rows: Start,
) -> None:  # fmt: skip
    """Sums of values, times the reciprocals of the sums of their factors."""
    b, plan, width = em.b, s.results, s.of.value_width
    with b.loop(0, plan.panels) as panel, b.loop(0, (height + (SIDE - 1)) // SIDE) as register:
        x = (powers + register * REGISTER).fixed()
        w = (values + panel * plan.panel_bytes).fixed()
        sums(b, plan, b.index(0), x, w, None, tile, REGISTER, VECTORS, None, None)
        first = register * SIDE
        with b.loop(0, b.minimum(SIDE, height - first)) as i:
            factor = (inverse + first + i).load().splat(SIDE)
            out = (y + y_rows.at(row + first + i)).fixed()
            for n in range(VECTORS):
                column = panel * (VECTORS * SIDE) + n * SIDE
                value = (tile.cast(F32) + (n * SIDE * SIDE) + i * SIDE).load(SIDE)
                mask = None
                if width % (VECTORS * SIDE):
                    mask = b.first_lanes(b.index(width) - column, SIDE)
                (out + column).store(value * factor, mask)
