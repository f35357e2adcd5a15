"""The transform of M to results, one tile and one block of output channels at a time.

So that a tile is not spilled, a small group of rows of its results is computed at a time: all
columns of products are transformed to these rows, then each row along itself. Reading a product
once for each group is cheaper than storing sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.stages import stage
from tinsmith.kernels.window.tiles import Sink
from tinsmith.kernels.winograd.frames import Rooms, extent_inside, put_inside, result_at
from tinsmith.kernels.winograd.outliers import Sizes
from tinsmith.kernels.winograd.program import result_program, run
from tinsmith.kernels.winograd.repair import repair
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.records import dataclass

MOST_UNROLLED = 6
"""An epilogue of up to so many functions (exp, max, ...) is emitted for every result of a tile, a
longer one once, in a loop over the results. Estimated. (`HEAVY_FLOPS` in `kernels/dot` is a like
bound, in flops.)"""


def output_stage(em: Emit, plan: WinogradPlan, rooms: Rooms, k0: Val, k1: Val, *tiles: Val) -> None:
    """Emit code that makes the results of the tiles [t0, t1) and the output blocks [k0, k1), with
    bias and epilogue, and stores them; those of outliers are made by `repair`. `tiles` is (t0, t1,
    base): `base` is the number of the first tile that V and M hold."""
    b, width, (t0, t1, base), space = em.b, plan.width, tiles, rooms.space(em, plan)
    edge, products, sizes = rooms.edge(em, plan), space + plan.m_start, Sizes(plan, space)
    again = stage(
        em, "repair", "tile_k tile_n tile_y tile_x", lambda em, *at: repair(em, plan, rooms, *at)
    )
    sink = Sink(em, plan.geo)
    limit = sizes.limit()
    with b.loop(k0, k1) as k:
        m = products + k * plan.block_step
        bias = (em.packed[1] + k * width).load(width)
        with b.loop(t0, t1) as t:
            n, i, j = plan.coordinates(t)
            y, x = plan.vertical.start(i), plan.horizontal.start(j)
            at = (m + (t - base) * width).fixed()
            out = sink.at(*result_at(plan, n, k), y, x)
            tile = Tile(em, plan, at, bias, out, edge, y, x)
            b.choose(sizes.are_fit(t - base, limit), tile.finish, partial(again, k, n, y, x))


@dataclass(frozen=True)
class Tile:
    """Emits the results of one tile and one block of output channels: transforms its `products` (in
    M), adds `bias` and puts them to `out`. (y, x) is the place of the tile's first result; a tile
    that extends beyond the image goes through `edge`."""

    em: Emit
    plan: WinogradPlan
    products: Ptr
    bias: Val
    out: Sink
    edge: Ptr
    y: Val | int
    x: Val | int

    def finish(self) -> None:
        """Emit the epilogue and the stores of all results. A tile that extends beyond the image, or
        has an epilogue of more than MOST_UNROLLED functions, is first stored to `edge`, for a loop
        over the results inside."""
        b, plan, out = self.em.b, self.plan, self.plan.geo.out
        # Tiles that lie wholly in the image begin below these.
        high = out[1] - (plan.rows.m - 1) * plan.vertical.dilation
        wide = out[2] - (plan.cols.m - 1) * plan.horizontal.dilation
        never = not plan.is_free and min(high, wide) <= 0
        if never or epilogue_functions(self.em) > MOST_UNROLLED:
            self._indexed()
        elif plan.vertical.even and plan.horizontal.even:
            self._straight()
        else:
            inside = (b.index(self.y) < high) & (b.index(self.x) < wide)
            b.choose(inside, self._straight, self._indexed)

    def _straight(self) -> None:
        """Emit the stores of all results from registers."""
        apart, beside = self.plan.vertical.dilation, self.plan.horizontal.dilation
        for i, j, v in self._results():
            self.out.put(v, 0, 0, 0, i * apart, j * beside)

    def _indexed(self) -> None:
        """Emit the stores of the results inside the image, by way of `edge`."""
        b, plan, width = self.em.b, self.plan, self.plan.width
        row = plan.cols.m * width
        for i, j, v in self._results():
            (self.edge + (i * row + j * width)).store(v)
        extent = extent_inside(b, plan, self.y, self.x)
        put_inside(b, plan, extent, self.out, lambda i, j: self.edge + i * row + j * width)

    def _results(self) -> Iterator[tuple[int, int, Val]]:
        """Yield (i, j, result + bias) for every result (R X C^T)[i, j] of the tile, where X are its
        products, and R and C the transforms of rows and columns."""
        rows, cols = result_program(self.plan.rows), result_program(self.plan.cols)
        for group in rows.groups:
            columns = [run(rows, partial(self._product, q=q), group) for q in range(cols.inputs)]
            for i, row in zip(group, zip(*columns, strict=True), strict=True):
                for j, value in enumerate(run(cols, row.__getitem__)):
                    yield i, j, value + self.bias

    def _product(self, p: int, q: int) -> Val:
        """Load the tile's products at position (p, q): a vector."""
        position = p * self.plan.cols.products + q
        return (self.products + position * self.plan.m_step).load(self.plan.width)


def epilogue_functions(em: Emit) -> int:
    """How many functions the epilogue applies to each result; 0 without one."""
    epilogue = em.site.epilogue
    return 0 if epilogue is None else sum(bool(e.args) for e in epilogue.nodes())
