"""Grouped convolution by half vectors, for groups that fill half blocks but no whole ones.

Where a block is 16 channels, groups of 8, 24, 40... channels begin at lane 0 or 8 of a block. A
vector of 8 outputs belongs to one group only, so that nothing is computed for other groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.contract import Fetch, nest, products
from tinsmith.kernels.window.direct import (
    EFFICIENCY,
    PARALLEL_FLOPS,
    Reduction,
    convolve,
    tap_levels,
    traffic,
)
from tinsmith.kernels.window.geometry import Geometry, Widths, steps
from tinsmith.kernels.window.order import PanelPlace, each_panel
from tinsmith.kernels.window.tiles import UNROLL, Panels, Sink, bands, panels, tiling
from tinsmith.kernels.window.weights import ChannelBlocks, pack_bias, pack_groups


def halves(site: Site, geo: Geometry, widths: Widths) -> Choice:
    """The choice for groups of a multiple of half a block of channels, on both sides."""
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    width = block_of(site.target)
    rows, cols, depth = *geo.out[1:], widths.inputs * geo.taps
    cut = panels(site.target, widths.outputs, rows, cols, depth, width // 2)
    plan = tiling(site.target, rows, cols, cut.main if cut.count else cut.tail, depth)
    flops = 2.0 * width * cut.cost * geo.batch * widths.groups * geo.out[0] * depth
    count = 1
    if flops > PARALLEL_FLOPS:
        count = bands(geo.batch * widths.groups * cut.total, plan.most_bands)
    blocks = ChannelBlocks(1, widths.inputs, widths.inputs, UNROLL)
    packed = [Packed("weights", lambda: pack_groups(w, cut, blocks, widths.groups))]
    if bias is not None:
        packed.append(Packed("bias", lambda: pack_bias(bias, cut, widths.groups)))
    reads: list[Layout | None] = [Layout(width, geo.halo), *(None for _ in site.inputs[1:])]
    return Choice(
        cost=site.target.time(flops, traffic(geo, w.size), EFFICIENCY),
        reads=site.reads(reads, Layout(width)),
        writes=(Layout(width),),
        phases=one_phase(
            widths.groups * cut.total * geo.batch * count,
            lambda em: emit_halves(em, geo, widths, cut, count),
        ),
        packed=tuple(packed),
        detail=f"tile {plan}x{cut} halves",
    )


@dataclass(frozen=True)
class HalfSink:
    """Neighbouring half vectors of the output, each at its own place in a block.

    `odd` is the last half where it has no other half, which then is padding to be kept zero.
    """

    parts: tuple[Sink, ...]
    units: tuple[Val | int, ...]
    odd: int | None

    def at(self, *index: Val | int) -> HalfSink:
        return HalfSink(tuple(p.at(*index) for p in self.parts), self.units, self.odd)

    def put(self, value: Val, *index: Val | int) -> None:
        n, o, *place = index
        assert isinstance(o, int)
        part = self.parts[o]
        part.put_part(value, n, 0, *place)
        if self.odd is not None and o == len(self.parts) - 1:
            b, lanes = part.em.b, value.ty.lanes
            other = part.em.outs[0].at(*part.geometry.place((n, 0, *place))) + lanes
            with b.when(b.index(self.units[o]).eq(self.odd)):
                other.store(b.zero(F32.x(lanes)))


def _sink(em: Emit, geo: Geometry, n: Val | int, first: Val | int, count: int) -> HalfSink:
    half = block_of(em.target) // 2
    units = tuple(first + o if o else first for o in range(count))
    whole = Sink(em, geo).at(n)
    parts = tuple(whole.at(0, u // 2).lanes_at(u % 2 * half) for u in units)
    total = geo.out_channels // half
    return HalfSink(parts, units, total - 1 if total % 2 else None)


def emit_halves(em: Emit, geo: Geometry, widths: Widths, cut: Panels, count: int) -> None:
    """Tiles are (group, panel, batch, band), the band innermost."""
    source = em.ins[0]
    assert source is not None
    batch, _, step = steps(source.spec, geo.rank)
    back = -sum(p * s for p, s in zip(geo.begin, step, strict=True))
    depth = widths.inputs * geo.taps

    def body(at: PanelPlace) -> None:
        x = source.pointer + at.n * batch + back
        w = em.packed[0] + at.channel * depth
        bias = em.packed[1] + at.channel if len(em.packed) > 1 else None
        reduce = _over_channels(em, geo, at.group * widths.inputs, widths.inputs, at.lanes)
        sink = _sink(em, geo, at.n, at.block, len(at.lanes))
        convolve(em, geo, at, x, w, bias, sink, depth, reduce)

    each_panel(em, cut, geo.batch, count, widths.groups, body)


def _over_channels(
    em: Emit, geo: Geometry, first: Val | int, channels: int, lanes: Sequence[int]
) -> Reduction:
    """The reduction over taps and the channels from `first`, which may lie across blocks."""
    b, source, width = em.b, em.ins[0], block_of(em.target)
    assert source is not None
    _, plane, step = steps(source.spec, geo.rank)
    row = sum(lanes)
    levels = tap_levels(geo, step, channels * row)

    def body(x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int]) -> list[Val]:
        with b.loop(0, channels, UNROLL, carry=acc) as loop:
            c = loop.index + first
            place = x + (c // width) * plane + c % width
            loop.next(products(place, w + loop.index * row, loop.vars, pixels, lanes, UNROLL))
        return loop.out

    def reduce(
        x: Ptr, w: Ptr, acc: list[Val], pixels: list[Val | int], _: Fetch | None
    ) -> list[Val]:
        return nest(b, levels, x, w, acc, lambda xq, wq, a, _: body(xq, wq, a, pixels))

    return reduce
