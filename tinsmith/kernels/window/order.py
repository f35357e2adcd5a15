"""The order in which a convolution takes its tiles, so that little is read again from memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tinsmith.codegen.target import Target
from tinsmith.conditions import estimating
from tinsmith.kernels._kernel import Site
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.tiles import bands
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical

MOST_TAPS = 4  # with more, the arithmetic hides where the input comes from (estimated)
MOST_BANDS = 8  # of an image (estimated)
KEPT = 0.6  # share of the second-level cache for what is used again (estimated)


@dataclass(frozen=True)
class Order:
    """The order in which a direct convolution takes its tiles (see `each_panel`), and how threads
    share them.

    tiles   how many there are: images * groups * panels * count
    count   bands of an image
    parts   portions into which all images, or all bands of all images, are divided; all panels are
            computed for one portion before the next
    near    True: threads share the bands of each panel; False: they share the panels
    passes  how often the weights of a panel are read: once for each band if portions are bands, for
            each thread if `near`, else once
    again   bytes that are read a second time from beyond the second-level cache
    """

    tiles: int
    count: int
    parts: int
    near: bool
    passes: int
    again: float


def order_of(
    site: Site, geo: Geometry, groups: int, panels: int, most: int, weights: int, flops: float
) -> Order:
    """The order of tiles that is estimated as fastest. `panels`: panels of each group; `most`: the
    most bands of an image; `weights`: bytes of all weights; `flops`: of the whole convolution."""
    with estimating():
        found = _order_of(site, geo, groups, panels, typical(most), weights, flops)
    batch, parts = typical(geo.batch), typical(found.parts)
    if isinstance(geo.batch, Size):  # whole images, or bands of each
        parts = geo.batch * (parts // batch) if parts > batch else 1
    tiles = geo.batch * groups * panels * found.count
    return replace(found, tiles=tiles, parts=parts, again=typical(found.again))


def _order_of(
    site: Site, geo: Geometry, groups: int, panels: int, most: int, weights: int, flops: float
) -> Order:
    """The `Order` that is estimated as fastest; the arguments are those of `order_of`. Where sizes
    are free it counts with the example's numbers; `order_of` then puts the sizes back."""
    sets = geo.batch * groups * panels
    read = 4.0 * geo.batch * geo.channels * prod(geo.size)
    planes = geo.batch * (geo.channels + geo.out_channels) // block_of(site.target)
    tiles = sets * bands(sets, most, flops=flops)
    near = by_positions(
        site, site.input(0), read, flops, (most, tiles), planes=planes, weights=weights
    )
    count = bands(sets, most, site.threads if near else 1, flops)
    if groups > 1 or panels == 1:
        parts, again = 1, 0
    else:
        parts, again = portions(site.target, geo, weights, panels)
    within = parts > geo.batch  # portions are bands
    if within:
        count = min(max(count, parts // geo.batch), most)
    near = near and parts == 1
    passes = count if within else site.threads if near else 1
    return Order(sets * count, count, parts, near, passes, again)


def portions(target: Target, geo: Geometry, weights: int, panels: int) -> tuple[int, int]:
    """Choose the number of portions (of images, or bands of each image) for which all panels are
    computed in turn. Returns (portions, bytes that are read again from beyond the second-level
    cache): the weights, where they do not stay beside a portion, and the input, where a portion
    does not stay while all panels read it."""
    if geo.batch == 1:
        return cached_bands(target, geo, weights, panels)
    inputs, kept = geo.batch * input_bytes(geo), KEPT * target.l2

    def again(count: int) -> int:
        portion = inputs // count
        found = weights * (count - 1) if weights + portion > kept else 0
        return found + (inputs * (panels - 1) if portion > kept else 0)

    most = MOST_BANDS if geo.taps <= MOST_TAPS else 1
    counts = [n for n in range(1, geo.batch) if geo.batch % n == 0]
    counts += [geo.batch * n for n in range(1, most + 1)]
    best = min(counts, key=again)
    return best, again(best)


def cached_bands(target: Target, geo: Geometry, weights: int, panels: int) -> tuple[int, int]:
    """As `portions`, for a single image: (bands, bytes that are read again from beyond the
    second-level cache); for each band all panels are computed in turn. One band if the image stays
    in that cache while all panels read it, if there are so many taps that arithmetic hides the
    reads, or if reading the weights again for every band saves too little."""
    nbytes = input_bytes(geo)
    if geo.taps > MOST_TAPS or nbytes < KEPT * target.l2:
        return 1, 0
    count = -(-nbytes // (target.l2 // 4))
    again = weights * (count - 1) if weights > target.l2 // 2 else 0
    whole = nbytes * (panels - 1)
    return (count, again) if 2 * again < whole else (1, whole)


def input_bytes(geo: Geometry) -> int:
    """Bytes of the rows of one float32 image that windows read."""
    lines = min(geo.size[1], geo.out[1] * geo.kernel[1])
    return 4 * geo.channels * geo.size[0] * lines * geo.size[2]
