"""Few rows times constant weights of few bits (`codes.py`). Reading the weights takes most of the
time, so each vector of words is decoded in registers, once, and all rows are multiplied by it.

The loops over panels, blocks and words are written once, for two kinds of arithmetic: float32, for
any machine, which is here; and whole numbers (`small_bytes.py`), for machines that multiply bytes.
Subclasses of `FewRows` have what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32, Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Packed, Phase, Site, Tier, kernel
from tinsmith.kernels.dot.codes import Blocks, blocks_of, pack
from tinsmith.kernels.dot.matmul import few_rows
from tinsmith.kernels.dot.panels import each_column_panel
from tinsmith.kernels.dot.skeleton import DISTANCE, buffer_bytes, finish_tile
from tinsmith.kernels.dot.tiles import Tiling, split_columns, split_rows
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.sharing import PARTS, parts_for
from tinsmith.kernels.walk import Position, load_row, share
from tinsmith.records import dataclass

DECODING = 3.0
"""The most instructions that decode one vector and multiply it by one row. Counted."""
WIDE = 3
"""The most vectors of columns of a tile: with 16 registers, six sums of one row leave room for
decoding. Measured on Zen 3: 0.81 to 0.98 cycles for 8 weights of 4 and 8 bits, 0.88 to 1.16 with 2
or 4; the command was not recorded."""
SUMS = 8
"""At least so many vectors of sums are added to in turn, so that no addition waits for the one
before: two pipes by four cycles. Estimated."""
STEPS = 8
"""Elements of k of one iteration. Estimated."""
AT_ONCE = 32
"""Blocks of up to so many elements of k are emitted without a loop. Estimated."""


Panel = Callable[[Ptr, Position, tuple[int, ...], Any], None]
"""panel(words, first column, widths, valid): as a `PanelBody`; the packed panel lies at `words`."""


def choice_of(
    site: Site, blocks: Blocks, tiling: Tiling, busy: float, panel: Callable[[Emit], Panel],
    before: tuple[Phase, ...] = (), workspace: int = 0, scratch: int = 0,
) -> Choice:  # fmt: skip
    """The choice for a SmallMatMul whose weights are cut into `blocks` along k and the panels of
    `tiling`, groups of which threads share. `busy`: seconds of its arithmetic; `panel(em)` is the
    body of the loop over panels, in a phase after those of `before`; `workspace`: bytes before the
    buffer of `finish_tile`."""
    w, columns = site.const(1), tiling.columns
    scale, zero = (site.const(i) if site.has(i) else None for i in (2, 3))
    nbytes = blocks.code.word.nbytes * blocks.height * columns.padded
    cost = max(busy, nbytes / site.target.weights_rate(site.threads)) + 1e-7
    groups = parts_for(min(PARTS, columns.count), cost)

    def emit(em: Emit) -> None:
        weights, body = em.packed[0].cast(blocks.code.word), panel(em)

        def one(c: Position, column: Position, widths: tuple[int, ...], valid: int) -> None:
            words = (weights + c * (blocks.height * columns.size)).fixed()
            body(words, column, widths, valid)

        with em.b.loop(em.begin, em.end) as t:
            each_column_panel(em.b, columns, *share(t, groups, columns.count), one)

    block = site.attr("block_size")
    told = f", blocks of {block}" if block else ""
    return Choice(
        cost=cost, reads=site.reads([PLAIN, *(None for _ in site.inputs[1:])], PLAIN),
        writes=(PLAIN,), phases=(*before, Phase(groups, emit)),
        packed=(Packed("small", pack, (w, scale, zero, blocks, columns), nbytes),),
        workspace=workspace + buffer_bytes(site, tiling.rows.size, columns.size),
        scratch=scratch, detail=f"{w.dtype.name}{told}, {tiling}",
    )  # fmt: skip


def rows_of(site: Site) -> int:
    """The rows of a SmallMatMul. Raises Skip unless they are few (`matmul.few_rows`)."""
    n = site.const(1).shape[1]
    return few_rows(site, n, "matmul_small decodes a panel for all of them")


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def gemv_small(site: Site) -> Choice:
    """At most 4 rows times weights of 4 to 16 bits, decoded in registers as they are streamed."""
    m = rows_of(site)
    return streamed(site, floats(blocks_of(site), m), WIDE, (DECODING + m) / 2)


def streamed(site: Site, few: FewRows, wide: int, instructions: float) -> Choice:
    """The choice for a SmallMatMul of few rows in the arithmetic `few`, with panels of up to
    `wide` vectors. `instructions`: the time of a vector of weights, all rows, in multiply-adds."""
    target = site.target
    k, n = site.const(1).shape
    columns = split_columns(n, block_of(target), min(wide, -(-n // block_of(target))), False)
    tiling = Tiling(split_rows(few.rows, few.rows), columns, 1.0, 1.0)
    busy = target.time(instructions * 2.0 * k * columns.padded, 0)
    before = (Phase(few.rows, few.prepare_rows),) if few.prepared else ()
    return choice_of(site, few.blocks, tiling, busy, few.panel, before, scratch=few.scratch)


@dataclass(frozen=True)
class Tile:
    """Where one register tile, a panel by all rows, reads: A at `x` as the input has it and at `a`
    as it was prepared, `facts` of blocks of A (`FewRows.prepare`), and the panel at `words`, whose
    vectors have `widths` columns."""

    x: Ptr
    a: Ptr
    facts: Ptr
    words: Ptr
    widths: tuple[int, ...]

    @property
    def places(self) -> list[Val]:
        """The addresses of `a`, `facts` and `words`, to be carried by a loop."""
        return [self.a.value, self.facts.value, self.words.value]

    def at(self, places: Sequence[Val]) -> Tile:
        """The same tile at other addresses, in the order of the property `places`."""
        a, facts, words = places
        return replace(self, a=self.a.of(a), facts=self.facts.of(facts), words=self.words.of(words))

    def moved(self, depth: int, rows: int, facts: int = 0) -> Tile:
        """The tile with `a` moved by `depth` elements, `words` by `rows` rows of words, and
        `facts` by so many facts; `x` stays."""
        words = self.words + rows * sum(self.widths)
        return replace(self, a=self.a + depth, facts=self.facts + facts, words=words)


@dataclass(frozen=True)
class FewRows:
    """Products of `rows` rows in one kind of arithmetic, which subclasses define.

    stride    how many elements, of type `elem`, lie from one prepared row of A to the next
    each      how many "facts" are kept of each block of a row: numbers of 32 bits, such as its sum
    prepared  whether scratch holds prepared rows, [row][element], and facts, [row][block][fact];
              else rows are read from the input
    total     the element type of sums
    parts     how many sums a tile has of each row and vector; it lists them [row][part][vector]
    """

    blocks: Blocks
    rows: int
    stride: int
    each: int
    prepared: bool = True
    elem: Ty = F32
    total: Ty = F32
    parts: int = 1

    def prepare(self, em: Emit, x: Ptr, to: Ptr, block: tuple[Position, int], facts: Ptr) -> None:
        """Emit code that writes one block of a row of A, which lies at `x`, to `to`, and its facts
        to `facts`; `block` is (its first k, its size)."""
        raise NotImplementedError

    def add(self, tile: Tile, words: list[Val], row: int, sums: list[list[Val]]) -> None:
        """Emit products and add them to sums in place. `words` are the vectors of row number `row`
        of words, from `tile.words` on; `sums` are several lists of a tile's sums ("chains"), to
        which consecutive k are added in turn."""
        raise NotImplementedError

    def scaled(
        self, tile: Tile, size: int, sums: Sequence[Val], totals: Sequence[Val]
    ) -> list[Val]:
        """Emit and return `totals`, a flat list [row][vector] of float32, plus the scaled `sums` of
        a block of `size` elements; `tile.words` is at the block's scales."""
        raise NotImplementedError

    @property
    def facts_at(self) -> int:
        """Elements of scratch, of type `elem`, before the facts."""
        return -(-self.rows * self.stride // LINE) * LINE

    @property
    def scratch(self) -> int:
        """Bytes of scratch."""
        facts = self.rows * self.blocks.count * self.each
        return self.facts_at * self.elem.nbytes + 4 * facts if self.prepared else 0

    def facts(self, em: Emit) -> Ptr:
        """A pointer to the facts of the first row."""
        return (em.scratch.cast(self.elem) + self.facts_at).cast(F32)

    def prepare_rows(self, em: Emit) -> None:
        """Emit the phase that writes the rows of A and the facts of their blocks to scratch; a tile
        is one row."""
        blocks, each = self.blocks, self.each
        with em.b.loop(em.begin, em.end) as row:
            x = (em.input(0).pointer + row * blocks.depth).fixed()
            to = (em.scratch.cast(self.elem) + row * self.stride).fixed()
            facts = (self.facts(em) + row * (blocks.count * each)).fixed()
            if blocks.full:
                with em.b.loop(0, blocks.full) as i:
                    at = i * blocks.size
                    self.prepare(em, x + at, to + at, (at, blocks.size), facts + i * each)
            if blocks.rest:
                at = blocks.full * blocks.size
                self.prepare(em, x + at, to + at, (at, blocks.rest), facts + blocks.full * each)

    def panel(self, em: Emit) -> Panel:
        """The body of the loop over panels of columns (see `choice_of`)."""
        x = a = facts = em.input(0).pointer
        if self.prepared:
            a, facts = em.scratch.cast(self.elem), self.facts(em)
        buffer, lead = em.workspace.cast(F32), len(em.site.out.dims) - 1

        def body(words: Ptr, column: Position, widths: tuple[int, ...], valid: int) -> None:
            found = _summed(em.b, self, Tile(x, a, facts, words, widths))
            n = len(widths)
            rows = [found[i * n : (i + 1) * n] for i in range(self.rows)]
            finish_tile(em, rows, 0, column, valid, buffer, (0, lead))

        return body


def _summed(b: Builder, few: FewRows, tile: Tile) -> list[Val]:
    """Emit all products of a tile, and return their scaled sums, a flat list [row][vector]."""
    blocks = few.blocks
    totals = [b.zero(F32.x(w)) for _ in range(few.rows) for w in tile.widths]
    step = (blocks.size, blocks.rows(blocks.size), few.each)
    if blocks.full > 1:
        with b.loop(0, blocks.full, 1, [*tile.places, *totals]) as loop:
            here = tile.at(loop.vars[:3])
            found = _block(b, few, here, blocks.size, loop.vars[3:])
            loop.next([*here.moved(*step).places, *found])
        tile, totals = tile.at(loop.out[:3]), loop.out[3:]
    elif blocks.full:
        totals = _block(b, few, tile, blocks.size, totals)
        tile = tile.moved(*step)
    return _block(b, few, tile, blocks.rest, totals) if blocks.rest else totals


def _block(b: Builder, few: FewRows, tile: Tile, size: int, totals: Sequence[Val]) -> list[Val]:
    """Emit the products of one block of `size` elements of k, and return `totals` plus these."""
    types = [few.total.x(w) for _ in range(few.rows * few.parts) for w in tile.widths]
    count, group = len(types), few.blocks.code.group
    sums = [b.zero(ty) for _ in range(max(1, SUMS // count)) for ty in types]
    words, each = few.blocks.words(size), max(1, STEPS // group)
    whole = 0 if words * group <= AT_ONCE else words // each * each
    if whole:
        with b.loop(0, whole, each, [*tile.places, *sums]) as loop:
            here = tile.at(loop.vars[:3])
            found = _words(few, here, each, loop.vars[3:], count)
            loop.next([*here.moved(each * group, each).places, *found])
        tile, sums = tile.at(loop.out[:3]), loop.out[3:]
    if words > whole:
        sums = _words(few, tile, words - whole, sums, count)
        tile = tile.moved((words - whole) * group, words - whole)
    while len(sums) > count:
        odd = sums[: len(sums) % (2 * count)]
        rest = sums[len(odd) :]
        half = len(rest) // 2
        sums = [*odd, *(x + y for x, y in zip(rest[:half], rest[half:], strict=True))]
    return few.scaled(tile, size, sums, totals)


def _words(few: FewRows, tile: Tile, rows: int, sums: Sequence[Val], count: int) -> list[Val]:
    """Emit the products by the next `rows` rows of words, and return `sums` with these added. The
    list holds chains of `count` sums each; consecutive k are added to the chains in turn."""
    size = sum(tile.widths)
    line = LINE * 4 // few.blocks.code.word.nbytes
    for i in range(-(-rows * size // line)):
        (tile.words + (DISTANCE * line // LINE + i * line)).prefetch(locality=3)
    chains = [list(sums[i : i + count]) for i in range(0, len(sums), count)]
    for row in range(rows):
        few.add(tile, load_row(tile.words + row * size, tile.widths), row, chains)
    return [s for chain in chains for s in chain]


# ---- float32


def floats(blocks: Blocks, rows: int) -> FewRows:
    """The arithmetic in float32, for `rows` rows of A. Rows of A are prepared if words hold several
    weights or if `blocks.shifted`, else read from the input. With `blocks.shifted`, each block has
    one fact, the sum of its elements; else it has none."""
    copied = blocks.shifted or blocks.code.group > 1
    stride = -(-blocks.padded // LINE) * LINE if copied else blocks.depth
    return _Floats(blocks, rows, stride, int(blocks.shifted), copied)


class _Floats(FewRows):
    """The arithmetic in float32 (see `floats`)."""

    def prepare(self, em: Emit, x: Ptr, to: Ptr, block: tuple[Position, int], facts: Ptr) -> None:
        """Divide each element by the power of its place in a word (`Code.powers`), fill the last
        word up with zeros, and store the elements' sum if need be."""
        b, code, size = em.b, self.blocks.code, block[1]
        lanes = max(code.group, block_of(em.target))
        small = [1 / p for p in code.powers] * (lanes // code.group)
        whole = size // lanes * lanes
        total = b.zero(F32)
        if whole:
            factor = b.vector(small, F32)
            with b.loop(0, whole, lanes, [b.zero(F32.x(lanes))]) as loop:
                found = (x + loop.index).load(lanes)
                (to + loop.index).store(found * factor)
                loop.next([loop.vars[0] + found])
            total = loop.out[0].reduce("add")
        for at in range(whole, size):
            found = (x + at).load()
            (to + at).store(found * small[at % code.group])
            total = total + found
        for at in range(size, self.blocks.words(size) * code.group):
            (to + at).store(b.zero(F32))
        if self.each:
            facts.store(total)

    def add(self, tile: Tile, words: list[Val], row: int, sums: list[list[Val]]) -> None:
        code, n = self.blocks.code, len(words)
        for place in range(code.group):
            k = row * code.group + place
            chain = sums[k % len(sums)]
            weights = [code.raw(word, place) for word in words]
            for i in range(self.rows):
                x = (tile.a + (i * self.stride + k)).load()
                wide = {w: x.splat(w) for w in dict.fromkeys(tile.widths)}
                for j, w in enumerate(weights):
                    chain[i * n + j] = w.fma(wide[w.ty.lanes], chain[i * n + j])

    def scaled(
        self, tile: Tile, size: int, sums: Sequence[Val], totals: Sequence[Val]
    ) -> list[Val]:
        """`totals` + scale * (sums - zero point * sum of A's elements) for one block."""
        if self.blocks.code.is_float:
            return [t + s for t, s in zip(totals, sums, strict=True)]
        n, scales = len(tile.widths), load_row(tile.words.cast(F32), tile.widths)
        found = []
        for i in range(self.rows):
            mine = list(sums[i * n : (i + 1) * n])
            if self.each:
                total = (tile.facts + i * self.blocks.count).load()
                mine = less_zeros(self.blocks, tile, mine, total)
            found += [s.fma(scales[j], totals[i * n + j]) for j, s in enumerate(mine)]
        return found


def less_zeros(blocks: Blocks, tile: Tile, sums: Sequence[Val], total: Val) -> list[Val]:
    """The `sums` of one row's products by the stored numbers of a block, less zero point *
    `total`, the sum of the row's elements in the block; `tile.words` is at the block's scales."""
    less = -total
    if not blocks.zeros:
        less = less * blocks.zero
        return [less.splat(s.ty.lanes) + s for s in sums]
    zeros = load_row(tile.words.cast(F32) + sum(tile.widths), tile.widths)
    return [z.fma(less.splat(s.ty.lanes), s) for z, s in zip(zeros, sums, strict=True)]
