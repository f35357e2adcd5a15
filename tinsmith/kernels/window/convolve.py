"""The loops of convolutions whose lanes are output channels: a tile's pixels are broadcast and
multiplied by the weights of a panel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import LINE, block_of
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.contract import Fetch
from tinsmith.kernels.window.geometry import Geometry, image_of
from tinsmith.kernels.window.tiles import Place, Tiling, pieces_before, sweep, tiling
from tinsmith.kernels.window.ways import Blocked, Sums
from tinsmith.records import dataclass
from tinsmith.sizes import typical

EARLIER = 2048  # weights by which a stream of them is prefetched before its use (estimated)


MOST_HALVES = 3  # vectors of half a block that a panel may have instead (estimated)


def halved(target: Target, lanes: tuple[int, ...]) -> tuple[int, ...]:
    """The lanes of a narrow panel that ends in half a vector, as half vectors only: multiply-adds
    of one width keep two pipes busy that a whole vector takes together."""
    half = lanes[-1]
    count = sum(lanes) // half
    if target.pipes > 1 or half == lanes[0] or count > MOST_HALVES:
        return lanes
    return (half,) * count


def joined(values: list[Val], lanes: tuple[int, ...], width: int) -> list[Val]:
    """The accumulators of all pixels, where neighbouring half vectors are put together as whole
    vectors."""
    if len(lanes) == 1 or lanes[0] == width:
        return values
    found: list[Val] = []
    for p in range(0, len(values), len(lanes)):
        parts = values[p : p + len(lanes)]
        for low, high in zip(parts[::2], [*parts[1::2], None], strict=False):
            found.append(low if high is None else low.shuffle(high, range(width)))
    return found


@dataclass(frozen=True)
class Following:
    """How the tiles of a panel prefetch weights from an outer cache while they compute.

    Together they fetch the weights of the next panel, each an equal share of the lines; a loop body
    of a tile fetches its share of the body's `lines`. Where that share would be all of them, or the
    next panel is not to be fetched, a tile fetches its own weights a little before it needs them.

    distance  elements from a weight of this panel to that of the next; 0: that is not to be fetched
    lines     cache lines of weights that a loop body reads
    among     how often a panel's turn comes (once for each band or thread): so many times fewer
              tiles are computed between the beginnings of two panels
    """

    distance: int
    lines: int
    among: int

    def of(self, plan: Tiling, r: Val | int, c: Val | int, high: int, wide: int) -> Fetch:
        """What the tile at (r, c) prefetches."""
        share = typical(-(-self.lines * self.among // (plan.row_units * plan.col_units)))
        if share >= self.lines or not self.distance:
            return Fetch(EARLIER, self.lines)
        down = pieces_before(plan.rows, r, high)
        number = down * plan.col_units + pieces_before(plan.cols, c, wide)
        return Fetch(number * share % self.lines * LINE + self.distance, share)


def following(target: Target, way: Blocked, taps: int, among: int) -> Following | None:
    """What the tiles of a panel prefetch; None if all weights fit into a quarter of L2. `among` as
    in `Following`."""
    lanes = sum(way.lanes)
    panel = way.stored * taps * lanes
    if 4 * panel * way.panels.total <= target.l2 // 4:
        return None
    near = 4 * panel <= target.l2 // 4  # so that it pushes out nothing that is in use
    return Following(panel if near else 0, -(-way.blocks.step * lanes // LINE), among)


def convolve(
    em: Emit, geo: Geometry, band: tuple[Val | int, int], sums: Sums, x: Ptr, sink: Place,
    ahead: Following | None = None, plan: Tiling | None = None,
) -> None:  # fmt: skip
    """Compute one band of the outputs of one image for one panel of output channels.

    band    (which, of how many)
    x       where the image's first window begins
    sink    takes the results; it gets whole blocks even where the panel computes in half vectors
    ahead   what tiles prefetch, or None
    plan    how rows and columns are cut into tiles; by default the best way
    """
    b, lanes, image = em.b, sums.lanes, image_of(em.input(0), geo)
    _, down, across = image.stride
    plan = plan or tiling(em.target, geo.out[1], geo.out[2], lanes, max(1, sums.depth))
    x, w = x.fixed(), sums.weights.fixed()

    def planes(d: Val | int) -> None:
        def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
            spots = grid(high, wide)
            fetch = None if ahead is None else ahead.of(plan, r, c, high, wide)
            if plan.wrap:
                spots = [((c + j) // plan.wrap, (c + j) % plan.wrap) for j in range(wide)]
                r = c = 0
            corner = image.window(x, d, r, c)
            pixels = [i * down + j * across for i, j in spots]
            done = sums.start() * len(pixels)
            if geo.taps:
                done = sums.reduce(corner, w, done, pixels, fetch)
            done = joined(done, lanes, block_of(em.target))
            store_tile(sink.at(0, 0, d, r, c), done, spots, len(done) // len(spots))

        sweep(b, plan, *band, tile)

    run(b, 0, geo.out[0], planes)


def store_tile(
    sink: Place,
    values: Sequence[Val],
    spots: Iterable[tuple[Val | int, Val | int]],
    vectors: int,
) -> None:
    """Store the results of a tile: `vectors` of each pixel, one pixel after the other. `spots` are
    the (row, column) of the pixels from the place of `sink`."""
    for p, (i, j) in enumerate(spots):
        far = isinstance(i, Val) or isinstance(j, Val)
        place, i, j = (sink.at(0, 0, 0, i, j), 0, 0) if far else (sink, i, j)
        for o in range(vectors):
            place.put(values[p * vectors + o], 0, o, 0, i, j)


def grid(high: int, wide: int) -> list[tuple[Val | int, Val | int]]:
    """The rows and columns of a rectangle of pixels."""
    return list(itertools.product(range(high), range(wide)))
