"""Windows of a convolution of packed elements: where they lie, and code for their products with
weights and for plain sums of their elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import I32
from tinsmith.kernels._kernel import Emit
from tinsmith.kernels.dot.skeleton import Ahead, Operands, Tile, product
from tinsmith.kernels.walk import Position
from tinsmith.kernels.window.geometry import Triple, image_of
from tinsmith.kernels.window.integers_plan import Plan
from tinsmith.records import dataclass

SUMMED = 4  # lanes in which a sum of a window is computed, each the same


@dataclass(frozen=True)
class Source:
    """The input from which windows are read, packed in scratch or in place; distances are in 32-bit
    lanes. In place, an image has several groups; packed, each group is an image of its own.

    first  the address at which the first window of the first image begins
    image  from an image to the next
    group  from a group of an image to the next, if the input is in place
    step   from a pixel to the next along (depth, height, width)
    block  from a block of channels to the next, if the input is in place
    """

    first: Ptr
    image: int
    group: int
    step: Triple
    block: int

    def at(self, plan: Plan, image: Position, run: Position, pixel: Position) -> Ptr:
        """The address at which the window of pixel number `pixel` of a run begins. `image` is the
        number among the groups of all images (`Plan.images`)."""
        geo, groups = plan.geo, plan.cut.groups if plan.direct else 1
        at = self.first + image % groups * self.group + image // groups * self.image
        if not plan.flat:
            d, h = (0, run) if geo.out[0] == 1 else (run // geo.out[1], run % geo.out[1])
            at = at + d * (geo.stride[0] * self.step[0]) + h * (geo.stride[1] * self.step[1])
        return (at + pixel * (geo.stride[2] * self.step[2])).fixed()


def source_of(em: Emit, plan: Plan) -> Source:
    """The `Source` of a plan: in scratch, if the input is packed, else in place."""
    if not plan.direct:
        _, height, width = plan.size
        lanes = plan.cut.lanes
        step = height * width * lanes, width * lanes, lanes
        return Source(em.scratch.cast(I32), plan.image, 0, step, 0)
    at, g = image_of(em.input(0), plan.geo), plan.row.group
    d, h, w = at.step
    step, group = (d // g, h // g, w // g), plan.cut.inputs // plan.block * at.plane // g
    return Source(at.corner(0).cast(I32), at.batch // g, group, step, at.plane // g)


def contract(
    ways: Stretches, height: int, widths: tuple[int, ...],
    ones: bool = False, start: list[Val] | None = None, ahead: tuple[Ahead, ...] = (),
) -> Tile:  # fmt: skip
    """Emit the products of a tile, summed over whole windows: `height` pixels, the first of which
    has the window of `ways`, by vectors of columns of `widths` lanes. Returns for each pixel its
    vectors of sums. With `ones`, weights count as 1. `start`: the vectors with which the sums of
    each pixel begin, None for 0; `ahead`: what to prefetch."""
    b, row = ways.first.a.b, ways.first.row
    at = replace(ways.first, row=row.fold if ones else row, ones=ones, ahead=ahead)
    if ways.count == 1:
        add = None if start is None else [start] * height
        return product(b, at, height, widths, add=add)
    n = len(widths)

    def tile(values: list[Val]) -> Tile:
        return [values[i * n : (i + 1) * n] for i in range(height)]

    carry = (start or [b.zero(row.sums.x(w)) for w in widths]) * height
    with b.loop(0, ways.count, carry=carry) as loop:
        here = at.at(ways.places(loop.index))
        sums = product(b, here, height, widths, add=tile(loop.vars))
        loop.next([v for line in sums for v in line])
    return tile(loop.out)


class Stretches:
    """The stretches of k of which the window at `a`, and a panel of `size` columns at `weights`,
    consist. `count`: how many there are; `first`: the operands of the first one."""

    def __init__(self, em: Emit, plan: Plan, a: Ptr, weights: Ptr, size: int) -> None:
        source, d = source_of(em, plan), plan.geo.dilation
        self._levels = [(plan.blocks, source.block)]
        self._levels += [(n, k * s) for n, k, s in zip(plan.taps, d, source.step, strict=True)]
        self.count = prod(n for n, _ in self._levels)
        apart = plan.geo.stride[2] * source.step[2]
        self.first = Operands(a, apart, weights, size, plan.depth, row=plan.row)

    def places(self, number: Val) -> list[Val]:
        """The addresses of both operands of a stretch, by its number, as `Operands.at` wants."""
        first = self.first
        away = number * (first.depth * first.b_row)
        return [(first.a + self.away(number)).value, (first.b + away).value]

    def away(self, number: Val) -> Position:
        """The distance, in 32-bit lanes, of a stretch from the first one of its window."""
        t: Position = number
        place: Position = 0
        for extent, step in reversed(self._levels):
            if extent > 1:
                place = t % extent * step + place if extent < self.count else t * step + place
                t = t // extent if extent < self.count else 0
        return place


def sum_windows(em: Emit, plan: Plan) -> None:
    """Emit the phase that sums the elements of each window, to scratch; a tile is a run of
    pixels."""
    b, source = em.b, source_of(em, plan)
    with b.loop(em.begin, em.end) as t:
        to = (em.scratch.cast(I32) + t * plan.pixels + plan.sums_at).fixed()
        with b.loop(0, plan.pixels) as i:
            here = source.at(plan, t // plan.runs, t % plan.runs, i)
            ways = Stretches(em, plan, here, here, SUMMED)
            (to + i).store(contract(ways, 1, (SUMMED,), ones=True)[0][0].lane(0))
