"""Register tiles: how outputs are cut into tiles and panels, and the loops over them.

A tile computes rows x cols output pixels for a panel of output channels. Its accumulators stay in
registers while the products of every input channel and tap are added. Panels are described by the
lanes of their vectors, such as (16, 16, 8): the last vector of the last panel may be half as wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tinsmith.codegen.builder import Builder, Val
from tinsmith.codegen.target import Target
from tinsmith.conditions import cached, estimating
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import PARTS
from tinsmith.kernels.walk import shifted_view
from tinsmith.kernels.window.geometry import Geometry, Triple
from tinsmith.records import dataclass
from tinsmith.sizes import Number, Size, largest, pieces, typical

Pieces = tuple[tuple[int, int], ...]
"""A length cut into pieces, as (count, size) in order: ((2, 5), (1, 4)) is 14 as 5 + 5 + 4."""

PARALLEL_FLOPS = 4e5  # operations: fewer are done by one thread (estimated)
UNROLL = 4  # input channels in one loop body: with more, LLVM's scheduler spills
MOST_VECTORS = 6  # output vectors of a panel (estimated)
MOST_WRAPPED = 8  # pixels of a tile that wraps over rows, an address register each
ROW_AND_COLUMN = 4.0  # issue slots to find the row and column of such a pixel (estimated)
WRAPPING = 0.03  # share of its time that its addresses cost (estimated)
L2_BYTES, L3_BYTES = 24, 12  # a cycle, that weights stream with from a cache (estimated)
CROWDED, CROWDING = 0.05, 1.8
"""Beyond this share of L2, weights that stream past every tile push out each other and the input:
so much of their time comes on top, for each share beyond. (Fitted to depths of 256 to 6144 at 7x7
places and a cache of 2 MB, where 7 pixels a tile fall from 100 to 73 % of the peak; machine and
command were not recorded.)"""


@cached(4096)
def cut(length: int, most: int) -> Pieces:
    """Cut `length` into the fewest pieces of at most `most`, whose sizes differ by at most 1. A
    length that only the call tells is cut as `sizes.pieces` does."""
    if isinstance(length, Size):
        return pieces(length, most)
    if not length:
        return ()
    number = -(-length // most)
    size, more = divmod(length, number)
    return tuple((n, s) for n, s in ((more, size + 1), (number - more, size)) if n)


def sizes_of(cuts: Pieces) -> list[int]:
    """The size of every piece, in order."""
    return [size for count, size in cuts for _ in range(count)]


@dataclass(frozen=True)
class Tiling:
    """How the rows and columns of an output plane are cut into tiles.

    cost  of one input channel and tap for the whole plane, in vector multiply-adds
    wrap  0, or the pixels of a row: then tiles go on from row to row, `cols` cuts the pixels of all
          rows, one row after the other, and `rows` is one piece
    """

    rows: Pieces
    cols: Pieces
    cost: float
    wrap: int = 0

    @property
    def row_units(self) -> int:
        return sum(n for n, _ in self.rows)

    @property
    def col_units(self) -> int:
        return sum(n for n, _ in self.cols)

    @property
    def most_bands(self) -> int:
        return largest(self.row_units, self.col_units)

    def __str__(self) -> str:
        wrapped = " over rows" if self.wrap else ""
        return f"{max(s for _, s in self.rows)}x{max(s for _, s in self.cols)}{wrapped}"


def pieces_before(cuts: Pieces, start: Val | int, size: int) -> Val | int:
    """How many of the pieces `cuts` precede the one of `size` that begins at `start`. Raises
    ValueError if none has that size."""
    first = before = 0
    for count, each in cuts:
        if each == size:
            return (start - first) // size + before
        first, before = first + count * each, before + count
    raise ValueError(f"no piece has size {size}: {cuts}")


def fits(target: Target, pixels: int, vectors: int) -> bool:
    """Whether registers hold a tile's `pixels` * `vectors` accumulators, a weight for each vector,
    and a pixel."""
    sums = pixels * vectors
    if target.registers >= 32:
        return sums <= 26 and sums + vectors <= 28
    if not target.has_fma:  # products need registers of their own
        return sums <= (8 if vectors > 1 else 7) and sums + vectors <= 10
    return sums <= (12 if vectors > 1 else 9) and sums + vectors <= 15


def _tile_cost(target: Target, pixels: int, lanes: Sequence[int], depth: int) -> float:
    """Issue slots of a tile of `pixels` by vectors of `lanes` for one of its `depth` steps (an
    input channel and tap). The tile's start and end are spread over all steps."""
    width = block_of(target)
    whole = float(len(lanes)) if target.pipes > 1 else sum(lanes) / width
    made = pixels * whole
    if target.pipes > 1:
        loads, least, slots = 1.0 * (pixels + len(lanes)), 9.4, 2.0
    else:
        loads, least, slots = 0.5 * pixels + whole, 5.0, 1.0
    row = 4 * sum(lanes)
    size = depth * row
    rate = L2_BYTES if size < 0.7 * target.l2 else L3_BYTES
    stream = slots * row / rate if size > target.l1 // 2 else 0.0
    late = CROWDING * max(0.0, size / target.l2 - CROWDED) * stream
    ends = 6 + pixels * len(lanes)
    return max(made, loads, least, stream) + late + ends / depth


@cached(4096)
def tiling(target: Target, rows: int, cols: int, lanes: tuple[int, ...], depth: int) -> Tiling:
    """The cheapest tiles for rows x cols outputs of a panel with vectors of `lanes`; for free sizes
    those of `free_tiling`. `depth`: the steps of a sum, one for each input channel and tap.

    Tiles that wrap over rows waste no registers at the ends of short rows. But distances between
    their pixels are not constant, so each pixel takes an address register.
    """
    if isinstance(rows, Size) or isinstance(cols, Size):
        return free_tiling(target, rows, cols, lanes, depth)
    best, least = None, 0.0

    def consider(down: Pieces, across: Pieces, wrap: int) -> None:
        nonlocal best, least
        cost = sum(
            n * m * _tile_cost(target, h * w, lanes, depth) for n, h in down for m, w in across
        )
        if wrap:
            places = sum(m * w for m, w in across)
            cost = cost * (1 + WRAPPING) + places * ROW_AND_COLUMN / depth
        score = cost * (1 + 0.01 * (len(down) * len(across) - 1) + 0.002 * (down[0][1] - 1))
        if best is None or score < least:
            best, least = Tiling(down, across, cost, wrap), score

    for high in range(1, min(rows, 7) + 1):
        for wide in range(1, min(cols, 26) + 1):
            if not fits(target, high * wide, len(lanes)):
                break
            down, across = cut(rows, high), cut(cols, wide)
            if down[0][1] == high and across[0][1] == wide:
                consider(down, across, 0)
    for wide in range(2, MOST_WRAPPED + 1):
        if rows > 1 and wide < rows * cols and fits(target, wide, len(lanes)):
            across = cut(rows * cols, wide)
            if across[0][1] == wide:
                consider(((1, 1),), across, cols)
    assert best is not None
    return best


def free_tiling(
    target: Target, rows: Number, cols: Number, lanes: tuple[int, ...], depth: int
) -> Tiling:
    """The cheapest tiles (see `tiling`) where only the call tells rows or columns: tiles of one
    row, and of as many columns as are cheapest for the sizes of the example."""
    high, wide = typical(rows), typical(cols)
    best = None
    for across in range(1, min(wide, 26) + 1):
        if fits(target, across, len(lanes)):
            cost = high * sum(m * _tile_cost(target, w, lanes, depth) for m, w in cut(wide, across))
            if best is None or cost < best[0]:
                best = cost, across
    assert best is not None
    down = cut(rows, 1) if isinstance(rows, Size) else ((rows, 1),)
    return Tiling(down, cut(cols, best[1]), best[0])


@dataclass(frozen=True)
class Panels:
    """Output channels cut into panels: `count` panels whose vectors have the lanes `main`, then one
    with the lanes `tail`, unless `tail` is empty. `cost` as in `Tiling`, of all panels together."""

    count: int
    main: tuple[int, ...]
    tail: tuple[int, ...]
    cost: float

    @property
    def total(self) -> int:
        return self.count + bool(self.tail)

    def __str__(self) -> str:
        return f"{len(self.main if self.count else self.tail)}"


def panels(
    target: Target, channels: int, rows: int, cols: int, depth: int, width: int = 0
) -> Panels:
    """The cheapest cut of `channels` output channels into panels, each with its best tiling of
    rows x cols outputs. `depth`: the steps of a sum, one for each input channel and tap; `width`:
    lanes of a vector (0: as many as a channel block has)."""
    width = width or block_of(target)
    blocks = -(-channels // width)
    half = width
    if width == 16 and target.pipes == 1 and 0 < channels % width <= width // 2:
        half = width // 2  # where one pipe computes two halves at once
    best, least = None, 0.0
    for vectors in range(1, min(blocks, MOST_VECTORS) + 1):
        if not fits(target, 1, vectors):
            break
        main = (width,) * vectors
        whole = tiling(target, rows, cols, main, depth).cost
        for narrow in {width, half}:
            rest = blocks % vectors or (vectors if narrow != width else 0)
            count = (blocks - rest) // vectors
            tail = (width,) * (rest - 1) + (narrow,) if rest else ()
            cost = count * whole
            if tail:
                cost += tiling(target, rows, cols, tail, depth).cost
            # each panel reads the input again, which large images feel
            score = cost * (1 + 0.01 * bool(tail and count) + 0.04 / vectors)
            if best is None or score < least:
                best, least = Panels(count, main, tail, cost), score
    assert best is not None
    return best


def unroll(channels: int) -> int:
    """How many of `channels` input channels one loop body takes: 1 of one, else 2 to 7, so that as
    few as possible beyond the last (zeros) are computed."""
    if channels == 1:
        return 1
    return min(range(2, 8), key=lambda u: (-(-channels // u) * u, u != UNROLL, -u))


def bands(units: int, most: int, threads: int = 1, flops: float = math.inf) -> int:
    """Into how many bands each of `units` (image, panel) pairs is cut, so that threads can share
    them: at least `threads`, and so many that there are PARTS tiles in all, but at most `most`. 1
    if `flops`, those of all pairs, are at most PARALLEL_FLOPS."""
    with estimating():
        found = max(1, min(most, max(threads, -(-PARTS // units))))
        return typical(found) if flops > PARALLEL_FLOPS else 1


class Place(Protocol):
    """What stores the result vectors of a tile: a `Sink`, or an object with the same methods."""

    def at(self, *index: Val | int) -> Place: ...
    def put(self, value: Val, *index: Val | int) -> None: ...


class Sink:
    """Stores result vectors in output 0, after the epilogue.

    An index is (n, channel block, depth, height, width); the last three are multiplied by `spread`:
    with 2 every other pixel of the output is written. `at` moves to an index, for example that of a
    tile's first pixel; `put` then stores at constant offsets from there. The operands of the
    epilogue (extras) move along. `block` is the output channel block at which the sink stands."""

    def __init__(
        self, em: Emit, geometry: Geometry, block: Val | int = 0, spread: Triple = (1, 1, 1)
    ) -> None:
        self.em, self.geometry, self.block, self.spread = em, geometry, block, spread
        self.width = em.outs[0].spec.layout.block

    def at(self, *index: Val | int) -> Sink:
        """A sink moved on by (n, block, depth, height, width); trailing zeros may be left out."""
        index = (*index, *(0,) * (5 - len(index)))
        full, (out, *more) = self._place(index), self.em.outs
        em = replace(
            self.em, outs=(shifted_view(out, full), *more),
            extras=tuple(shifted_view(v, full) for v in self.em.extras),
        )  # fmt: skip
        return Sink(em, self.geometry, self.block + index[1], self.spread)

    def _place(self, index: Sequence[Val | int]) -> tuple[Val | int, ...]:
        far = (i * s for i, s in zip(index[2:], self.spread, strict=True))
        return self.geometry.place((*index[:2], *far))

    def put(self, value: Val, *index: Val | int) -> None:
        """Apply the epilogue to a vector, and store it at the offset (n, block, depth, height,
        width) from here. A vector of fewer lanes than a block is filled up with zeros."""
        full = self._place(index)
        lanes = value.ty.lanes
        if lanes < self.width:
            zero = self.em.b.zero(value.ty)
            value = value.shuffle(zero, [min(i, lanes) for i in range(self.width)])
        out = self.em.outs[0]
        value = self.em.epilogue(value, full)
        value = self.em.clear_padding(value, self.block + index[1], out.spec)
        out.at(*full).store(value)


def digits(flat: Val | int, *extents: int) -> list[Val | int]:
    """The indices of which a flat number consists, innermost first: one for each of the extents,
    and the outermost. digits((i * 4 + j) * 3 + k, 3, 4) is [k, j, i]."""
    found = []
    for extent in extents:
        found.append(flat % extent)
        flat = flat // extent
    return [*found, flat]


def sweep(
    b: Builder, tiles: Tiling, band: Val | int, count: int,
    tile: Callable[[Val | int, Val | int, int, int], None],
) -> None:  # fmt: skip
    """Emit `tile(row, col, rows, cols)` for every tile of band number `band` of `count`: for the
    tile of rows x cols outputs that begins at (row, col). Bands divide the rows of tiles; or the
    columns of tiles, if rows are fewer than both bands and columns."""
    with estimating():
        by_rows = bool(tiles.row_units >= min(count, tiles.col_units))
    rows = partial(walk, b, tiles.rows, band, count if by_rows else 1)
    cols = partial(walk, b, tiles.cols, band, 1 if by_rows else count)
    if any(isinstance(n, Size) for n, _ in tiles.cols):  # loops that may be empty: outside
        cols(lambda c, w: rows(lambda r, h: tile(r, c, h, w)))
    else:
        rows(lambda r, h: cols(lambda c, w: tile(r, c, h, w)))


def walk(
    b: Builder, pieces: Pieces, band: Val | int, count: int, body: Callable[[Val | int, int], None],
) -> None:  # fmt: skip
    """Emit `body(start, size)` for every piece of band number `band`; the pieces are divided evenly
    among `count` bands."""
    total = sum(n for n, _ in pieces)
    shared = isinstance(count, Size) or count > 1
    if shared:
        first = b.index(band) * total // count
        last = (b.index(band) + 1) * total // count
    start = unit = 0
    for n, size in pieces:
        if shared:
            with b.loop(b.maximum(first, unit), b.minimum(last, unit + n)) as u:
                body((u - unit) * size + start, size)
        elif isinstance(n, int) and n == 1:
            body(start, size)
        else:
            with b.loop(start, start + n * size, size) as position:
                body(position, size)
        start, unit = start + n * size, unit + n
