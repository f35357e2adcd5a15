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
    """The order of a direct convolution's tiles (see `each_panel`), and who takes which.

    count   bands of an image
    parts   portions of the batch, or bands, for each of which all panels are done
    near    whether threads share the bands of each panel, rather than the panels
    passes  how often a panel's weights are gone through
    again   bytes that are fetched again from beyond the second-level cache
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
    """The order of `panels` of each group in at most so many bands; `weights` is in bytes."""
    with estimating():
        found = _order_of(site, geo, groups, panels, typical(most), weights, flops)
    batch, parts = typical(geo.batch), typical(found.parts)
    if isinstance(geo.batch, Size):  # whole images, or bands of each
        parts = geo.batch * (parts // batch) if parts > batch else 1
    tiles = geo.batch * groups * panels * found.count
    return replace(found, tiles=tiles, parts=parts)


def _order_of(
    site: Site, geo: Geometry, groups: int, panels: int, most: int, weights: int, flops: float
) -> Order:
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
    """Into how many portions a batch is cut (groups of images, or bands of each), all panels for
    one after the other, and the bytes that are fetched again from beyond the second-level cache:
    weights that a portion pushes out, or all of a portion that is too large."""
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
    """Into how many bands an image is cut whose input every panel would fetch again from beyond
    the second-level cache, and what is fetched again then: weights for every band, or, where that
    is more, the input for every panel of one band."""
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
