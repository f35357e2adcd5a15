"""How a product is cut into register tiles, and what that costs.

A tile is a panel of rows by a panel of columns. A panel of columns is some vectors, of `widths`
elements; each row of a tile has one accumulator for each of them. Rows are cut into panels of
almost equal height, columns into equal panels and one last panel of the rest, whose last vector is
no wider than it needs to be.
"""

from __future__ import annotations

from dataclasses import replace

from tinsmith.codegen.target import Target
from tinsmith.conditions import cached
from tinsmith.kernels.layout import block_of
from tinsmith.records import dataclass
from tinsmith.sizes import Size, pieces, typical

SINGLE = 1.02
"""The factor on the time of tiles of one vector: each of their multiply-adds reads an element of A.
Set on Zen 4; the command was not recorded."""


@dataclass(frozen=True)
class Rows:
    """The `total` rows of a product, cut into panels: `many` of `size` rows, then `fewer` of `size`
    - 1 rows. If only a call tells `total`, `sizes.pieces` cuts it into panels of at most `size`
    rows; `many` and `fewer` are then 0."""

    total: int
    size: int
    many: int
    fewer: int

    @property
    def count(self) -> int:
        """How many panels there are."""
        if isinstance(self.total, Size):
            return sum(n for n, _ in pieces(self.total, self.size))  # type: ignore[return-value]
        return self.many + self.fewer

    def variants(self) -> list[tuple[int, int, int, int]]:
        """Return, for each height that panels have: (first panel, last panel + 1, height, base).
        Panel p of these begins at row p * height + base."""
        if isinstance(self.total, Size):
            found, first, row = [], 0, 0
            for count, size in pieces(self.total, self.size):
                found.append((first, first + count, size, row - first * size))
                first, row = first + count, row + count * size
            return found
        found = [(0, self.many, self.size, 0)]
        if self.fewer:
            found.append((self.many, self.count, self.size - 1, self.many))
        return found


def split_rows(total: int, most: int) -> Rows:
    """`total` rows in the fewest panels of at most `most`; heights differ by at most 1."""
    if isinstance(total, Size):
        return Rows(total, min(most, typical(total)), 0, 0)
    count = -(-total // most)
    size = -(-total // count)
    fewer = size * count - total
    return Rows(total, size, count - fewer, fewer)


@dataclass(frozen=True)
class Columns:
    """The `total` columns of a product, cut into panels.

    `full` panels have vectors of `widths` elements. One panel with vectors of `tail` elements
    follows, if `tail` is not empty; its last vector has `valid` columns, then padding.

    If only a call tells `total` (a Size, or a value of the run), `tail` is the width of one vector,
    and as many panels of one such vector follow as are needed.
    """

    total: int
    widths: tuple[int, ...]
    full: int
    tail: tuple[int, ...]
    valid: int

    @property
    def count(self) -> int:
        """How many panels there are."""
        if not isinstance(self.total, int):
            rest = self.total - self.full * self.size
            return self.full + (rest + (self.tail[0] - 1)) // self.tail[0]
        return self.full + bool(self.tail)

    @property
    def size(self) -> int:
        """Columns of a full panel."""
        return sum(self.widths)

    @property
    def padded(self) -> int:
        """Columns of all panels together, padding included."""
        if isinstance(self.total, Size):
            return -(-self.total // self.tail[0]) * self.tail[0]
        return self.full * self.size + sum(self.tail)


def split_columns(total: int, lanes: int, vectors: int, exact: bool) -> Columns:
    """`total` columns in panels of `vectors` vectors of `lanes` elements. The last panel has
    full vectors, then with `exact` some of 8, 4, 2 and 1 columns, otherwise one with padding."""
    size = lanes * vectors
    full = total // size
    if not isinstance(total, int):
        return Columns(total, (lanes,) * vectors, full, (lanes,), lanes)
    rest = total - full * size
    whole, few = divmod(rest, lanes)
    tail = [lanes] * whole
    valid = lanes
    if few and exact:
        for bit in (8, 4, 2, 1):
            if few & bit:
                tail.append(bit)
        valid = tail[-1]
    elif few:
        tail.append(min(lanes, max(4, 1 << (few - 1).bit_length())))
        valid = few
    return Columns(total, (lanes,) * vectors, full, tuple(tail), valid)


@dataclass(frozen=True)
class Tiling:
    """How a product is cut into register tiles. `cycles`: estimated, for the whole product;
    `ideal`: with every lane and every cycle used."""

    rows: Rows
    columns: Columns
    cycles: float
    ideal: float

    @property
    def efficiency(self) -> float:
        """The share of the peak rate of arithmetic that the product is estimated to reach."""
        return self.ideal / self.cycles

    @property
    def accumulators(self) -> int:
        """Vectors of sums of a full tile."""
        return self.rows.size * len(self.columns.widths)

    def __str__(self) -> str:
        shape = f"{self.rows.size}x{len(self.columns.widths)}"
        return f"tile {shape}, {self.rows.count} x {self.columns.count} panels"


def accumulators(target: Target) -> int:
    """The most accumulators of a tile that leave registers for operands, without spills."""
    if target.registers >= 32:
        return 26
    return 12 if target.has_fma else 8


def tile_cycles(target: Target, rows: int, widths: tuple[int, ...]) -> float:
    """The cycles of one step along k of a register tile: whichever takes longest of its
    arithmetic, its loads, and the latency of its additions."""
    lanes = block_of(target)
    pipes = float(target.pipes)
    each = sum(0.5 if pipes == 1 and w <= lanes // 2 else 1.0 for w in widths)
    arithmetic = rows * each / pipes * (1 if target.has_fma else 2)
    loads = (rows + len(widths)) * 0.5
    return max(arithmetic, loads, 4.0)


@cached(4096)
def choose(
    target: Target, m: int, n: int, k: int, exact: bool = False, most_vectors: int = 6,
    form: float = 0.0, kept: int = 0,
) -> Tiling:  # fmt: skip
    """The cheapest tiling of an (m, k) x (k, n) product.

    `most_vectors`: the most vectors of columns of a tile. `exact`: no padding columns. `form`: a
    penalty, as a share of the time, for each further shape of tile, which needs code of its own.
    `kept`: registers that steps need for constants. For sizes that only a call tells, the tiling of
    the example's sizes is applied."""
    if any(isinstance(size, Size) for size in (m, n, k)):
        found = choose(target, typical(m), typical(n), typical(k), exact, most_vectors, form, kept)
        columns = split_columns(n, block_of(target), len(found.columns.widths), exact)
        return replace(found, rows=split_rows(m, found.rows.size), columns=columns)
    lanes = block_of(target)
    limit = accumulators(target) - kept
    vectors = -(-n // lanes)
    ideal = m * n * k / lanes / target.pipes * (1 if target.has_fma else 2)
    best: tuple[float, int, Tiling] | None = None
    for per in range(1, min(most_vectors, vectors) + 1):
        columns = split_columns(n, lanes, per, exact)
        widest = max(len(columns.widths) if columns.full else 0, len(columns.tail))
        if widest > limit:
            continue
        for most in range(1, min(m, limit // widest) + 1):
            rows = split_rows(m, most)
            if rows.size != most:
                continue
            cycles = _cycles(target, rows, columns, k)
            forms = (1 + bool(rows.fewer)) * (bool(columns.full) + bool(columns.tail))
            key = (cycles * (1 + form * (forms - 1)), abs(per - 2))
            if best is None or key < best[:2]:
                best = (*key, Tiling(rows, columns, cycles, ideal))
    assert best is not None
    return best[2]


def _cycles(target: Target, rows: Rows, columns: Columns, k: int) -> float:
    """The estimated cycles of a whole product that is cut so, on one core."""
    total = 0.0
    for count, height in ((rows.many, rows.size), (rows.fewer, rows.size - 1)):
        if not count:
            continue
        for panels, widths in ((columns.full, columns.widths), (1, columns.tail)):
            if not panels or not widths:
                continue
            step = tile_cycles(target, height, widths)
            # B comes from L2: about 24 bytes a cycle, which short tiles cannot hide.
            step = max(step, 4 * sum(widths) / 24) * (SINGLE if len(widths) == 1 else 1.0)
            store = 12 + 2.0 * height * len(widths)
            total += count * panels * (k * step + store)
    return total
