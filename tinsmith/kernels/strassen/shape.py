"""How a product with a constant right operand is cut for Strassen's method, and what that costs.

Blocks are not the quarters of the matrices but of each tile: a panel of rows is 2 (or 4) units of
rows, a panel of columns as many units of columns, so that all that belongs together is in cache
together. K is cut into as many parts.
"""

from __future__ import annotations

from dataclasses import replace

from tinsmith.codegen.target import Target, foreign_time, streamed
from tinsmith.kernels.dot.matmul import spread_stride
from tinsmith.kernels.dot.panels import part
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.sharing import PARTS
from tinsmith.kernels.strassen.form import PRODUCTS
from tinsmith.records import dataclass

LEAST_TILES = 2  # for each of several threads
NEAR = 0.5  # times L2: right factors that stay there
LEFT = 0.3  # times L2: the left factors of panels of rows, or what products leave to each other
REREAD, LOST = 0.1, 0.5  # times the traffic of right factors read again, and of far left factors
EXPOSED_CYCLES = 4.0  # of each cache line of right factors that comes from memory
NARROW, WIDE = 2, 6  # the most vectors of a tile
WIDE_COST = 1.08  # right factors of wide tiles come from far, and tiles of few rows read more
LATENCY = 20.0  # cycles around each product of a tile
SUM_CYCLES = (5.0, 6.0)  # for a vector of one of the left factors, by level
FINISH_CYCLES = 18.0  # for a vector of each quarter of a tile, through L1
COMBINE_CYCLES = 1.5  # for each vector of a product of the lower of two levels


@dataclass(frozen=True)
class Shape:
    """m x k times k x n. `tiling` is that of one of the products: rows, depth and columns divided
    by `side`. A tile of work is one of `cuts` shares of its panels of rows by one of `groups`
    shares of its panels of columns; the left factors of `together` panels of rows are there at a
    time."""

    level: int
    m: int
    k: int
    n: int
    tiling: Tiling
    groups: int
    cuts: int
    together: int

    @property
    def side(self) -> int:
        """Units of rows, of columns and of k that belong together."""
        return 2**self.level

    @property
    def products(self) -> int:
        return PRODUCTS**self.level

    @property
    def depth(self) -> int:
        """Elements of K of one product."""
        return self.k // self.side

    @property
    def pitch(self) -> int:
        """Elements from row to row of a left factor."""
        return spread_stride(self.depth, self.tiling.rows.size)

    @property
    def lacks(self) -> int:
        """Rows that the last panel lacks."""
        return self.tiling.rows.total * self.side - self.m

    @property
    def left(self) -> int:
        """Elements of one left operand of a panel of rows."""
        return self.tiling.rows.size * self.pitch

    @property
    def apart(self) -> int:
        """Elements from one left factor to the next, those of all panels of a group between them.
        An odd number of cache lines: all are written at once, and few may share a set."""
        return (-(-self.together * self.left // LINE) | 1) * LINE

    def far(self, target: Target) -> float:
        """The share of the left factors of a group of panels that the second-level cache loses."""
        filled = 4 * self.products * self.apart / target.l2
        return min(1.0, max(0.0, (filled - LEFT) / (1 - LEFT)))

    @property
    def tile(self) -> int:
        """Elements of one tile."""
        return self.tiling.rows.size * self.tiling.columns.size

    @property
    def slot(self) -> int:
        """Elements of what the products of a tile leave to each other: zeros, places 1 and 2, and
        at two levels four times two more."""
        return (3 if self.level == 1 else 11) * self.tile

    @property
    def cycles(self) -> float:
        """Issue slots of all products and sums; each group of columns makes all left factors."""
        rows, columns = self.tiling.rows, self.tiling.columns
        lanes = (columns.widths if columns.full else columns.tail)[0]
        per_vector = 1.0 if lanes > 8 else 0.5  # 512-bit operations take both 256-bit pipes
        tiles = rows.count * columns.count
        vectors = rows.total * columns.total / lanes  # of one product
        left = rows.total * self.depth / lanes * self.products * self.groups
        sums = left * SUM_CYCLES[self.level - 1]
        finish = vectors * self.side**2 / 4 * FINISH_CYCLES
        if self.level > 1:
            finish += vectors * self.products * COMBINE_CYCLES
        products = self.products * (self.tiling.cycles + LATENCY * tiles)
        return products + (sums + finish) * per_vector

    def uneven(self, threads: int) -> float:
        """The work of the busiest of `threads` that take tiles in order, in equal shares."""
        rows, columns = self.tiling.rows.count, self.tiling.columns.count
        loads = [0] * threads
        for t in range(self.cuts * self.groups):
            above, below = part(t % self.cuts, self.cuts, rows)
            left, right = part(t // self.cuts, self.groups, columns)
            loads[loads.index(min(loads))] += (below - above) * (right - left)
        return max(loads) * threads / (rows * columns)

    @property
    def stored(self) -> float:
        """Elements of all right factors."""
        return self.products / self.side**2 * self.k * self.n

    def is_near(self, target: Target) -> bool:
        """Whether the second-level cache keeps the right factors of a group of columns."""
        return 4.0 * self.stored / self.groups < NEAR * target.l2

    def seconds(self, target: Target, threads: int = 1) -> float:
        """On one core, while so many work. The right factors come once from memory, which hides
        the better the more there is to do for each line; for each further group of panels of rows
        they come from where they then are, and so do left factors that the cache loses, for each
        panel of columns. Who shares columns reads rows that others have written."""
        flops_per_cycle = 2.0 * self.m * self.n * self.k / (self.side**3 * self.tiling.ideal)
        busy = target.time(self.cycles * flops_per_cycle, 4.0 * self.m * (self.k + self.n))
        rows, columns = self.tiling.rows, self.tiling.columns
        groups, right = -(-rows.count // self.together), 4.0 * self.stored
        left = 4.0 * self.products * self.left * rows.count
        foreign = 4.0 * self.m * self.k * (min(self.groups, threads) - 1)
        per_line = rows.size * LINE / block_of(target) / target.pipes  # cycles
        exposed = 1.0 if groups > 1 else min(1.0, EXPOSED_CYCLES / per_line)
        growth = self.stored / (self.k * self.n)
        arriving = right / target.weights_rate(1, growth)
        together = target.weights_rate(threads, growth)
        crowded = target.weights_rate(1, growth) / together
        rate = target.l3_bandwidth if right <= target.l3 else together
        again = 0.0 if self.is_near(target) else REREAD * right * (groups - 1) / rate
        again += LOST * self.far(target) * left * (columns.count + 1) / target.l3_bandwidth
        shown = streamed(busy, arriving, groups, exposed, crowded)
        return shown + again + foreign_time(target, foreign) + 1e-7


def shape_of(target: Target, level: int, m: int, k: int, n: int, threads: int = 1) -> Shape:
    """How a product is cut. `k` and `n` must be multiples of 2 to the level."""
    narrow = _shape(target, level, m, k, n, threads, NARROW)
    if narrow.uneven(threads) <= WIDE_COST:
        return narrow
    wide = _shape(target, level, m, k, n, threads, WIDE)
    return narrow if narrow.uneven(threads) <= WIDE_COST * wide.uneven(threads) else wide


def _shape(
    target: Target, level: int, m: int, k: int, n: int, threads: int, most_vectors: int
) -> Shape:
    side = 2**level
    tiling = choose(
        target, -(-m // side), n // side, k // side, exact=True, most_vectors=most_vectors
    )
    whole = Shape(level, m, k, n, tiling, groups=1, cuts=1, together=1)
    found = [
        replace(shape, together=count)
        for shape in _shared(whole, threads)
        for count in _together(shape, target)
    ]
    return min(found, key=lambda shape: shape.seconds(target, threads) * shape.uneven(threads))


def _shared(shape: Shape, threads: int) -> list[Shape]:
    """The ways in which threads may share the work: by rows, and by columns, too, at least where
    there are few panels of rows."""
    if threads == 1:
        return [shape]
    rows, columns = shape.tiling.rows.count, shape.tiling.columns.count
    least = min(LEAST_TILES * threads, rows * columns)
    wanted = (*range(1, min(columns, least) + 1), columns)
    counts = {
        -(-columns // -(-columns // g)) for g in wanted
    }  # the fewest whose largest is no larger
    parts = max(PARTS, least)
    found = [replace(shape, groups=g, cuts=min(rows, -(-parts // g))) for g in sorted(counts)]
    return [shape for shape in found if shape.groups * shape.cuts >= least]


def _together(shape: Shape, target: Target) -> list[int]:
    """Of how many panels of rows the left factors may be there at a time."""
    share = 1 if shape.is_near(target) else -(-shape.tiling.rows.count // shape.cuts)
    most = min(share, max(1, int(target.l2 * LEFT) // (4 * shape.slot)))
    doubled = (min(most, 2**i) for i in range(most.bit_length() + 1))
    return sorted({-(-share // -(-share // count)) for count in doubled})
