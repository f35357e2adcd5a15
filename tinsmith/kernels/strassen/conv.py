"""Pointwise convolution of channel-blocked data by Strassen's algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Phase, Site, Skip, Tier, View, kernel
from tinsmith.kernels.dot.skeleton import HEAVY, weight
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.strassen.pack import pack, pack_bias
from tinsmith.kernels.strassen.plan import Plan, Problem, best_plan, tile_size
from tinsmith.kernels.strassen.product import Block, Index, Page, Room, product_function, seven
from tinsmith.kernels.window.direct import (
    EFFICIENCY,
    PanelPlace,
    convolve,
    each_panel,
    flattened,
    over_blocks,
)
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, steps
from tinsmith.kernels.window.tiles import Panels, Sink, bands, panels
from tinsmith.kernels.window.weights import channel_blocks, pack_panels
from tinsmith.kernels.window.weights import pack_bias as pack_panel_bias
from tinsmith.kernels.winograd.stages import Stage, opaque, stage


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_strassen(site: Site) -> Choice:
    """Pointwise convolution by Strassen's algorithm: seven products for the work of eight."""
    if site.attr("group") != 1:
        raise Skip(f"group is {site.attr('group')}")
    if site.precision != "default":
        raise Skip(f"sums of inputs lose more than {site.precision} precision allows")
    geo = conv_geometry(site)
    if geo.taps != 1 or any(geo.begin) or any(geo.after):
        raise Skip("only pointwise convolutions without padding are matrix products")
    w = site.const(1, "the weights").reshape(geo.out_channels, geo.channels)
    bias = site.const(2, "the bias") if site.has(2) else None
    width = block_of(site.target)
    problem = Problem(geo.batch, prod(geo.out), geo.channels, geo.out_channels)
    if problem.pixels < 2:
        raise Skip("1 pixel has no halves")
    found = best_plan(site.target, problem, site.threads)
    if found is None:
        raise Skip(f"{geo.channels} to {geo.out_channels} channels have no halves of {width}")
    plan, cost = found
    elements = sum(count * plan.weights(sum(lanes)) for count, lanes in plan.kinds())
    packed = [
        Packed("weights", lambda: pack(w, plan), 4 * elements),
        Packed("bias", lambda: pack_bias(bias, plan)),
    ]
    made = _phases(geo, plan)
    if plan.peeled:
        phase, more, seconds = _peel(site, geo, plan, w, bias)
        made, packed, cost = (*made, phase), [*packed, *more], cost + seconds
    rooms = Rooms(site, geo, plan)
    return Choice(
        cost=cost,
        reads=site.reads([Layout(width), *(None for _ in site.inputs[1:])], Layout(width)),
        writes=(Layout(width),),
        phases=made,
        packed=tuple(packed),
        workspace=4 * rooms.room.end,
        scratch=4 * plan.groups * rooms.size if plan.shared else 0,
        detail=str(plan),
    )


class Rooms:
    """Where pages and sums lie. A block has four pages: [T1 T2], [T3 T4], and its pixels of both
    halves where the input cannot be read as one row."""

    def __init__(self, site: Site, geo: Geometry, plan: Plan) -> None:
        self.plan = plan
        self.plane = plan.half * plan.width
        self.sums = 2 * plan.depth * self.plane
        self.copy = -(-geo.channels // plan.width) * self.plane
        self.size = 2 * (self.sums + self.copy)
        start = plan.width if plan.shared else self.size
        self.room = Room(plan, tile_size(site.target, plan), start)

    def base(self, em: Emit, group: Index) -> Ptr:
        """The pages of a block."""
        if not self.plan.shared:
            return em.workspace.cast(F32)
        return (em.scratch.cast(F32) + group * self.size).fixed()


@dataclass(frozen=True)
class Place:
    """The pixels of a block: its image, and the first pixels of its halves."""

    n: Index
    first: Index
    second: Index


def _place(b: Builder, plan: Plan, group: Val) -> Place:
    block = b.index(group % plan.blocks)
    first = block * (2 * plan.half)
    second = b.minimum(first + plan.half, plan.problem.pixels - plan.half)
    return Place(group // plan.blocks if plan.problem.images > 1 else 0, first, second)


def is_flat(view: View, geo: Geometry) -> bool:
    """Whether the pixels of a view lie in one row, one vector apart."""
    strides = steps(view.spec, geo.rank)[2]
    want = (prod(geo.out[1:]), geo.out[2], 1)
    width = view.spec.layout.block
    return all(o == 1 or s == f * width for o, s, f in zip(geo.out, strides, want, strict=True))


def _phases(geo: Geometry, plan: Plan) -> tuple[Phase, ...]:
    if not plan.shared:
        return (Phase(plan.groups, lambda em: _emit_blocks(em, geo, plan)),)
    units = -(-geo.channels // plan.width) - plan.depth
    return (
        Phase(plan.groups * units, lambda em: _emit_sums(em, geo, plan, units)),
        Phase(plan.groups * plan.cut.total, lambda em: _emit_products(em, geo, plan)),
    )


def _emit_blocks(em: Emit, geo: Geometry, plan: Plan) -> None:
    """Tiles are blocks."""
    rooms = Rooms(em.site, geo, plan)
    sums, products = _sums_function(em, geo, plan), _Products(em, geo, plan, rooms)
    units = -(-geo.channels // plan.width) - plan.depth
    with em.b.loop(em.begin, em.end) as group:
        place = _place(em.b, plan, group)
        base = rooms.base(em, group)
        sums(base, 0, units, place.n, place.first, place.second)
        block = products.block(em, place, base)
        products.each(em, block, 0, plan.cut.count, True)


def _emit_sums(em: Emit, geo: Geometry, plan: Plan, units: int) -> None:
    """Tiles are (block, vector of channels)."""
    rooms, sums = Rooms(em.site, geo, plan), _sums_function(em, geo, plan)
    with em.b.loop(em.begin, em.end) as t:
        group, c = em.b.index(t // units), em.b.index(t % units)
        place = _place(em.b, plan, group)
        sums(rooms.base(em, group), c, c + 1, place.n, place.first, place.second)


def _emit_products(em: Emit, geo: Geometry, plan: Plan) -> None:
    """Tiles are (panel, block), the block innermost."""
    b, rooms = em.b, Rooms(em.site, geo, plan)
    products = _Products(em, geo, plan, rooms)
    with b.loop(em.begin, em.end) as t:
        group, panel = em.b.index(t % plan.groups), em.b.index(t // plan.groups)
        block = products.block(em, _place(b, plan, group), rooms.base(em, group))
        products.each(em, block, panel, b.minimum(panel + 1, plan.cut.count), panel)


class _Products:
    """The product functions of a kernel, and the loop over panels."""

    def __init__(self, em: Emit, geo: Geometry, plan: Plan, rooms: Rooms) -> None:
        source = em.ins[0]
        assert source is not None
        self.plan, self.geo, self.rooms = plan, geo, rooms
        self.batch, self.plane, _ = steps(source.spec, geo.rank)
        self.flat = is_flat(source, geo) and set(geo.stride) == {1}
        rooms.room.clear(em)
        self.functions = {
            lanes: product_function(
                em, plan, lanes, plan.width, rooms.room, lambda em: PixelSink(em, geo)
            )
            for _, lanes in plan.kinds()
        }

    def block(self, em: Emit, place: Place, base: Ptr) -> Block:
        plan, rooms, source = self.plan, self.rooms, em.ins[0]
        assert source is not None
        t = Page(base, rooms.plane), Page((base + rooms.sums).fixed(), rooms.plane)
        halves = place.first, place.second
        if self.flat:
            image = source.pointer + place.n * self.batch
            x = [Page((image + p * plan.width).fixed(), self.plane) for p in halves]
        else:
            copies = base + 2 * rooms.sums
            x = [Page((copies + i * rooms.copy).fixed(), rooms.plane) for i in range(2)]
        return Block((x[0], x[1]), t, halves, place.n)

    def each(self, em: Emit, block: Block, lo: Index, hi: Index, tail: Val | bool) -> None:
        """The panels [lo, hi), and the tail if it is asked for (or is panel `tail`)."""
        plan, b, weights = self.plan, em.b, em.packed[0]
        vectors, wide = len(plan.cut.main), sum(plan.cut.main)
        if plan.cut.count:
            with b.loop(lo, hi) as panel:
                at = (weights + panel * plan.weights(wide)).fixed()
                seven(
                    plan, self.functions[plan.cut.main], plan.cut.main, self.rooms.room, block,
                    at, panel * vectors,
                )  # fmt: skip
        if not plan.cut.tail:
            return

        def last() -> None:
            at = (weights + plan.cut.count * plan.weights(wide)).fixed()
            lanes = plan.cut.tail
            seven(
                plan, self.functions[lanes], lanes, self.rooms.room, block, at,
                plan.cut.count * vectors,
            )  # fmt: skip

        if isinstance(tail, bool):
            last()
        else:
            with b.when(tail.eq(plan.cut.count)):
                last()


class PixelSink:
    """Finishes tiles of pixels that are counted through all spatial axes."""

    def __init__(self, em: Emit, geo: Geometry) -> None:
        self.em, self.geo = em, geo
        views = [em.outs[0], *em.extras]
        self.flat = all(is_flat(v, geo) for v in views)
        if self.flat:
            row = (1, 1, prod(geo.out))
            self.geo = replace(geo, size=row, out=row)
        self.heavy = weight(em.site.epilogue) >= HEAVY

    def tile(self, values: list[list[Val]], n: Val, block: Val, pixel: Val) -> None:
        if not self.flat:
            for q, line in enumerate(values):
                self.one(line, n, block, pixel + q)
            return
        place = Sink(self.em, self.geo).at(n, block, *self._where(pixel))
        for q, line in enumerate(values):
            for o, value in enumerate(line):
                place.put(value, 0, o, 0, 0, q)

    def one(self, values: list[Val], n: Val, block: Val, pixel: Val) -> None:
        place = Sink(self.em, self.geo).at(n, block, *self._where(pixel))
        for o, value in enumerate(values):
            place.put(value, 0, o, 0, 0, 0)

    def _where(self, pixel: Val) -> tuple[Index, Index, Index]:
        _, high, wide = self.geo.out
        if self.flat:
            return 0, 0, pixel
        row = pixel // wide
        return (row // high if self.geo.out[0] > 1 else 0), row % high, pixel % wide


def _sums_function(em: Emit, geo: Geometry, plan: Plan) -> Stage:
    """A function that makes the pages of a block for some of its vectors of channels.

    Unit c < depth is the quads of channels c and depth + c; beyond, one vector beyond the halves.
    """
    rooms = Rooms(em.site, geo, plan)

    def body(em: Emit, base: Ptr, c0: Val, c1: Val, n: Val, first: Val, second: Val) -> None:
        b, source, width = em.b, em.ins[0], plan.width
        assert source is not None
        batch, plane, step = steps(source.spec, geo.rank)
        flat = is_flat(source, geo) and set(geo.stride) == {1}
        image = (source.pointer + n * batch).fixed()
        copies = (base + 2 * rooms.sums).fixed()
        half = plan.depth * plane
        away = plan.depth * rooms.plane

        def place(pixel: Val) -> Ptr:
            if flat:
                return image + pixel * width
            row = pixel // geo.out[2]
            index = row // geo.out[1], row % geo.out[1], pixel % geo.out[2]
            at = image
            for i, stride, s, extent in zip(index, geo.stride, step, geo.out, strict=True):
                if extent > 1:
                    at = at + i * (stride * s)
            return at

        def quads(lo: Index, hi: Index) -> None:
            with b.loop(lo, hi) as c, b.loop(0, plan.half) as q:
                near = opaque(place(first + q) + c * plane)
                far = opaque(place(second + q) + c * plane)
                to = opaque(base + c * rooms.plane + q * width)
                x00, x10 = near.load(width), (near + half).load(width)
                x01, x11 = far.load(width), (far + half).load(width)
                t1 = x01 - x00
                t2 = x11 - t1
                made = [(0, t1), (away, t2), (rooms.sums, x11 - x01), (rooms.sums + away, t2 - x10)]
                if not flat:
                    start = 2 * rooms.sums
                    made += [(start, x00), (start + away, x10), (start + rooms.copy + away, x11)]
                for at, value in made:
                    (to + at).store(value)

        quads(c0, b.minimum(c1, plan.depth))
        if plan.rest and not flat:
            with b.loop(b.maximum(c0, plan.depth), c1) as c, b.loop(0, plan.half) as q:
                for i, pixel in enumerate((first + q, second + q)):
                    value = (place(pixel) + (c + plan.depth) * plane).load(width)
                    to = copies + i * rooms.copy + (c + plan.depth) * rooms.plane
                    (to + q * width).store(value)

    return stage(em, "sums", "base* c0 c1 n first second", body)


def _peel(
    site: Site, geo: Geometry, plan: Plan, w: np.ndarray, bias: np.ndarray | None
) -> tuple[Phase, list[Packed], float]:
    """The outputs beyond the halves, directly: their phase, what it reads packed, its seconds."""
    width, first = plan.width, plan.problem.outputs - plan.peeled
    blocks = channel_blocks(geo.channels, width)
    rows, cols = (1, prod(geo.out)) if geo.is_pointwise else geo.out[1:]
    cut: Panels = panels(site.target, plan.peeled, rows, cols, blocks.padded)
    planes = geo.batch * (1 if geo.is_pointwise else geo.out[0])
    flops = 2.0 * width * cut.cost * planes * blocks.padded
    count = bands(geo.batch * cut.total)
    packed = [Packed("peeled", lambda: pack_panels(w[first:, :, None], cut, blocks))]
    if bias is not None:
        packed.append(Packed("peeled bias", lambda: pack_panel_bias(bias[first:], cut)))

    def emit(em: Emit) -> None:
        source = em.ins[0]
        assert source is not None
        own = flattened(em, geo) if geo.is_pointwise else geo
        batch = steps(source.spec, geo.rank)[0]
        _, _, weights, *biases = em.packed

        def body(at: PanelPlace) -> None:
            x = source.pointer + at.n * batch
            after = (biases[0] + at.channel) if biases else None
            sink = Sink(em, own).at(at.n, b.index(at.block) + 2 * plan.height)
            reduce = over_blocks(em, own, blocks, at.lanes)
            convolve(em, own, at, x, weights + at.channel * (blocks.count * blocks.stored), after,
                     sink, blocks.padded, reduce)  # fmt: skip

        b = em.b
        each_panel(em, cut, geo.batch, count, 1, body)

    seconds = site.target.time(flops, 0, EFFICIENCY)
    return Phase(geo.batch * cut.total * count, emit), packed, seconds
