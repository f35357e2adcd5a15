"""Products with constant weights of few bits (`codes`), which are never expanded in memory.

A few rows are bound by the bytes of the weights: each vector of words is decoded in registers, and
meets all rows. Many rows are bound by arithmetic: a panel of columns is decoded into memory of the
thread's own, and multiplied as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Packed,
    Phase,
    Site,
    Skip,
    Tier,
    kernel,
)
from tinsmith.kernels.dot.codes import Blocks, blocks_of, pack, vectors
from tinsmith.kernels.dot.matmul import FEW_ROWS, flat_rows
from tinsmith.kernels.dot.panels import Grid, each_column_panel, each_row_panel, part
from tinsmith.kernels.dot.skeleton import DISTANCE, Operands, buffer_bytes, finish_tile, product
from tinsmith.kernels.dot.tiles import Tiling, choose, split_columns, split_rows
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical

DECODING = 3.0
"""Instructions that decode one vector and multiply it by one row, at most. Counted."""
WIDE = 3
"""Vectors of a tile, at most: with 16 registers, six sums of one row leave room for decoding.
Measured on Zen 3: 0.81 to 0.98 cycles for 8 weights of 4 and 8 bits, 0.88 to 1.16 with 2 or 4; the
command was not recorded."""
SUMS = 8
"""Vectors of sums that are added to in turn, so that no multiply-add waits for the one before:
two pipes by four cycles. Estimated."""
STEPS = 8
"""Elements of k of one iteration. Estimated."""
AT_ONCE = 32
"""Elements of k of the longest block that is written out without a loop. Estimated."""


@dataclass(frozen=True)
class Plan:
    """How a product is cut, and where the `rows` rows of A lie, `stride` elements apart: with
    `copied` in scratch, as `_prepare` writes them, otherwise in the input. In scratch the sums of
    the elements of each block follow: [row][block], where weights are `shifted`."""

    blocks: Blocks
    rows: int
    tiling: Tiling
    cells: Grid
    copied: bool

    @property
    def stride(self) -> int:
        return -(-self.blocks.padded // LINE) * LINE if self.copied else self.blocks.depth

    @property
    def scratch(self) -> int:
        sums = self.blocks.count if self.blocks.shifted else 0
        return 4 * self.rows * (self.stride + sums) if self.copied else 0


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def gemv_small(site: Site) -> Choice:
    """At most 4 rows times small weights, which are decoded in registers as they are streamed."""
    blocks = blocks_of(site)
    w = site.const(1)
    k, n = w.shape
    m = flat_rows(site, n)
    if isinstance(m, Size):
        raise Skip("the number of rows is known only in the call")
    if m > FEW_ROWS:
        raise Skip(f"{m} rows: matmul_small decodes a panel for all of them")
    target = site.target
    widest = min(WIDE, -(-n // block_of(target)))
    columns = split_columns(n, block_of(target), widest, False)
    tiling = Tiling(split_rows(m, m), columns, 1.0, 1.0)
    word = blocks.code.word.nbytes
    nbytes = word * blocks.height * columns.padded
    busy = target.time((DECODING + m) * 2.0 * k * columns.padded / 2, 0)
    cost = max(busy, nbytes / target.weights_rate(site.threads)) + 1e-7
    cells = Grid(1, parts_for(min(PARTS, columns.count), cost))
    code = blocks.code
    copied = blocks.shifted or code.group > 1
    plan = Plan(blocks, m, tiling, cells, copied)
    phases = (Phase(cells.count, lambda em: _stream(em, plan)),)
    if copied:
        phases = (Phase(m, lambda em: _prepare(em, plan)), *phases)
    return _choice(site, plan, cost, nbytes, phases, 0)


def _choice(
    site: Site, plan: Plan, cost: float, nbytes: int, phases: tuple[Phase, ...], workspace: int
) -> Choice:
    w = site.const(1)
    scale = site.const(2) if site.has(2) else None
    zero = site.const(3) if site.has(3) else None
    args = (w, scale, zero, plan.blocks, plan.tiling.columns)
    tiling, block = plan.tiling, site.attr("block_size")
    told = f", blocks of {block}" if block else ""
    return Choice(
        cost=cost,
        reads=site.reads([PLAIN, *(None for _ in site.inputs[1:])], PLAIN),
        writes=(PLAIN,),
        phases=phases,
        packed=(Packed("small", pack, args, nbytes),),
        workspace=workspace + buffer_bytes(site, tiling.rows.size, tiling.columns.size),
        scratch=plan.scratch,
        detail=f"{w.dtype.name}{told}, {tiling}",
    )


def _prepare(em: Emit, plan: Plan) -> None:
    """Emit the phase that copies A to scratch, each element divided by the power of its place in a
    word (`Code.powers`), and sums its elements for each block; a tile is one row."""
    b, blocks = em.b, plan.blocks
    with b.loop(em.begin, em.end) as row:
        source = (em.input(0).pointer + row * blocks.depth).fixed()
        to = (em.scratch.cast(F32) + row * plan.stride).fixed()
        sums = _sums_at(em, plan, row)
        with b.loop(0, blocks.full) as i:
            at = i * blocks.size
            _prepare_block(em, blocks, source + at, to + at, blocks.size, sums + i)
        if blocks.rest:
            at = blocks.full * blocks.size
            _prepare_block(em, blocks, source + at, to + at, blocks.rest, sums + blocks.full)


def _sums_at(em: Emit, plan: Plan, row: Position) -> Ptr:
    """Where the sums of A's elements in row `row` lie, one for each block."""
    first = plan.rows * plan.stride
    return (em.scratch.cast(F32) + first + row * plan.blocks.count).fixed()


def _prepare_block(em: Emit, blocks: Blocks, source: Ptr, to: Ptr, size: int, sums: Ptr) -> None:
    """`_prepare` for the `size` elements of one block of one row; their sum goes to `sums`."""
    b, code = em.b, blocks.code
    lanes = max(code.group, block_of(em.target))
    small = [1 / p for p in code.powers] * (lanes // code.group)
    whole = size // lanes * lanes
    total = b.zero(F32)
    if whole:
        factor = b.vector(small, F32)
        with b.loop(0, whole, lanes, [b.zero(F32.x(lanes))]) as loop:
            x = (source + loop.index).load(lanes)
            (to + loop.index).store(x * factor)
            loop.next([loop.vars[0] + x])
        total = loop.out[0].reduce("add")
    for at in range(whole, size):
        x = (source + at).load()
        (to + at).store(x * small[at % code.group])
        total = total + x
    for at in range(size, blocks.words(size) * code.group):
        (to + at).store(b.zero(F32))
    if blocks.shifted:
        sums.store(total)


@dataclass(frozen=True)
class Tile:
    """What the tile of one panel reads: `rows` of the left operand, `a_row` apart, the panel at
    `words`, and the sums of each block, `s_row` apart from row to row."""

    a: Ptr
    a_row: int
    words: Ptr
    sums: Ptr
    s_row: int
    rows: int
    widths: tuple[int, ...]

    @property
    def places(self) -> list[Val]:
        return [self.a.value, self.words.value, self.sums.value]

    def at(self, places: Sequence[Val]) -> Tile:
        a, words, sums = places
        return replace(self, a=self.a.of(a), words=self.words.of(words), sums=self.sums.of(sums))

    def moved(self, depth: int, rows: int, sums: int = 0) -> Tile:
        """The same tile `depth` elements of k, `rows` rows of words and `sums` blocks further."""
        words = self.words + rows * sum(self.widths)
        return replace(self, a=self.a + depth, words=words, sums=self.sums + sums)


def _stream(em: Emit, plan: Plan) -> None:
    """Emit the kernel; its tiles are groups of panels, of which each is decoded in registers."""
    b, blocks, columns = em.b, plan.blocks, plan.tiling.columns
    a = em.scratch.cast(F32) if plan.copied else em.input(0).pointer
    sums = _sums_at(em, plan, 0) if plan.copied else a
    weights, buffer = em.packed[0].cast(blocks.code.word), em.workspace.cast(F32)
    lead = len(em.site.out.dims) - 1

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        words = (weights + c * (blocks.height * columns.size)).fixed()
        tile = Tile(a, plan.stride, words, sums, blocks.count, plan.rows, widths)
        found = _summed(b, blocks, tile)
        n = len(widths)
        rows = [found[i * n : (i + 1) * n] for i in range(plan.rows)]
        finish_tile(em, rows, 0, column, valid, buffer, (0, lead))

    with b.loop(em.begin, em.end) as t:
        each_column_panel(b, columns, *part(t, plan.cells.columns, columns.count), panel)


def _summed(b: Builder, blocks: Blocks, tile: Tile) -> list[Val]:
    """Emit all products of a tile, and give their scaled sums: [row][vector] in one flat list."""
    totals = [b.zero(F32.x(w)) for _ in range(tile.rows) for w in tile.widths]
    if blocks.full > 1:
        with b.loop(0, blocks.full, 1, [*tile.places, *totals]) as loop:
            here = tile.at(loop.vars[:3])
            found = _block(b, blocks, here, blocks.size, loop.vars[3:])
            there = here.moved(blocks.size, blocks.rows(blocks.size), 1)
            loop.next([*there.places, *found])
        tile, totals = tile.at(loop.out[:3]), loop.out[3:]
    elif blocks.full:
        totals = _block(b, blocks, tile, blocks.size, totals)
        tile = tile.moved(blocks.size, blocks.rows(blocks.size), 1)
    return _block(b, blocks, tile, blocks.rest, totals) if blocks.rest else totals


def _block(b: Builder, blocks: Blocks, tile: Tile, size: int, totals: Sequence[Val]) -> list[Val]:
    """Emit the products of one block of `size` elements of k; gives `totals` + scale * sums."""
    count = len(totals)
    chains = max(1, SUMS // count)
    sums = [b.zero(t.ty) for _ in range(chains) for t in totals]
    words, each = blocks.words(size), max(1, STEPS // blocks.code.group)
    whole = words // each * each
    if words * blocks.code.group <= AT_ONCE:
        whole = 0
    if whole:
        with b.loop(0, whole, each, [*tile.places, *sums]) as loop:
            here = tile.at(loop.vars[:3])
            found = _words(blocks, here, each, chains, loop.vars[3:])
            loop.next([*here.moved(each * blocks.code.group, each).places, *found])
        tile, sums = tile.at(loop.out[:3]), loop.out[3:]
    if words > whole:
        sums = _words(blocks, tile, words - whole, chains, sums)
        tile = tile.moved((words - whole) * blocks.code.group, words - whole)
    while len(sums) > count:
        odd = sums[: len(sums) % (2 * count)]
        rest = sums[len(odd) :]
        half = len(rest) // 2
        sums = [*odd, *(x + y for x, y in zip(rest[:half], rest[half:], strict=True))]
    return _scaled(blocks, tile, sums, totals)


def _words(blocks: Blocks, tile: Tile, rows: int, chains: int, sums: Sequence[Val]) -> list[Val]:
    """Emit the products by the next `rows` rows of words, and give `sums` with these added. Sums
    are [chain][row][vector] in one list: consecutive k are added to the chains in turn."""
    code, size, sums = blocks.code, sum(tile.widths), list(sums)
    n = len(tile.widths)
    line = LINE * code.number
    for i in range(-(-rows * size // line)):
        (tile.words + (DISTANCE * code.number + i * line)).prefetch(locality=3)
    for row in range(rows):
        words = vectors(tile.words + row * size, tile.widths)
        for place in range(code.group):
            k = row * code.group + place
            chain = k % chains * tile.rows * n
            weights = [code.raw(word, place) for word in words]
            for i in range(tile.rows):
                x = (tile.a + (i * tile.a_row + k)).load()
                wide = {w: x.splat(w) for w in dict.fromkeys(tile.widths)}
                for j, w in enumerate(weights):
                    s = chain + i * n + j
                    sums[s] = w.fma(wide[w.ty.lanes], sums[s])
    return sums


def _scaled(blocks: Blocks, tile: Tile, sums: Sequence[Val], totals: Sequence[Val]) -> list[Val]:
    """`totals` + scale * (sums - zero point * sum of A's elements) for one block. `tile.words` is
    where its scales begin, which its zero points follow."""
    if blocks.code.is_float:
        return [t + s for t, s in zip(totals, sums, strict=True)]
    n, size = len(tile.widths), sum(tile.widths)
    line = tile.words.cast(F32)
    scales = vectors(line, tile.widths)
    zeros = vectors(line + size, tile.widths) if blocks.zeros else None
    found = []
    for i in range(tile.rows):
        mine = list(sums[i * n : (i + 1) * n])
        if blocks.shifted:
            x = (tile.sums + i * tile.s_row).load()
            x = -x
            mine = [
                (x * blocks.zero).splat(s.ty.lanes) + s
                if zeros is None
                else zeros[j].fma(x.splat(s.ty.lanes), s)
                for j, s in enumerate(mine)
            ]
        found += [s.fma(scales[j], totals[i * n + j]) for j, s in enumerate(mine)]
    return found


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def matmul_small(site: Site) -> Choice:
    """Rows times small weights, of which a panel at a time becomes float32 in cache."""
    blocks = blocks_of(site)
    k, n = site.const(1).shape
    m = flat_rows(site, n)
    if not isinstance(m, Size) and m <= FEW_ROWS:
        raise Skip(f"{m} rows: gemv_small decodes in registers")
    target = site.target
    tiling = choose(target, m, n, k)
    columns, rows = tiling.columns, typical(m)
    nbytes = blocks.code.word.nbytes * blocks.height * columns.padded
    decoding = target.time(DECODING * 2.0 * k * columns.padded, 4.0 * k * columns.size)
    busy = target.time(2.0 * rows * n * k, 4.0 * rows * (k + n), tiling.efficiency)
    cost = max(busy + decoding, nbytes / target.weights_rate(site.threads)) + 1e-7
    cells = Grid(1, parts_for(min(PARTS, columns.count), cost))
    plan = Plan(blocks, m, tiling, cells, False)
    phases = (Phase(cells.count, lambda em: _multiply(em, plan)),)
    return _choice(site, plan, cost, nbytes, phases, _expanded(plan))


def _expanded(plan: Plan) -> int:
    """Bytes of a panel as float32."""
    return 4 * plan.blocks.padded * plan.tiling.columns.size


def _multiply(em: Emit, plan: Plan) -> None:
    """Emit the kernel; its tiles are groups of panels, of which each is decoded and multiplied by
    all rows."""
    b, blocks, columns = em.b, plan.blocks, plan.tiling.columns
    weights, real = em.packed[0].cast(blocks.code.word), em.workspace.cast(F32)
    buffer = (real + _expanded(plan) // 4).fixed()
    lead = len(em.site.out.dims) - 1

    def panel(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
        size = sum(widths)
        _expand(b, blocks, (weights + c * (blocks.height * columns.size)).fixed(), real, widths)

        def tile(row: Position, height: int) -> None:
            line = (em.input(0).pointer + row * blocks.depth).fixed()
            at = Operands(line, blocks.depth, real, size, blocks.depth)
            sums = product(b, at, height, widths, plan.tiling.accumulators)
            finish_tile(em, sums, row, column, valid, buffer, (0, lead))

        rows = plan.tiling.rows
        each_row_panel(b, rows, 0, rows.count, tile)

    with b.loop(em.begin, em.end) as t:
        each_column_panel(b, columns, *part(t, plan.cells.columns, columns.count), panel)


def _expand(b: Builder, blocks: Blocks, words: Ptr, to: Ptr, widths: tuple[int, ...]) -> None:
    """Emit code that decodes a panel of packed weights, `words`, and writes it to `to` as float32,
    [k][column]."""
    size, code = sum(widths), blocks.code

    def block(words: Ptr, to: Ptr, depth: int) -> None:
        count = blocks.words(depth)
        line = (words + count * size).cast(F32)
        scales = None if code.is_float else vectors(line, widths)
        zeros = vectors(line + size, widths) if blocks.zeros else None
        with b.loop(0, count) as i:
            source, sink = words + i * size, (to + i * (code.group * size)).fixed()
            found = vectors(source, widths)
            for place in range(code.group):
                offset = place * size
                for j, word in enumerate(found):
                    x = code.raw(word, place)
                    if scales is not None:
                        zero = zeros[j] if zeros else None
                        x = _weight(blocks, x, code.powers[place], scales[j], zero)
                    (sink + offset).store(x)
                    offset += x.ty.lanes

    if blocks.full:
        with b.loop(0, blocks.full) as i:
            source = (words + i * (blocks.rows(blocks.size) * size)).fixed()
            block(source, (to + i * (blocks.size * size)).fixed(), blocks.size)
    if blocks.rest:
        source = words + blocks.full * blocks.rows(blocks.size) * size
        block(source, to + blocks.full * blocks.size * size, blocks.rest)


def _weight(blocks: Blocks, raw: Val, power: float, scale: Val, zero: Val | None) -> Val:
    """(raw / power - zero point) * scale: weights from raw ones, rounded once, by the product."""
    x = raw if power == 1 else raw * (1 / power)
    if zero is not None:
        x = x - zero
    elif blocks.zero:
        x = x - blocks.zero
    return x * scale
