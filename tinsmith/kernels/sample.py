"""Reading pictures and volumes between their elements: grid sampling, one point at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import floor, rint
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel

POINT, CORNER = 6e-9, 1.2e-9  # seconds to place a point, and to read one element of a corner
RANKS = (1, 2, 3)
NAMES = {"bilinear": "linear"}

Corner = tuple[Val, Val, Val]
"""Where it is read (in range), whether it lies inside, its weight."""


@dataclass(frozen=True)
class Grid:
    """What is sampled: sizes of the axes, and how places are understood."""

    sizes: tuple[int, ...]
    nearest: bool
    border: bool
    aligned: bool

    def steps(self) -> list[int]:
        return [prod(self.sizes[a + 1 :]) for a in range(len(self.sizes))]


@kernel("GridSample", Tier.VECTOR, dtypes="float32")
def grid_sample(site: Site) -> Choice:
    """Linear or nearest: the corners around a point are found once, for all channels."""
    if site.extras or site.epilogue is not None:
        raise Skip("it has no epilogue")
    x, grid = site.input(0), site.input(1)
    mode = NAMES.get(site.attr("mode"), site.attr("mode"))
    padding = site.attr("padding_mode")
    sizes = x.dims[2:]
    if mode not in ("linear", "nearest") or padding == "reflection":
        raise Skip(f"the mode is {mode}, the padding {padding}")
    if len(sizes) not in RANKS or grid.dtype != x.dtype:
        raise Skip(f"x is {x.type}, the grid {grid.type}")
    if not x.type.size or not site.out.type.size:
        raise Skip("there is nothing to sample")
    over = Grid(sizes, mode == "nearest", padding == "border", bool(site.attr("align_corners")))
    points = site.out.dims[2:]
    rows, length = points[0], prod(points[1:])

    def emit(em: Emit) -> None:
        b = em.b
        with b.loop(em.begin, em.end) as tile, b.loop(0, length) as j:
            n, point = tile // rows, tile % rows * length + j if rows > 1 else j
            _point(em, over, n, point, rows * length)

    count, corners = x.dims[0] * rows * length, 1 if over.nearest else 2 ** len(sizes)
    cost = 1e-6 + count * (POINT * corners + CORNER * corners * x.dims[1])
    phases = (Phase(x.dims[0] * rows, emit),)
    return Choice(cost, (PLAIN, PLAIN), (PLAIN,), phases, detail=f"{mode}, {padding}")


def _point(em: Emit, over: Grid, n: Val, point: Val, points: int) -> None:
    """All channels of one point of one picture."""
    b, source, table = em.b, em.ins[0], em.ins[1]
    assert source is not None and table is not None
    channels, rank = em.site.input(0).dims[1], len(over.sizes)
    size = prod(over.sizes)
    at = table.pointer + (n * points + point) * rank
    corners = _corners(b, over, at)
    picture = (source.pointer + n * (channels * size)).fixed()
    out = (em.outs[0].pointer + n * (channels * points) + point).fixed()
    with b.loop(0, channels) as c:
        plane, total = (picture + c * size).fixed(), b.const(0, F32)
        for where, inside, weight in corners:
            value = inside.select((plane + where).load(), 0.0)
            total = value.fma(weight, total)
        (out + c * points).store(total)


def _corners(b: Builder, over: Grid, at: Ptr) -> list[Corner]:
    """The elements around a place that the grid names, innermost axis first."""
    rank = len(over.sizes)
    axes = [_axis(over, (at + (rank - 1 - a)).load(), size) for a, size in enumerate(over.sizes)]
    steps, found = over.steps(), []
    for corner in product(*(range(len(ends)) for ends in axes)):
        where, inside, weight = None, None, None
        for ends, pick, step in zip(axes, corner, steps, strict=True):
            place, within, share = ends[pick]
            where = place * step if where is None else where + place * step
            inside = within if inside is None else inside & within
            weight = share if weight is None else weight * share
        assert where is not None and inside is not None and weight is not None
        found.append((b.index(where), inside, weight))
    return found


def _axis(over: Grid, g: Val, size: int) -> list[Corner]:
    """The one or two elements of an axis around the place g in [-1, 1]."""
    place = (g + 1.0) * 0.5 * float(size - 1) if over.aligned else ((g + 1.0) * size - 1.0) * 0.5
    place = rint(place) if over.nearest else place
    low, high = (0.0, size - 1.0) if over.aligned else (-0.5, size - 0.5)
    if over.border:
        clipped = _clip(place, size)
        place = ((place < low) | (place > high)).select(clipped, place)
    first = floor(place)
    if over.nearest:
        return [_end(over, first, size, place.b.const(1, F32))]
    rest = place - first
    return [_end(over, first, size, 1.0 - rest), _end(over, first + 1.0, size, rest)]


def _clip(place: Val, size: int) -> Val:
    """Into [0, size - 1]; NaN stays."""
    place = (place < 0.0).select(0.0, place)
    return (place > size - 1.0).select(size - 1.0, place)


def _end(over: Grid, place: Val, size: int, weight: Val) -> Corner:
    place = _clip(place, size) if over.border else place
    inside = (place >= 0.0) & (place < float(size))
    return inside.select(place, 0.0).to("i64"), inside, weight
