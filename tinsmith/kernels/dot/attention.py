"""Attention without ever storing the scores: a panel of queries at a time.

For each head the keys are packed transposed; then each panel of queries takes three steps in
workspace that stays in cache: scores = q k^T, softmax of its rows, and the product with v, which
is divided by the sums of the rows on its way out.
"""

from __future__ import annotations

from math import sqrt

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, I32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Site,
    Skip,
    Tier,
    View,
    kernel,
    one_phase,
)
from tinsmith.kernels.dot.matmul import spread_stride
from tinsmith.kernels.dot.panels import each_column_panel, each_row_panel, part
from tinsmith.kernels.dot.skeleton import (
    Operands,
    buffer_bytes,
    finish_tile,
    offsets,
    product,
)
from tinsmith.kernels.dot.tiles import Columns, Tiling, accumulators, choose, split_columns
from tinsmith.kernels.fold import LARGEST, SUM, fold_row, keep
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position, shifted, spread
from tinsmith.records import dataclass

NINF = float("-inf")


@dataclass(frozen=True)
class Heads:
    """Where the heads of q, k, v or y lie: distances in elements."""

    batch: int
    head: int
    row: int

    def at(self, pointer: Ptr, n: Position, h: Position) -> Ptr:
        return (pointer + n * self.batch + h * self.head).fixed()


def _heads(dims: tuple[int, ...], count: int) -> tuple[Heads, int, int]:
    """(where, rows, elements) of an operand [N,H,T,E] or [N,T,H*E]."""
    if len(dims) == 4:
        _, h, t, e = dims
        return Heads(h * t * e, t * e, e), t, e
    _, t, wide = dims
    e = wide // count
    return Heads(t * wide, e, wide), t, e


@dataclass(frozen=True)
class Problem:
    batch: int
    heads: int
    shared: int  # query heads for each key head
    queries: int
    keys: int
    e: int
    f: int
    q: Heads
    k: Heads
    v: Heads
    scale: float
    softcap: float
    causal: bool


def problem(site: Site) -> Problem:
    """What an Attention site asks for, or Skip."""
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if site.has(index):
            raise Skip(f"{name} is given")
    for name, plain in (("with_present", False), ("with_qk", False), ("left_window_size", -1),
                        ("right_window_size", -1)):  # fmt: skip
        if site.attr(name) != plain:
            raise Skip(f"{name} is {site.attr(name)}")
    if str(site.attr("softmax_precision") or "float32") != "float32":
        raise Skip(f"the softmax is in {site.attr('softmax_precision')}")
    dims = [site.input(i).dims for i in range(3)]
    if min(site.input(i).type.size for i in range(3)) == 0:
        raise Skip("an operand is empty")
    heads = dims[0][1] if len(dims[0]) == 4 else site.attr("q_num_heads")
    groups = dims[1][1] if len(dims[1]) == 4 else site.attr("kv_num_heads")
    q, queries, e = _heads(dims[0], heads)
    k, keys, _ = _heads(dims[1], groups)
    v, _, f = _heads(dims[2], groups)
    batch = dims[0][0]
    wide = (batch, heads, queries, f) if len(dims[0]) == 4 else (batch, queries, heads * f)
    if site.out.dims != wide:
        raise Skip(f"the output {site.out.dims} is not the attention's shape {wide}")
    scale = 1 / sqrt(e) if site.attr("scale") is None else site.attr("scale")
    return Problem(batch, heads, heads // groups, queries, keys, e, f, q, k, v, scale,
                   site.attr("softcap"), bool(site.attr("is_causal")))  # fmt: skip


def _mask_dims(site: Site, p: Problem) -> None:
    """Skip unless the mask, if any, broadcasts to [N,H,Q,K]."""
    if not site.has(3):
        return
    mask = site.input(3)
    if mask.dtype.name not in ("bool", "float32"):
        raise Skip(f"the mask is {mask.dtype}")
    whole = (p.batch, p.heads, p.queries, p.keys)[4 - len(mask.dims) :]
    if len(mask.dims) > 4 or any(d not in (1, w) for d, w in zip(mask.dims, whole, strict=True)):
        raise Skip(f"the mask {mask.dims} does not cover all keys")


@kernel("Attention", Tier.SHAPED, dtypes="float32")
def attention(site: Site) -> Choice:
    """Fused attention: scores of a panel of queries, softmax, and product with v, in cache."""
    p = problem(site)
    _mask_dims(site, p)
    target, lanes = site.target, block_of(site.target)
    tiling = choose(target, p.queries, p.keys, p.e)
    rows, keys = tiling.rows, tiling.columns
    most = max(1, accumulators(target) // rows.size)
    per = min(6, most)
    values = split_columns(p.f, lanes, per, target.has_exact_tails)
    while per > 1 and len(values.widths if values.full else values.tail) > most:
        per -= 1
        values = split_columns(p.f, lanes, per, target.has_exact_tails)
    items = p.batch * p.heads
    size = items * p.queries * p.keys
    cost = target.time(
        2.0 * size * (p.e + p.f), 4.0 * items * (p.queries + p.keys) * (p.e + p.f),
        tiling.efficiency,
    ) + target.time(30.0 * size, 0, 0.5)  # fmt: skip
    groups = max(1, min(-(-parts_for(PARTS, cost) // items), rows.count // 4))
    kept = _Buffers(p, tiling, lanes)

    def emit(em: Emit) -> None:
        with em.b.loop(em.begin, em.end) as t:
            item = t // groups
            _head(em, p, tiling, values, kept, item // p.heads, item % p.heads,
                  part(t % groups, groups, rows.count))  # fmt: skip

    widest = max(values.size if values.full else 0, sum(values.tail))
    return Choice(
        cost=cost,
        reads=site.reads([None if v is None else PLAIN for v in site.inputs], PLAIN),
        writes=(PLAIN,),
        phases=one_phase(items * groups, emit),
        workspace=kept.bytes + buffer_bytes(site, rows.size, widest),
        detail=f"{items} heads, {p.queries} x {p.keys}, {tiling}, {keys.count} panels of keys",
    )


class _Buffers:
    """The workspace: transposed keys, scores of a panel, and the reciprocal sums of its rows."""

    def __init__(self, p: Problem, tiling: Tiling, lanes: int) -> None:
        self.keys = tiling.columns.padded * p.e
        wide = max(tiling.columns.padded, -(-p.keys // lanes) * lanes)
        self.pitch = spread_stride(wide, tiling.rows.size)
        self.scores = tiling.rows.size * self.pitch
        self.factors = -(-tiling.rows.size // 16) * 16

    @property
    def bytes(self) -> int:
        return 4 * (self.keys + self.scores + self.factors)

    def split(self, workspace: Ptr) -> tuple[Ptr, Ptr, Ptr, Ptr]:
        """Keys, scores, factors, and what is left."""
        keys = workspace.cast(F32)
        scores = (keys + self.keys).fixed()
        factors = (scores + self.scores).fixed()
        return keys, scores, factors, (factors + self.factors).fixed()


def _head(
    em: Emit, p: Problem, tiling: Tiling, values: Columns, kept: _Buffers, n: Position,
    h: Position, panels: tuple[Position, Position],
) -> None:  # fmt: skip
    """One head for the query panels [panels)."""
    b = em.b
    packed, scores, factors, rest = kept.split(em.workspace)
    q, k, v = (em.input(i).pointer for i in range(3))
    group = h // p.shared
    q, k, v = p.q.at(q, n, h), p.k.at(k, n, group), p.v.at(v, n, group)
    _pack_keys(b, k, p, tiling.columns, packed)
    ranks = len(em.site.out.dims)
    here = shifted(em, (n, h, 0, 0) if ranks == 4 else (n, 0, h * p.f))
    row_dims = (2, 3) if ranks == 4 else (1, 2)
    mask = em.ins[3] if em.site.has(3) else None
    if mask is not None:
        whole = (p.batch, p.heads, p.queries, p.keys)
        mask = spread(mask, whole, 4 - len(mask.spec.dims))
        mask = View(mask.at(n, h).fixed(), mask.spec)

    def panel(row: Position, height: int) -> None:
        a = (q + row * p.q.row).fixed()

        def key_panel(c: Position, column: Position, widths: tuple[int, ...], _: int) -> None:
            keys = (packed + c * (p.e * tiling.columns.size)).fixed()
            tile = product(b, Operands(a, p.q.row, keys, sum(widths), p.e), height, widths)
            for i, line in enumerate(tile):
                for at, x in offsets(line):
                    (scores + column + (i * kept.pitch + at)).store(x)

        each_column_panel(b, tiling.columns, 0, tiling.columns.count, key_panel)
        with b.loop(0, height) as i:
            line = (scores + i * kept.pitch).fixed()
            (factors + i).store(_soften(b, line, p, mask, row + i))

        def value_panel(_: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            lanes_on = b.first_lanes(valid, widths[-1]) if valid != widths[-1] else None
            at = Operands(scores, kept.pitch, (v + column).fixed(), p.v.row, p.keys, lanes_on)
            tile = product(b, at, height, widths)
            tile = [
                [x * (factors + i).splat(x.ty.lanes) for x in line] for i, line in enumerate(tile)
            ]
            finish_tile(here, tile, row, column, valid, rest, row_dims)

        each_column_panel(b, values, 0, values.count, value_panel)

    each_row_panel(b, tiling.rows, *panels, panel)


def _soften(b: Builder, line: Ptr, p: Problem, mask: View | None, row: Position) -> Val:
    """Turn a row of raw scores into exponentials, 0 for what would be denormal; gives the
    reciprocal of their sum, 0 where everything is masked."""
    lanes = block_of(b.target)

    def score(i: Position, size: int, on: Val | None, accs: list[Val]) -> list[Val]:
        value = (line + i).load(size)
        if p.softcap > 0:
            value = m.tanh(value * (1 / p.softcap)) * p.softcap
        if mask is not None:
            place = (0, 0, row, i)
            if mask.spec.dtype.kind == "b":
                value = mask.load(place, size, on).ne(0).select(value, NINF)
            else:
                value = value + mask.load(place, size, on)
        if p.causal:
            first = i.to("i32").splat(size) if isinstance(i, Val) else b.const(i, I32.x(size))
            steps = b.vector(list(range(size)), I32) if size > 1 else b.const(0, I32)
            value = (first + steps <= b.index(row).to("i32").splat(size)).select(value, NINF)
        value = keep(on, value, NINF)
        (line + i).store(value)
        return [value.max(accs[0])]

    top = fold_row(b, p.keys, lanes, [LARGEST], score)[0]
    top = top.eq(NINF).select(b.zero(F32), top)

    def exponential(i: Position, size: int, on: Val | None, accs: list[Val]) -> list[Val]:
        e = m.exp2_below(((line + i).load(size) - top.splat(size)) * m.LOG2E)
        (line + i).store(e)
        return [accs[0] + keep(on, e, 0.0)]

    total = fold_row(b, p.keys, lanes, [SUM], exponential)[0]
    return total.eq(0.0).select(b.zero(F32), b.const(1.0, F32) / total)


def _pack_keys(b: Builder, k: Ptr, p: Problem, columns: Columns, to: Ptr) -> None:
    """Keys [K][E], scaled, as [panel][E][keys of the panel]; padding stays what it is."""
    lanes = block_of(b.target)
    squares = p.e // lanes * lanes

    def panel(c: Position, first: Position, widths: tuple[int, ...], valid: int) -> None:
        size = sum(widths)
        count = size - widths[-1] + valid
        sink = (to + c * (p.e * columns.size)).fixed()
        source = (k + first * p.k.row).fixed()
        whole = count // lanes * lanes if squares else 0
        for j in range(0, whole, lanes):
            with b.loop(0, squares, lanes) as e:
                block = [
                    (source + e + (j + i) * p.k.row).load(lanes) * p.scale for i in range(lanes)
                ]
                line = (sink + e * size).fixed()
                for i, column in enumerate(transpose(block)):
                    (line + (i * size + j)).store(column)
        for j0, j1, e0 in ((0, whole, squares), (whole, count, 0)):
            if j0 == j1 or e0 == p.e:
                continue
            with b.loop(j0, j1) as j, b.loop(e0, p.e) as e:
                x = (source + j * p.k.row + e).load() * p.scale
                (sink + e * size + j).store(x)

    each_column_panel(b, columns, 0, columns.count, panel)
