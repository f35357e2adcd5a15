"""Grid sampling: reading images and volumes between their elements, one point at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.math import floor, rint, trunc
from tinsmith.codegen.types import Ty
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import plain_strides
from tinsmith.kernels.resize_axes import weighted_sum
from tinsmith.ops.deform import MODES, REACH
from tinsmith.records import dataclass

POINT, CORNER = 6e-9, 1.2e-9
"""Seconds to locate a point, and to read one of its elements. Estimated."""
RANKS = {"nearest": (1, 2, 3), "linear": (1, 2, 3), "cubic": (1, 2)}
"""Mode -> the numbers of spatial axes for which there is code."""
A = -0.75  # the parameter of cubic interpolation, as PyTorch and ONNX Runtime have it
CUBIC = [(-4 * A, 1, 1, -4 * A), (8 * A, 0, 0, 8 * A), (-5 * A, -A - 3, -A - 3, -5 * A),
         (A, A + 2, A + 2, A)]  # fmt: skip
"""The weights of the four elements as polynomials of their distance from the point: CUBIC[p][k] is
the coefficient of power p for element k."""

Corner = tuple[Val, Val, Val]
"""(where an element is read, an index in range; whether its place is inside the image, an i1; its
weight)."""


@dataclass(frozen=True)
class Grid:
    """How an image is sampled.

    sizes    the extents of its spatial axes
    mode     "nearest", "linear" or "cubic"
    padding  what lies outside: "zeros", "border" or "reflection"
    aligned  -1 and 1 are the centres of the first and last elements, not their outer edges
    """

    sizes: tuple[int, ...]
    mode: str
    padding: str
    aligned: bool

    @property
    def reach(self) -> tuple[int, ...]:
        return REACH[self.mode]

    def steps(self) -> tuple[int, ...]:
        return plain_strides(self.sizes)

    def edges(self, size: int) -> tuple[float, float]:
        """The places on an axis of `size` elements for which the coordinates -1 and 1 stand."""
        return (0.0, size - 1.0) if self.aligned else (-0.5, size - 0.5)


@kernel("GridSample", Tier.VECTOR, dtypes="float32 float64")
def grid_sample(site: Site) -> Choice:
    """Grid sampling: the elements around a point and their weights are found once for all channels.

    Places and weights are computed in the precision of the grid, sums in that of the elements.
    """
    site.need_no_epilogue("it has no epilogue")
    x, grid = site.input(0), site.input(1)
    mode, padding = MODES[site.attr("mode")], site.attr("padding_mode")
    sizes = x.dims[2:]
    if len(sizes) not in RANKS[mode] or grid.dtype.name not in ("float32", "float64"):
        raise Skip(f"x is {x.type}, the grid {grid.type}, the mode {mode}")
    if not x.type.size or not site.out.type.size:
        raise Skip("there is nothing to sample")
    over = Grid(sizes, mode, padding, bool(site.attr("align_corners")))
    points = site.out.dims[2:]
    rows, length = points[0], prod(points[1:])

    def emit(em: Emit) -> None:
        b = em.b
        with b.loop(em.begin, em.end) as tile, b.loop(0, length) as j:
            n, point = tile // rows, tile % rows * length + j
            _point(em, over, n, point, rows * length)

    count, corners = x.dims[0] * rows * length, len(over.reach) ** len(sizes)
    cost = 1e-6 + count * (POINT * corners + CORNER * corners * x.dims[1])
    phases = (Phase(x.dims[0] * rows, emit),)
    return Choice(cost, (PLAIN, PLAIN), (PLAIN,), phases, detail=f"{mode}, {padding}")


def _point(em: Emit, over: Grid, n: Val, point: Val, points: int) -> None:
    """Emit the results of all channels at number `point` of the `points` points of image n."""
    b, source, table = em.b, em.input(0), em.input(1)
    channels, rank = em.site.input(0).dims[1], len(over.sizes)
    size = prod(over.sizes)
    at = table.pointer + (n * points + point) * rank
    places = [_place(over, (at + (rank - 1 - a)).load(), s) for a, s in enumerate(over.sizes)]
    picture = (source.pointer + n * (channels * size)).fixed()
    out = (em.outs[0].pointer + n * (channels * points) + point).fixed()

    def inner() -> None:
        sums = _Inside(b, over, places, picture.elem)
        with b.loop(0, channels) as c:
            (out + c * points).store(sums.at((picture + c * size + sums.start).fixed()))

    def edge() -> None:
        corners = _corners(b, over, places, picture.elem)
        with b.loop(0, channels) as c:
            plane, total = (picture + c * size).fixed(), b.const(0, picture.elem)
            for where, inside, weight in corners:
                value = inside.select((plane + where).load(), 0.0)
                total = value.fma(weight, total)
            (out + c * points).store(total)

    first, last = over.reach[0], over.reach[-1]
    if any(s < len(over.reach) for s in over.sizes):
        edge()
    else:
        tests = [(p >= float(-first)) & (p < float(s - last))
                 for p, s in zip(places, over.sizes, strict=True)]  # fmt: skip
        b.choose(reduce(Val.__and__, tests), inner, edge)


def _place(over: Grid, g: Val, size: int) -> Val:
    """The place on an axis, in elements, for which coordinate g in [-1, 1] stands; a whole number
    in the mode "nearest"."""
    place = (g + 1.0) * 0.5 * float(size - 1) if over.aligned else ((g + 1.0) * size - 1.0) * 0.5
    return rint(place) if over.mode == "nearest" else place


def _weights(over: Grid, rest: Val, elem: Ty) -> Val:
    """The weights, of type `elem`, of the elements around a place along one axis, as a vector with
    a lane for each of `over.reach` (in the mode "nearest" the scalar 1); `rest` is the distance
    from the element at or below the place."""
    b, lanes, own = rest.b, len(over.reach), rest.ty
    if over.mode == "nearest":
        return b.const(1, elem)
    rest = rest.splat(lanes)
    if over.mode == "linear":
        return (rest * b.vector((-1, 1), own) + b.vector((1, 0), own)).to(elem.kind)
    distance = rest * b.vector((1, 1, -1, -1), own) + b.vector((1, 0, 1, 2), own)
    total = b.vector(CUBIC[3], own)
    for row in CUBIC[2::-1]:
        total = total * distance + b.vector(row, own)
    return total.to(elem.kind)


class _Inside:
    """Emits the sums at a point if all elements to be read lie inside the image: those along the
    last axis are read as one vector. `start`: the offset of the first one in a channel's plane."""

    def __init__(self, b: Builder, over: Grid, places: Sequence[Val], elem: Ty) -> None:
        lows = [floor(p) for p in places]
        weights = [_weights(over, p - low, elem) for p, low in zip(places, lows, strict=True)]
        self.lanes, self.start = len(over.reach), b.index(0)
        for low, step in zip(lows, over.steps(), strict=True):
            self.start = self.start + (low.to("i64") + over.reach[0]) * step
        *outer, self.inner = weights
        self.rows: list[tuple[int, Val | None]] = []
        for picks in product(range(self.lanes), repeat=len(outer)):
            steps = zip(picks, over.steps(), strict=False)
            shares = [w.part(k, 1) for w, k in zip(outer, picks, strict=True)]
            share = reduce(Val.__mul__, shares).splat(self.lanes) if shares else None
            self.rows.append((sum(k * step for k, step in steps), share))

    def at(self, first: Ptr) -> Val:
        """The weighted sum in one channel's plane; `first` points to the first element to be
        read."""
        terms = (((first + distance).load(self.lanes), share) for distance, share in self.rows)
        total = weighted_sum(terms)
        return (total * self.inner).reduce("add") if self.lanes > 1 else total


def _corners(b: Builder, over: Grid, places: Sequence[Val], elem: Ty) -> list[Corner]:
    """The elements that are read around a point, each as (offset in a channel's plane, whether its
    place, as the padding moves it, is inside the image, weight). All offsets are in range."""
    axes = [_axis(over, place, size, elem) for place, size in zip(places, over.sizes, strict=True)]
    steps, found = over.steps(), []
    for corner in product(*axes):
        where, inside, weight = corner[0]
        where = where * steps[0]
        for (place, within, share), step in zip(corner[1:], steps[1:], strict=True):
            where, inside, weight = where + place * step, inside & within, weight * share
        found.append((b.index(where), inside, weight))
    return found


def _axis(over: Grid, place: Val, size: int, elem: Ty) -> list[Corner]:
    """The elements along one axis, of `size` elements, that are read around a place, each as
    (index, whether its place, as the padding moves it, is inside, weight)."""
    low, high = over.edges(size)
    if over.padding == "border" and over.mode != "cubic":
        place = ((place < low) | (place > high)).select(_clip(place, size), place)
    elif over.padding == "reflection":
        place = _reflect(place, low, high)
    first = floor(place)
    weights = _weights(over, place - first, elem)
    return [
        _end(over, first + float(o), size, weights.part(k, 1)) for k, o in enumerate(over.reach)
    ]


def _clip(place: Val, size: int) -> Val:
    """`place` limited to [0, size - 1]; NaN stays NaN."""
    place = (place < 0.0).select(0.0, place)
    return (place > size - 1.0).select(size - 1.0, place)


def _reflect(place: Val, low: float, high: float) -> Val:
    """`place` reflected at the borders of [low, high] until it is inside; low if both are equal."""
    span = high - low
    if span == 0:
        return place.b.const(low, place.ty)
    before, behind = place < low, place > high
    beyond = before.select(low - place, place - high)
    turns = floor(beyond / span)
    rest, odd = beyond - turns * span, (turns - floor(turns * 0.5) * 2.0).ne(0.0)
    near, far = (before ^ odd).select(low + rest, high - rest), before | behind
    return far.select(near, place)


def _end(over: Grid, place: Val, size: int, weight: Val) -> Corner:
    if over.padding == "border":
        place = _clip(place, size)
    elif over.padding == "reflection":
        place = trunc(_reflect(place, *over.edges(size)))
    inside = (place >= 0.0) & (place < float(size))
    return inside.select(place, 0.0).to("i64"), inside, weight
