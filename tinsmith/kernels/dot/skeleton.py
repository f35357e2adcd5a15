"""The register-tiled product: rows of A, one lane at a time, times vectors of B.

    for k: for i in rows: for j in vectors: acc[i][j] += a[i][k] . b[k][j]

A row of `codegen/products.py` says what a lane holds (one float32, or a group of bytes) and which
instructions multiply and add. A is rows, `a_row` lanes apart, with k contiguous. B is lines of
contiguous columns, one for each k, `b_row` lanes apart: a packed panel ([k][column]), or a plain
matrix. Lanes of B may be stored in narrower elements, which are widened when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.expr import Expr
from tinsmith.codegen.functions import flops_of
from tinsmith.codegen.products import FLOAT32, Product
from tinsmith.codegen.types import F32
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Emit, Site
from tinsmith.kernels.layout import LINE
from tinsmith.kernels.walk import Position, load_row, offsets, shifted, spots, store_rows, walk_of
from tinsmith.records import dataclass
from tinsmith.sizes import Number

UNROLL = 4  # lanes of k of one iteration; estimated
SHORT = 2
"""UNROLL of rows whose step takes several instructions. With it in convolutions, networks of bytes
have 9 to 27 percent less text for LLVM than with 4, at 0.97 to 1.02 of the time (AVX2 on Zen 3,
least times of eight turns)."""
DISTANCE = 4096 // F32.nbytes
"""How far ahead of its use memory that is read in order is prefetched, in elements (4 KiB). Set on
Zen 4; the command was not recorded."""


@dataclass(frozen=True)
class Ahead:
    """Memory that is prefetched while a tile is computed: from `at` on, `step / share` elements of
    4 bytes for each k, into the first-level cache (`locality` 3) or the second-level one (2)."""

    at: Ptr
    step: int
    share: int = 1
    locality: int = 3

    def lines(self, k: int) -> range:
        """The numbers, counted from `at`, of the cache lines that are prefetched with k."""
        reach = LINE * self.share
        return range(-(-k * self.step // reach), -(-(k + 1) * self.step // reach))


@dataclass(frozen=True)
class Operands:
    """What one register tile multiplies: `a` points to its first row of A, `b` to its first column
    of B, both at k = 0.

    a_row, b_row  lanes from one row of A to the next, from one k of B to the next
    depth         lanes along k
    mask          of the last vector of B, if lanes beyond it must not be read
    ahead         what is prefetched meanwhile
    unit          if B is 24-bit weights: the factor of a word, read as an integer (`narrow.unit`)
    row           of the table of products: what a lane is, and how products are added
    ones          B is not read: all its elements are 1, so that products are sums of A's rows
    """

    a: Ptr
    a_row: int
    b: Ptr
    b_row: int
    depth: int
    mask: Val | None = None
    ahead: tuple[Ahead, ...] = ()
    unit: float | None = None
    row: Product = FLOAT32
    ones: bool = False

    def moved(self, k: int) -> Operands:
        """The same operands with pointers moved to k; `depth` stays. If B is 24-bit weights, k
        is a multiple of 4."""
        ahead = (replace(x, at=x.at + k * x.step // x.share) for x in self.ahead)
        rows = narrow.rows_of(k, self.unit is not None)
        return replace(self, a=self.a + k, b=self.b + rows * self.b_row, ahead=tuple(ahead))

    def weights(self, first: int, last: int, widths: Sequence[int]) -> Iterator[list[Val]]:
        """Load rows [first, last) of B, and yield each as neighbouring vectors of `widths` lanes,
        widened; the last of them under `mask`. With `ones`, yield 1s without a load. 24-bit
        weights are unpacked to float32, times `unit`, not yet times the powers of their columns
        (`narrow.lines`); `first` and `last` are then multiples of 4."""
        if self.ones:
            lane = self.row.one(self.row.right)
            one = [self.b.b.const(lane, self.row.lane.x(width)) for width in widths]
            yield from [one] * (last - first)
            return
        if self.unit is not None:
            assert self.mask is None, "panels of words are whole"
            start = self.moved(first).b
            yield from narrow.lines(start, last - first, self.b_row, widths, self.unit)
            return
        for k in range(first, last):
            row, found = self.b + k * self.b_row, []
            for j, (offset, width) in enumerate(spots(widths)):
                mask = self.mask if j == len(widths) - 1 else None
                found.append(self.row.widened((row + offset).load(width, mask)))
            yield found

    @property
    def _streams(self) -> tuple[Ptr, ...]:
        return (self.a, self.b, *(x.at for x in self.ahead))

    @property
    def places(self) -> list[Val]:
        """The addresses at which A, B and each of `ahead` are read, to be carried by a loop."""
        return [p.value for p in self._streams]

    def at(self, places: Sequence[Val]) -> Operands:
        """The same operands at other `places`, such as a loop's variables."""
        a, b, *later = (p.of(place) for p, place in zip(self._streams, places, strict=True))
        ahead = (replace(x, at=at) for x, at in zip(self.ahead, later, strict=True))
        return replace(self, a=a, b=b, ahead=tuple(ahead))


Tile = list[list[Val]]
"""The vectors of sums of a register tile: [row][vector of columns]."""


def product(
    b: Builder, at: Operands, rows: int, widths: Sequence[int], full: int = 0,
    add: Tile | None = None,
) -> Tile:  # fmt: skip
    """Emit and return the sums over k of a tile of `rows` rows by vectors of `widths` lanes. They
    start from `add`, or from 0.

    Tiles of few accumulators add consecutive k to several sets of them ("chains") in turn, so that
    an addition need not wait for the one before. `full` is the number of accumulators of the
    largest tile of the same matrix: with it, all its tiles add in the same order, so that equal
    columns give equal results wherever they lie.
    """
    count = rows * len(widths)
    unroll = _unroll(at.depth, SHORT if at.row.rate < at.row.group else UNROLL)
    chains = 1
    while chains * 2 <= unroll and unroll % (chains * 2) == 0 and max(count, full) * chains < 8:
        chains *= 2
    start = [b.zero(at.row.sums.x(w)) for _ in range(rows * chains) for w in widths]
    if add is not None and at.unit is None:
        start[:count] = [value for line in add for value in line]
    whole = at.depth // unroll * unroll
    if not isinstance(whole, int) or whole > unroll:
        places = len(at.places)
        with b.loop(0, whole, unroll, [*at.places, *start]) as loop:
            here = at.at(loop.vars[:places])
            sums = _steps(here, 0, unroll, rows, widths, loop.vars[places:], chains)
            loop.next([*here.moved(unroll).places, *sums])
        sums = loop.out[places:]
    else:
        sums = _steps(at, 0, whole, rows, widths, start, chains)
    if not isinstance(whole, int):
        rest = at.depth - whole
        if not isinstance(rest, int) or rest:
            sums = _rest(b, at.moved(whole), rest, rows, widths, sums)
    else:
        sums = _steps(at, whole, at.depth, rows, widths, sums, chains)
    while len(sums) > count:
        half = len(sums) // 2
        sums = [x + y for x, y in zip(sums[:half], sums[half:], strict=True)]
    n = len(widths)
    tile = [sums[i * n : (i + 1) * n] for i in range(rows)]
    return tile if at.unit is None else _powered(at, at.unit, tile, add)


def _rest(
    b: Builder, at: Operands, count: Number, rows: int, widths: Sequence[int], sums: list[Val]
) -> list[Val]:
    """Emit a loop of `count` more steps along k, all to the first chain; return the new sums."""
    first, places = rows * len(widths), len(at.places)
    with b.loop(0, count, 1, [*at.places, *sums[:first]]) as loop:
        here = at.at(loop.vars[:places])
        more = _steps(here, 0, 1, rows, widths, loop.vars[places:], 1)
        loop.next([*here.moved(1).places, *more])
    return [*loop.out[places:], *sums[first:]]


def _powered(at: Operands, unit: float, tile: Tile, add: Tile | None) -> Tile:
    """`tile`, sums of products by 24-bit weights, times the power of two of each column (which
    `kernels/narrow.py` keeps apart), plus `add` if given."""
    widths = [v.ty.lanes for v in tile[0]]
    powers = narrow.powers(at.b, at.depth, at.b_row, widths, unit)
    if add is None:
        return [[v * p for v, p in zip(line, powers, strict=True)] for line in tile]
    return [
        [v.fma(p, x) for v, p, x in zip(line, powers, more, strict=True)]
        for line, more in zip(tile, add, strict=True)
    ]


def _unroll(depth: Number, steps: int) -> int:
    """The steps along k of an iteration: all of a `depth` of at most UNROLL, else the first of
    `steps`, 3, 5 that divides `depth`, else `steps`."""
    if not isinstance(depth, int):
        return steps
    if 1 <= depth <= UNROLL:
        return depth
    return next((u for u in (steps, 3, 5) if depth % u == 0), steps)


def _steps(
    at: Operands, first: int, last: int, rows: int, widths: Sequence[int], sums: Sequence[Val],
    chains: int,
) -> list[Val]:  # fmt: skip
    """Emit the steps [first, last) along k, and return the new `sums`, a flat list
    [chain][row][vector]. Consecutive k are added to the `chains` in turn."""
    b, sums, n = at.a.b, list(sums), len(widths)
    weights = at.weights(first, last, widths)
    # No load passes a prefetch; where these are rare, LLVM would hold the vectors of several k.
    rare = any(x.share > 1 for x in at.ahead) or (at.row.group > 1 and not at.ahead)
    apart = at.unit is not None or rare
    for k in range(first, last):
        chain = (k - first) % chains * rows * n
        if apart:
            b.barrier()
        vectors = next(weights)
        for stream in at.ahead:
            for line in stream.lines(k):
                (stream.at + line * LINE).prefetch(locality=stream.locality)
        for i in range(rows):
            x = (at.a + (i * at.a_row + k)).load()
            wide = {w: x.splat(w) for w in dict.fromkeys(widths)}
            for j, width in enumerate(widths):
                s = chain + i * n + j
                sums[s] = at.row.step(sums[s], wide[width], vectors[j])
    return sums


def finish_row(em: Emit, row: Sequence[Val], index: Sequence[Position], valid: int) -> None:
    """Emit the epilogue and the stores of one row of a tile, a list of vectors. Its first element
    goes to `index` of the output (from where `em` is shifted to), whose last entry is an int. Of
    the last vector only the first `valid` lanes are stored."""
    *lead, column = index
    size = sum(v.ty.lanes for v in row)
    assert isinstance(column, int)

    def place(offset: int) -> list[Position]:
        return [*lead, column + offset] if offset else list(index)

    for offset, acc in offsets(row):
        lanes = acc.ty.lanes
        want = valid if offset + lanes == size else lanes
        for at, part, mask in em.b.pieces(want, lanes):
            em.finish(acc.part(at, part), place(offset + at), mask)


def finisher(
    em: Emit, row: Position, column: Position, valid: int, row_dims: tuple[int, int]
) -> Callable[[Position, Sequence[Val]], None]:
    """A function `finish(r, values)` that emits the epilogue and the stores of row r of a tile,
    whose vectors are `values`. `row` and `column` are the tile's first place; all parameters are as
    those of `finish_tile`."""
    first, last = row_dims
    rows = walk_of(em, first, last)
    has_columns = last < len(em.site.out.dims)

    def at(r: Position, c: Position) -> list[Position]:
        return [*rows.index(r), *((c,) if has_columns else ())]

    base = None if rows.outer else shifted(em, at(row, column))

    def finish(r: Position, values: Sequence[Val]) -> None:
        if base is None:
            finish_row(shifted(em, at(row + r, column)), values, at(0, 0), valid)
        elif isinstance(r, int):
            finish_row(base, values, at(r, 0), valid)
        else:
            finish_row(shifted(base, at(r, 0)), values, at(0, 0), valid)

    return finish


HEAVY_FLOPS = 10
"""An epilogue of so many flops is emitted once, in a loop over the rows of a tile."""


def epilogue_flops(expr: Expr | None) -> float:
    """About how many flops an epilogue takes for one result."""
    return 0.0 if expr is None else flops_of(expr)


def buffer_bytes(site: Site, rows: int, columns: int) -> int:
    """The bytes of workspace that `finish_tile` needs for tiles of at most `rows` x `columns`
    float32: 0 if the epilogue takes fewer than HEAVY_FLOPS, as tiles then stay in registers."""
    return 4 * rows * columns if epilogue_flops(site.epilogue) >= HEAVY_FLOPS else 0


def finish_tile(
    em: Emit, tile: Tile, row: Position, column: Position, valid: int, buffer: Ptr,
    row_dims: tuple[int, int],
) -> None:  # fmt: skip
    """Emit the epilogue and the stores of a tile whose first element goes to (row, column) of the
    output; of the last vector of each row only the first `valid` lanes are stored.

    `row` is a flat index over the output's dimensions [row_dims[0], row_dims[1]). The dimension
    after these, if any, is that of columns; callers have shifted `em` along those before.
    `buffer` points to `buffer_bytes` of workspace.
    """
    finish = finisher(em, row, column, valid, row_dims)
    if len(tile) == 1 or epilogue_flops(em.site.epilogue) < HEAVY_FLOPS:
        for r, values in enumerate(tile):
            finish(r, values)
        return
    size = sum(v.ty.lanes for v in tile[0])
    store_rows(buffer, tile, size)
    with em.b.loop(0, len(tile)) as r:
        finish(r, load_row((buffer + r * size).fixed(), [v.ty.lanes for v in tile[0]]))
