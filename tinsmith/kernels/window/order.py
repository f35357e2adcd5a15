"""The order of the tiles of a convolution: images, bands of rows, panels; what is fetched again."""

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
    """The order in which a direct convolution's tiles are taken (see `each_panel`), and what
    threads share.

    tiles   how many there are: images * groups * panels * count
    count   bands of an image
    parts   portions of the batch (if more than images: of bands), for each of which all panels are
            computed before the next
    near    True: threads share the bands of each panel; False: they share the panels
    passes  how often the weights of a panel are read: once for each band or thread that comes to it
    again   bytes that are read again from beyond the second-level cache
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
    """The order for `panels` panels of each group and at most `most` bands of an image; `weights`
    are bytes, `flops` those of the whole convolution."""
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
    """What `order_of` gives, with the example's numbers for free sizes."""
    sets = geo.batch * groups * panels
    read = 4.0 * geo.batch * geo.channels * prod(geo.size)
    planes = geo.batch * (geo.channels + geo.out_channels) // block_of(site.target)
    tiles = sets * bands(sets, most, flops=flops)
    near = by_positions(
        site, site.input(0), read, flops, most, tiles, planes=planes, weights=weights
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
    """Into how many portions a batch is cut (groups of images, or bands of each), for each of which
    all panels are computed before the next; and how many bytes are then read again from beyond the
    second-level cache: the weights, which a portion evicts, or a portion that is too large to
    stay."""
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
    """Into how many bands an image is cut that is too large to stay in the second-level cache while
    all panels read it, and how many bytes are then read again from beyond it: the weights for every
    band, or, where that is more, the input of every panel within a band."""
    nbytes = input_bytes(geo)
    if geo.taps > MOST_TAPS or nbytes < KEPT * target.l2:
        return 1, 0
    count = -(-nbytes // (target.l2 // 4))
    again = weights * (count - 1) if weights > target.l2 // 2 else 0
    whole = nbytes * (panels - 1)
    return (count, again) if 2 * again < whole else (1, whole)


def input_bytes(geo: Geometry) -> int:
    """Bytes of one image, of the rows that windows reach."""
    lines = min(geo.size[1], geo.out[1] * geo.kernel[1])
    return 4 * geo.channels * geo.size[0] * lines * geo.size[2]
