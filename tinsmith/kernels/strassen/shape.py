"""How a product with a constant right operand is cut for Strassen's method, and what that costs.

The method is applied to each tile of the result, not to quarters of whole matrices: a panel of rows
is 2 units of rows (at level 2: 4), a panel of columns as many units of columns, and K is cut into
as many parts. So all that a tile needs is in cache at the same time.

`python -m benchmarks.micro --only strassen` prints the estimate beside the time.
"""

from __future__ import annotations

from dataclasses import replace

from tinsmith.codegen.target import Target, foreign_time, streamed
from tinsmith.kernels.dot.matmul import spread_stride
from tinsmith.kernels.dot.tiles import Tiling, choose
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.sharing import PARTS
from tinsmith.kernels.strassen.form import PRODUCTS
from tinsmith.kernels.walk import share
from tinsmith.records import dataclass

LEAST_TILES = 2  # the fewest tiles of work for each of several threads; estimated
NEAR = 0.5  # the share of L2 in which right factors stay from group to group; estimated
LEFT = 0.3
"""The share of L2 for the left factors of a group of row panels, and for the tiles that keep sums
between products. Estimated."""
REREAD, LOST = 0.1, 0.5
"""The shares of the traffic that arithmetic does not hide: of right factors that are read again,
and of left factors that L2 has evicted. Set on Zen 4; the command was not recorded."""
EXPOSED_CYCLES = 4.0
"""Cycles for each cache line of right factors from memory that arithmetic does not hide. Set on
Zen 4; the command was not recorded."""
NARROW, WIDE = 2, 6
"""The most vectors in a row of a register tile: usually, and where threads would wait for each
other. Estimated."""
WIDE_COST = 1.08
"""The factor by which wide tiles are slower: their right factors come from outer caches, and tiles
of few rows load more for each product. Estimated."""
LATENCY = 20.0
"""Cycles before and after each product of a register tile. Estimated (as are the three below)."""
SUM_CYCLES = (5.0, 6.0)  # cycles for a vector of one left factor, at level 1 and at level 2
FINISH_CYCLES = 18.0  # cycles for a vector of each quarter of a tile, through L1
COMBINE_CYCLES = 1.5  # cycles for a vector of each product of the lower of two levels


@dataclass(frozen=True)
class Shape:
    """A product (m x k) times (k x n), and how it is cut.

    level     1 or 2: how often matrices are halved, for 7 or 49 products
    tiling    how one of these products is cut, which has ceil(m / side) rows, k / side depth and
              n / side columns. Its panels are the units of the panels of the whole product
    groups    into how many shares the column panels are divided
    cuts      into how many shares the row panels are divided; a tile of work is one share of each
    together  row panels of a group, whose left factors are kept at the same time
    """

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
        """2 to the level: the units in a panel of rows or columns, and the parts of K."""
        return 2**self.level

    @property
    def products(self) -> int:
        return len(PRODUCTS) ** self.level

    @property
    def depth(self) -> int:
        """The extent of K in one product."""
        return self.k // self.side

    @property
    def pitch(self) -> int:
        """Elements from one row of a left factor to the next."""
        return spread_stride(self.depth, self.tiling.rows.size)

    @property
    def lacks(self) -> int:
        """By how many rows the row panels exceed m: padding in the last panel."""
        return self.tiling.rows.total * self.side - self.m

    @property
    def left(self) -> int:
        """Elements of one left factor of one panel of rows."""
        return self.tiling.rows.size * self.pitch

    @property
    def apart(self) -> int:
        """Elements from one left factor of a row panel to its next one; the same factor of all
        panels of the group lies between. An odd number of cache lines, so that lines of different
        factors, written at the same time, fall into different cache sets."""
        return (-(-self.together * self.left // LINE) | 1) * LINE

    def far(self, target: Target) -> float:
        """Estimated share (0 to 1) of the left factors of a group of row panels that L2 evicts."""
        filled = 4 * self.products * self.apart / target.l2
        return min(1.0, max(0.0, (filled - LEFT) / (1 - LEFT)))

    @property
    def tile(self) -> int:
        """Elements of a tile: the accumulators of one product."""
        return self.tiling.rows.size * self.tiling.columns.size

    @property
    def slot(self) -> int:
        """Elements of the tiles of one row panel between products: a tile of zeros, place 1 and
        place 2 (`form.Product`), and at level 2 the two places of the higher level, each with a
        tile for each of four quarters."""
        return (3 if self.level == 1 else 11) * self.tile

    @property
    def cycles(self) -> float:
        """Estimated cycles of all products and sums on one core. Left factors are computed anew for
        each share of the column panels, `groups` times."""
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
        """The work of the busiest of `threads` threads divided by an equal share, at least 1: the
        factor on `seconds` for sharing."""
        rows, columns = self.tiling.rows.count, self.tiling.columns.count
        loads = [0] * threads
        for t in range(self.cuts * self.groups):
            above, below = share(t % self.cuts, self.cuts, rows)
            left, right = share(t // self.cuts, self.groups, columns)
            loads[loads.index(min(loads))] += (below - above) * (right - left)
        return max(loads) * threads / (rows * columns)

    @property
    def stored(self) -> float:
        """Elements of all right factors."""
        return self.products / self.side**2 * self.k * self.n

    def is_near(self, target: Target) -> bool:
        """Whether L2 keeps the right factors of one share of the column panels (`groups`)."""
        return 4.0 * self.stored / self.groups < NEAR * target.l2

    def seconds(self, target: Target, threads: int = 1) -> float:
        """Estimated seconds of the whole product on one core, while `threads` cores share caches
        and memory; `uneven` is not included.

        Right factors come from memory once, which arithmetic hides in part. Every further group of
        row panels reads them again, from L2, L3 or memory. Left factors that L2 evicts are read
        again for each panel of columns. Threads with different columns (`groups`) read the same
        rows of the left operand, all but one of them rows that another core has written.
        """
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
    """The cheapest cut of a product (m x k) times (k x n) at a level (1 or 2) for `threads`
    threads. k and n must be multiples of 2 to the level. Register tiles have at most NARROW vectors
    in a row, unless threads would then wait too long for each other."""
    narrow = _shape(target, level, m, k, n, threads, NARROW)
    if narrow.uneven(threads) <= WIDE_COST:
        return narrow
    wide = _shape(target, level, m, k, n, threads, WIDE)
    return narrow if narrow.uneven(threads) <= WIDE_COST * wide.uneven(threads) else wide


def _shape(
    target: Target, level: int, m: int, k: int, n: int, threads: int, most_vectors: int
) -> Shape:
    """`shape_of`, but of shapes whose register tiles have at most `most_vectors` vectors in a
    row."""
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
    """The ways in which `threads` threads may share the work, as copies of `shape` with other
    `groups` and `cuts`. Each has at least LEAST_TILES tiles of work for a thread, or as many tiles
    as there are pairs of panels. For one thread: `shape` alone."""
    if threads == 1:
        return [shape]
    rows, columns = shape.tiling.rows.count, shape.tiling.columns.count
    least = min(LEAST_TILES * threads, rows * columns)
    wanted = (*range(1, min(columns, least) + 1), columns)
    counts = {-(-columns // -(-columns // g)) for g in wanted}  # the fewest of equal largest share
    parts = max(PARTS, least)
    found = [replace(shape, groups=g, cuts=min(rows, -(-parts // g))) for g in sorted(counts)]
    return [shape for shape in found if shape.groups * shape.cuts >= least]


def _together(shape: Shape, target: Target) -> list[int]:
    """The values of `Shape.together` to try, ascending: about 1, 2, 4, ... row panels, at most all
    of a share, and so few that the tiles that hold their sums take at most the part LEFT of L2.
    Only 1 if the right factors stay in L2 (`is_near`): larger groups would save no reads."""
    share = 1 if shape.is_near(target) else -(-shape.tiling.rows.count // shape.cuts)
    most = min(share, max(1, int(target.l2 * LEFT) // (4 * shape.slot)))
    doubled = (min(most, 2**i) for i in range(most.bit_length() + 1))
    return sorted({-(-share // -(-share // count)) for count in doubled})
