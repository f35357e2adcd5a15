"""The loops of convolutions whose lanes are output channels: the pixels of a tile are broadcast and
multiplied by weight vectors of a panel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.geometry import Geometry, image_of
from tinsmith.kernels.window.tiles import Place, Tiling, sweep, tiling
from tinsmith.kernels.window.ways import Sums

MOST_HALVES = 3  # vectors of half a block that a panel may have instead (estimated)


def halved(target: Target, lanes: tuple[int, ...]) -> tuple[int, ...]:
    """The vectors of a panel of `lanes`, all as wide as the last: (16, 8), which ends in half a
    vector, becomes (8, 8, 8), for targets that compute two halves in the time of a whole. Unchanged
    are panels of whole vectors, those that would have more than MOST_HALVES halves, and all on
    other targets."""
    half = lanes[-1]
    count = sum(lanes) // half
    if target.pipes > 1 or half == lanes[0] or count > MOST_HALVES:
        return lanes
    return (half,) * count


def joined(values: list[Val], lanes: tuple[int, ...], width: int) -> list[Val]:
    """`values`, the accumulators of all pixels, vectors of `lanes` for each, as vectors of `width`
    lanes for stores: neighbouring half vectors of a pixel are joined, an odd last one stays
    half."""
    if len(lanes) == 1 or lanes[0] == width:
        return values
    found: list[Val] = []
    for p in range(0, len(values), len(lanes)):
        parts = values[p : p + len(lanes)]
        for low, high in zip(parts[::2], [*parts[1::2], None], strict=False):
            found.append(low if high is None else low.shuffle(high, range(width)))
    return found


def convolve(
    em: Emit, geo: Geometry, band: tuple[Val | int, int], sums: Sums, x: Ptr, sink: Place,
    plan: Tiling | None = None,
) -> None:  # fmt: skip
    """Emit the code of one band of the outputs of one image, for one panel of output channels.

    band   (its number, how many there are)
    x      the address at which the image's first window begins
    sink   stores the results, in whole blocks: half vectors of sums are joined before
    plan   how rows and columns are cut into tiles; None: as is cheapest
    """
    b, lanes, image = em.b, sums.lanes, image_of(em.input(0), geo)
    _, down, across = image.stride
    plan = plan or tiling(em.target, geo.out[1], geo.out[2], lanes, max(1, sums.depth))
    x, w = x.fixed(), sums.weights.fixed()

    def planes(d: Val | int) -> None:
        def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
            spots = grid(high, wide)
            fetch = None if sums.ahead is None else sums.ahead.of(plan, r, c, high, wide)
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
    sink: Place, values: Sequence[Val], spots: Iterable[tuple[Val | int, Val | int]], vectors: int
) -> None:
    """Store the results of a tile: `values` has `vectors` vectors of each pixel, one pixel after
    the other. `spots` are the (row, column) of each pixel, counted from where `sink` stands."""
    for p, (i, j) in enumerate(spots):
        far = isinstance(i, Val) or isinstance(j, Val)
        place, i, j = (sink.at(0, 0, 0, i, j), 0, 0) if far else (sink, i, j)
        for o in range(vectors):
            place.put(values[p * vectors + o], 0, o, 0, i, j)


def grid(high: int, wide: int) -> list[tuple[Val | int, Val | int]]:
    """The (row, column) of every pixel of a rectangle, row by row."""
    return list(itertools.product(range(high), range(wide)))
