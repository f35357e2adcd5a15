"""Exact products of bytes by instructions whose sums of pairs saturate.

The row "pmaddubsw" of the table of products adds two products of an unsigned by a signed byte in 16
bits: 255 (w0 + w1) must lie between -32768 and 32767, so |w0 + w1| <= MOST (weights of different
signs always fit). Weights are split into w = fitting + rest: in each pair that does not fit, the
larger weight is made smaller. The rest is sparse: of weights with a normal distribution 2 % have
one at 256 inputs, 1 % at 1,024. Its products are summed beforehand (`sum_rest`), for some vectors
of rows of A at a time, which are transposed for that:

    sums[row][column] = sum over the column's entries (k, e) of a[row][k] * e

The tiles of products by the fitting weights add them (`added`). Of a convolution, the rows of A are
the windows of its pixels, and the columns its output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.products import PRODUCTS, U8, Product, multiply_pairs
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import I32
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Emit, Packed, Phase, Skip
from tinsmith.kernels.dot.panels import Grid, each_row_panel, first_row
from tinsmith.kernels.dot.skeleton import Tile
from tinsmith.kernels.dot.tiles import Columns, Rows, Tiling
from tinsmith.kernels.dot.zeros import pack_lanes
from tinsmith.kernels.transpose import transpose
from tinsmith.kernels.walk import Position
from tinsmith.records import dataclass
from tinsmith.sizes import Number, smallest

MOST = 128  # 255 * 128 < 32768
VECTORS = 7  # of rows: in registers in `sum_rest`, at most
REST, ENTRY = 20.0, 0.04
"""Operations of float32 in the time of one sum of the rest: REST, and ENTRY for each element of a
row, of which some have entries. Fitted to eight 1x1 layers of 128 to 2,048 inputs, Zen 3, one
thread, by profiles of single layers (docs/kernels.md): costs over those of `conv_integer` are
within 8 % of what was measured."""
LONGER = 1.4
"""Time of the rest of a product, over that of a convolution. Fitted to eight products of 96 to
1,536 inputs, weights with a normal distribution, Zen 3, one thread, least times of 25 turns."""
DENSE = 0.03
"""Weights with a larger share of entries in the rest are not split: the rest takes too long."""


def saturating_row(target: Target) -> Product:
    """The row of the table by which split weights are multiplied. Raises Skip if the target has no
    such products, or better ones."""
    row = PRODUCTS["pmaddubsw"]
    if not row.needs(target) or target.byte_products:
        raise Skip("the machine has no such products, or better ones")
    return row


# ---- weights


def _pairs(w: Array) -> tuple[Array, Array, Array, Array]:
    """(first, second, sum, fits) of the pairs of weights w [outputs, inputs, *taps] of int8, each
    [outputs, pair of inputs, tap]: both weights, their sum, and whether it fits."""
    flat = w.reshape(*w.shape[:2], -1)
    first, second = flat[:, 0::2], flat[:, 1::2]
    both = np.add(first, second, dtype=np.int16)
    return first, second, both, np.abs(both) <= MOST  # of different signs they always fit


def is_sparse(w: Array) -> bool:
    """Whether few enough weights have a rest (`Packed.fits`, which is asked about the array of zero
    points, too, which has one axis and always fits)."""
    return w.ndim < 2 or bool(np.count_nonzero(~_pairs(w)[-1]) <= DENSE * w.size)


def split_weights(w: Array) -> tuple[tuple[Array, Array, Array], Array]:
    """(at, rest) for weights w [outputs, inputs, *taps] of int8: `at` are the places (output,
    input, tap) of the weights that have a rest, in the order of memory; `rest` is what each of
    these, the larger weight of its pair, is above what fits."""
    first, second, both, fits = _pairs(w)
    axes = sorted(range(3), key=lambda axis: -fits.strides[axis])
    in_memory = fits.transpose(axes)  # numpy looks through an array in its own order much faster
    found = np.unravel_index(np.flatnonzero(~in_memory.reshape(-1)), in_memory.shape)
    at = output, pair, tap = tuple([found[axes.index(i)] for i in range(3)])
    larger = np.abs(second[at].astype(np.int16)) > np.abs(first[at].astype(np.int16))
    return (output, 2 * pair + larger, tap), both[at] - np.sign(both[at]) * MOST


def fitting(w: Array) -> Array:
    """The fitting weights of w, in its order."""
    at, rest = split_weights(w)
    found = w.reshape(*w.shape[:2], -1).copy(order="K")
    found[at] -= rest.astype(np.int8)
    return found.reshape(w.shape)


def pack_rest(w: Array, columns: int) -> Array:
    """The entries of the rest of w, as int32: for each of `columns` columns, padding included, the
    number of its first entry, and last the number of all; then k and e of each entry."""
    (output, channel, tap), rest = split_weights(w)
    output = output.astype(np.min_scalar_type(columns))  # two bytes are sorted much faster
    order = np.argsort(output, kind="stable")
    first = np.searchsorted(output[order], np.arange(columns + 1))
    entries = np.stack([tap * w.shape[1] + channel, rest], axis=1)[order]
    return np.concatenate([first, entries.reshape(-1)]).astype(np.int32)


def pack_fitting_lanes(w: Array, zero: Array | None, name: str, columns: Columns) -> Array:
    """`pack_lanes` of the fitting weights of a matrix w (k, n)."""
    return pack_lanes(fitting(w.T).T, zero, name, columns)


def pack_matrix_rest(w: Array, columns: int) -> Array:
    """`pack_rest` of a matrix w (k, n)."""
    return pack_rest(w.T, columns)


def is_sparse_matrix(w: Array) -> bool:
    """`is_sparse` for a matrix w (k, n)."""
    return is_sparse(w.T)


def split_matrix(lanes: Packed) -> tuple[Packed, ...]:
    """What a product by split weights packs instead of `lanes`, made by `pack_lanes`."""
    fits = is_sparse_matrix
    w, *_, columns = lanes.args
    rest = Packed("rest", pack_matrix_rest, (w, columns.padded), fits=fits)
    return replace(lanes, pack=pack_fitting_lanes, fits=fits), rest


# ---- code


@dataclass(frozen=True)
class Rest:
    """The products of rows of bytes by the rest of split weights.

    rows     how many rows there are; at least `block`
    columns  of the weights, a multiple of `block`
    depth    elements of a row, a multiple of `block`
    block    lanes of a vector
    """

    rows: Number
    columns: Number
    depth: Number
    block: int

    @property
    def vectors(self) -> Number:
        """Vectors of rows."""
        return -(-self.rows // self.block)

    def transposed(self, vectors: Number) -> Number:
        """Bytes of so many vectors of rows."""
        return vectors * self.block * self.depth

    def first(self, b: Builder, start: Position, i: Position) -> Position:
        """The first row of vector i of those from row `start` on. A vector that would go beyond the
        last row begins earlier, to end with it."""
        return b.minimum(start + i * self.block, self.rows - self.block)

    def grouped(self, cells: Grid, tiling: Tiling, threads: int) -> Grid:
        """`cells` of a product, with fewer groups of rows, if they are small: each should have
        VECTORS vectors of rows, but each thread a group."""
        least = -(-tiling.rows.count * tiling.rows.size // (VECTORS * self.block))
        return replace(cells, rows=min(cells.rows, max(least, threads)))

    def block_sums(self, vectors: Number) -> Number:
        """Bytes of the sums of so many vectors of rows by a block of columns."""
        return vectors * 4 * self.block**2

    def seconds(self, target: Target) -> float:
        """Seconds that the sums of a convolution take, of weights as they usually are."""
        each = self.columns * (REST + ENTRY * self.depth) + self.depth
        return target.time(float(self.rows * each), 0.0)


def sum_rest(
    em: Emit, rest: Rest, count: int, room: tuple[Ptr, Ptr], blocks: tuple[Position, Position],
    place: Callable[[Val, Val], Ptr],
) -> None:  # fmt: skip
    """Emit the sums of products by the rest, of `count` vectors of rows by the `blocks` (first,
    last + 1) of columns. What `pack_rest` made is the second packed array. The sums of block c by
    vector i go to `place(c, i)`, as [row][column]. `room`: pointers to the rows, which
    `transpose_rows` wrote, and to `Rest.block_sums` of memory."""
    b, block, sums = em.b, rest.block, room[1].cast(I32)
    with b.loop(*blocks) as c:
        _sum_columns(em, rest, (room[0], sums), c, count)
        with b.loop(0, count) as i:
            lines = [(sums + (j * count + i) * block).load(block) for j in range(block)]
            to = place(c, i)
            for j, line in enumerate(transpose(lines)):
                (to + j * block).store(line)


def transpose_rows(
    rows: Sequence[Ptr], to: Ptr, away: Position, count: int, shift: bool = False
) -> None:
    """Emit code that reads a block of bytes, from `away` on, of each row of a vector of `rows`, and
    writes it to `to` as [k][row] of unsigned bytes, with `count` vectors from one k to the next;
    with `shift` as x XOR 0x80."""
    block = len(rows)
    lines = [(row + away).load(block) for row in rows]
    lines = [line ^ 128 for line in lines] if shift else lines
    for j, line in enumerate(transpose(lines)):
        (to + j * (count * block)).store(line)


def _sum_columns(em: Emit, rest: Rest, room: tuple[Ptr, Ptr], c: Val, count: int) -> None:
    """Emit code that writes the sums of block `c` of columns, as [column][row]. The other
    parameters are those of `sum_rest`."""
    b, block, (rows, sums), table = em.b, rest.block, room, em.packed[1].cast(I32)
    entries = table + (rest.columns + 1)
    with b.loop(0, block) as j:
        first = (table + (c * block + j)).fixed()
        lo, hi = ((first + i).load().to("i64") for i in range(2))
        with b.loop(lo, hi, carry=[b.zero(I32.x(block))] * count) as loop:
            entry = (entries + loop.index * 2).fixed()
            k, e = entry.load().to("i64"), (entry + 1).load().splat(block)
            line, found = (rows + k * (count * block)).fixed(), []
            for i, acc in enumerate(loop.vars):
                found.append(multiply_pairs(acc, (line + i * block).load(block).to("i32"), e))
            loop.next(found)
        for i, v in enumerate(loop.out):
            (sums + (j * count + i) * block).store(v)


def added(sums: Tile, places: Sequence[Ptr]) -> Tile:
    """Emit and return the sums of a tile with those of the rest. `places`: for each vector of
    columns, where those of its first row lie; the next rows follow."""
    found: Tile = [list(line) for line in sums]
    for j, at in enumerate(places):
        for line in found:
            lanes = line[j].ty.lanes
            line[j] = line[j] + at.load(lanes)
            at = at + lanes
    return found


Places = Callable[[Position, Position, int], list[Ptr]]
"""places(row, column, count): where `added` finds the sums of the rest for a tile that begins with
this row and column and has `count` vectors."""


@dataclass(frozen=True)
class ChunkSums:
    """Sums by the rest, of a chunk of rows, in a thread's workspace: room for the transposed rows,
    if they do not lie elsewhere; then `Rest.block_sums`; then the sums, as
    [block of columns][row][column].

    count  vectors of rows of a chunk
    at     bytes of workspace before all this
    here   whether rows are transposed into workspace
    """

    rest: Rest
    count: int
    at: int
    here: bool = False

    @property
    def _rows(self) -> int:
        """Rows of the sums for which there is room: a vector may begin up to a block earlier."""
        return (self.count + 1) * self.rest.block

    @property
    def _sums_at(self) -> int:
        return self.at + (int(self.rest.transposed(self.count)) if self.here else 0)

    def room(self, columns: int) -> int:
        """Bytes of workspace for so many columns."""
        return self._sums_at + int(self.rest.block_sums(self.count)) + 4 * self._rows * columns

    def sum(
        self, em: Emit, rows: Ptr, first: Position, blocks: tuple[Position, Position]
    ) -> Places:
        """Emit the sums by `blocks` (first, last + 1) of columns, of the chunk that begins with row
        `first` and whose transposed rows lie at `rows`. Returns where they lie."""
        b, rest, block = em.b, self.rest, self.rest.block
        room = (em.workspace + self._sums_at).cast(I32)
        sums = room + rest.block_sums(self.count) // 4

        def place(c: Position, row: Position) -> Ptr:
            at = (c - blocks[0]) * self._rows + (row - first + block)
            return (sums + at * block).fixed()

        sum_rest(em, rest, self.count, (rows, room), blocks,
                 lambda c, i: place(c, rest.first(b, first, i)))  # fmt: skip
        return lambda row, column, count: [place(column // block + j, row) for j in range(count)]


@dataclass(frozen=True)
class RowSums:
    """How a product sums its products by the rest. Its panels of rows are cut into chunks. A phase
    transposes the rows, into scratch. Before a thread multiplies a chunk, it sums its rest.

    shift   whether bytes are signed, and so transposed as x XOR 0x80
    panels  of rows in a chunk
    at      bytes of workspace before `ChunkSums`
    """

    rest: Rest
    rows: Rows
    shift: bool
    panels: int
    at: int

    @property
    def chunks(self) -> Number:
        return -(-(self.rows.many + self.rows.fewer) // self.panels)

    @property
    def count(self) -> Number:
        """Vectors of rows of a chunk."""
        return smallest(-(-self.panels * self.rows.size // self.rest.block), self.rest.vectors)

    @property
    def scratch(self) -> Number:
        """Bytes of scratch, for the transposed rows."""
        return self.chunks * self.rest.transposed(self.count)

    def room(self, columns: int) -> int:
        """Bytes of workspace for so many columns."""
        return self._sums.room(columns)

    @property
    def _sums(self) -> ChunkSums:
        return ChunkSums(self.rest, int(self.count), self.at)

    def phase(self) -> Phase:
        """The phase that transposes the rows."""
        own, rows = self.rest, self.rows

        def emit(em: Emit, *numbers: Number) -> None:
            total, size, many, fewer, panels, depth = numbers
            rest = replace(own, rows=total, depth=depth)
            here = replace(self, rest=rest, rows=Rows(total, size, many, fewer), panels=panels)
            with em.b.loop(em.begin, em.end) as chunk:
                here.transpose(em, chunk)

        numbers = rows.total, rows.size, rows.many, rows.fewer, self.panels, own.depth
        return Phase(self.chunks, emit, generic=numbers)

    def transpose(self, em: Emit, chunk: Val) -> None:
        """Emit code that transposes the rows of a chunk, from input 0 to scratch."""
        b, rest, block, count = em.b, self.rest, self.rest.block, int(self.count)
        source, first = em.input(0).pointer.cast(U8), self._first(b, chunk)
        transposed = em.scratch.cast(U8) + chunk * rest.transposed(count)
        with b.loop(0, count) as i:
            row = source + rest.first(b, first, i) * rest.depth
            rows = [(row + j * rest.depth).fixed() for j in range(block)]
            to = (transposed + i * block).fixed()
            with b.loop(0, rest.depth // block) as k:
                step, away = to + k * (block * count * block), k * block
                transpose_rows(rows, step, away, count, self.shift)

    def _first(self, b: Builder, chunk: Position) -> Position:
        """The first row of a chunk."""
        return first_row(b, self.rows, chunk * self.panels)

    def each_row_panel(
        self, em: Emit, chunks: tuple[Position, Position], blocks: tuple[Position, Position],
        body: Callable[[Position, int, Places], None],
    ) -> None:  # fmt: skip
        """Emit `body(first row, height, places)` for each panel of rows of the `chunks` (first,
        last + 1), with the sums by `blocks` (first, last + 1) of columns."""
        b, rest = em.b, self.rest
        with b.loop(*chunks) as chunk:
            rows = (em.scratch.cast(U8) + chunk * rest.transposed(self.count)).fixed()
            within = blocks[0], b.minimum(blocks[1], rest.columns // rest.block)
            places = self._sums.sum(em, rows, self._first(b, chunk), within)
            panels = chunk * self.panels, b.minimum((chunk + 1) * self.panels, self.rows.count)
            each_row_panel(b, self.rows, *panels, lambda row, height: body(row, height, places))


def row_sums(rest: Rest, tiling: Tiling, cells: Grid, shift: bool, used: int) -> RowSums:
    """The `RowSums` of a product that needs `used` bytes of workspace besides: chunks of at most
    VECTORS vectors of rows, and of no more panels than a group of `cells` has."""
    size, panels = tiling.rows.size, -(-tiling.rows.count // cells.rows)
    turns = -(-panels // max(1, VECTORS * rest.block // size))
    return RowSums(rest, tiling.rows, shift, -(-panels // turns), used)
