"""Grouped convolution on channel-blocked data, for any width of the groups.

Three ways, by how the groups lie in the blocks:
- groups that fill whole blocks are direct convolutions side by side;
- narrow groups of which several fill one vector: each input channel of every group is spread over
  its group's lanes by one permutation of the input vector, so that no lane works for nothing;
- any others: an output vector reads the channels of all groups that it touches, with zero weights
  where a channel and an output belong to different groups.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.direct import (
    EFFICIENCY,
    PARALLEL_FLOPS,
    PanelPlace,
    direct,
    each_panel,
    store_tile,
    traffic,
)
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, steps
from tinsmith.kernels.window.tiles import (
    Level,
    Panels,
    Sink,
    bands,
    cut,
    initial,
    nest,
    products,
    sweep,
    tiling,
    walk,
)
from tinsmith.kernels.window.weights import pack_bias

WIDEST_ROW = 7  # taps of a kernel row that are unrolled


@dataclass(frozen=True)
class Widths:
    """Input and output channels of one group, and how many groups there are."""

    groups: int
    inputs: int
    outputs: int


def _widths(site: Site, geo: Geometry) -> Widths:
    groups = site.attr("group")
    if groups == 1:
        raise Skip("group is 1")
    return Widths(groups, geo.channels // groups, geo.out_channels // groups)


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_grouped(site: Site) -> Choice:
    """Grouped convolution; groups that fill no whole blocks share vectors with zero weights."""
    geo = conv_geometry(site)
    widths, width = _widths(site, geo), block_of(site.target)
    if widths.inputs % width == 0 and widths.outputs % width == 0:
        return direct(site, geo, widths.groups)
    return _mixed(site, geo, widths)


# ---- groups that share vectors, by zero weights


@dataclass(frozen=True)
class Mixed:
    """Panels of output vectors, each over the input channels [low, high) of the groups it touches.

    `step` channels make one loop body, and divide every bound; `depth` is the most channels of a
    panel, and how many the packed weights hold for each tap.
    """

    widths: Widths
    panels: Panels
    step: int
    depth: int

    def span(self, first: int, count: int) -> tuple[int, int]:
        """The input channels that outputs [first, first + count) read."""
        last = min(first + count, self.widths.groups * self.widths.outputs) - 1
        low, high = first // self.widths.outputs, last // self.widths.outputs + 1
        return low * self.widths.inputs, high * self.widths.inputs

    @property
    def starts(self) -> list[tuple[int, int]]:
        """(first output, outputs) of every panel."""
        whole, tail = sum(self.panels.main), sum(self.panels.tail)
        found = [(i * whole, whole) for i in range(self.panels.count)]
        return found + ([(self.panels.count * whole, tail)] if tail else [])


@functools.lru_cache(maxsize=512)
def _plan(target: Target, geo: Geometry, widths: Widths) -> Mixed:
    width = block_of(target)
    blocks = -(-geo.out_channels // width)
    step = next(s for s in (4, 2, 1) if widths.inputs % s == 0)
    best: Mixed | None = None
    for vectors in range(1, min(4, blocks) + 1):
        count, rest = divmod(blocks, vectors)
        panels = Panels(count, (width,) * vectors, (width,) * rest, 0.0)
        plan = Mixed(widths, panels, step, 0)
        cost, depth = 0.0, 0
        for start, lanes in plan.starts:
            low, high = plan.span(start, lanes)
            reach = tiling(
                target, *geo.out[1:], (width,) * (lanes // width), (high - low) * geo.taps
            )
            cost, depth = cost + reach.cost * (high - low), max(depth, high - low)
        cost *= 1 + 0.01 * bool(rest)
        if best is None or cost < best.panels.cost:
            best = Mixed(widths, Panels(count, panels.main, panels.tail, cost), step, depth)
    assert best is not None
    return best


def _mixed(site: Site, geo: Geometry, widths: Widths) -> Choice:
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    width = block_of(site.target)
    plan = _plan(site.target, geo, widths)
    flops = 2.0 * width * plan.panels.cost * geo.batch * geo.out[0] * geo.taps
    count = bands(geo.batch * plan.panels.total) if flops > PARALLEL_FLOPS else 1
    packed = [Packed("weights", lambda: _pack_mixed(w, plan))]
    if bias is not None:
        packed.append(Packed("bias", lambda: pack_bias(bias, plan.panels)))
    reads: list[Layout | None] = [Layout(width, geo.halo), *(None for _ in site.inputs[1:])]
    return Choice(
        cost=site.target.time(flops, traffic(geo, w.size), EFFICIENCY),
        reads=site.reads(reads, Layout(width)),
        writes=(Layout(width),),
        phases=one_phase(
            plan.panels.total * geo.batch * count, lambda em: _emit_mixed(em, geo, plan, count)
        ),
        packed=tuple(packed),
        detail=f"{plan.panels} vectors over up to {plan.depth} channels",
    )


def _pack_mixed(w: np.ndarray, plan: Mixed) -> np.ndarray:
    """[K, C/group, *taps] as [panel][tap][channel from the panel's low][lane], flat."""
    k, inputs = w.shape[:2]
    flat, parts = w.reshape(k, inputs, -1), []
    for start, lanes in plan.starts:
        low, _ = plan.span(start, lanes)
        part = np.zeros((flat.shape[2], plan.depth, lanes), w.dtype)
        for output in range(start, min(start + lanes, k)):
            first = output // plan.widths.outputs * inputs - low
            part[:, first : first + inputs, output - start] = flat[output].T
        parts.append(part.reshape(-1))
    return np.concatenate(parts)


def _emit_mixed(em: Emit, geo: Geometry, plan: Mixed, count: int) -> None:
    """Tiles are (panel, batch, band), the band innermost."""
    b, source, width = em.b, em.ins[0], block_of(em.target)
    assert source is not None
    batch, plane, step = steps(source.spec, geo.rank)
    back = -sum(p * s for p, s in zip(geo.begin, step, strict=True))
    stride = [k * s for k, s in zip(geo.stride, step, strict=True)]
    groups = plan.widths

    def body(at: PanelPlace) -> None:
        lanes, row = at.lanes, sum(at.lanes)
        last = b.minimum(at.channel + row, geo.out_channels)
        low = at.channel // groups.outputs * groups.inputs
        high = ((last + (groups.outputs - 1)) // groups.outputs) * groups.inputs
        x = source.pointer + at.n * batch + back
        w = em.packed[0] + at.channel * (geo.taps * plan.depth)
        bias = em.packed[1] + at.channel if len(em.packed) > 1 else None
        sink = Sink(em, geo).at(at.n, at.block)
        levels = [
            Level(
                geo.kernel[axis], geo.dilation[axis] * step[axis],
                prod(geo.kernel[axis + 1 :]) * plan.depth * row,
            )
            for axis in range(3)
        ]  # fmt: skip
        pieces = tiling(em.target, geo.out[1], geo.out[2], lanes, plan.depth * geo.taps)

        def planes(d: Val | int) -> None:
            def tile(r: Val | int, c: Val | int, high_: int, wide: int) -> None:
                corner = (x + d * stride[0] + r * stride[1] + c * stride[2]).fixed()
                pixels = [i * stride[1] + j * stride[2] for i in range(high_) for j in range(wide)]

                def channels(xq: Ptr, wq: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
                    with b.loop(low, high, plan.step, carry=acc) as loop:
                        i = loop.index
                        place = xq + (i // width) * plane + i % width
                        ws = wq + (i - low) * row
                        loop.next(products(place, ws, loop.vars, pixels, lanes, plan.step))
                    return loop.out

                start = initial(b, bias, len(pixels), lanes)
                done = nest(b, levels, corner, w, start, channels)
                store_tile(sink.at(0, 0, d, r, c), done, high_, wide, len(lanes))

            sweep(b, pieces, at.band, at.count, tile)

        if geo.out[0] == 1:
            planes(0)
        else:
            with b.loop(0, geo.out[0]) as d:
                planes(d)

    each_panel(em, plan.panels, geo.batch, count, 1, body)


# ---- narrow groups, by permutations


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_narrow_groups(site: Site) -> Choice:
    """Convolution with several groups in one vector, spread over their lanes by permutations."""
    geo = conv_geometry(site)
    widths, width = _widths(site, geo), block_of(site.target)
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    reach = max(1, width // widths.outputs) * widths.inputs
    if widths.inputs % width == 0 or width % widths.outputs or width % reach:
        raise Skip(f"groups of {widths.inputs} to {widths.outputs} do not fill blocks of {width}")
    blocks = -(-geo.out_channels // width)
    most = _most_pixels(site.target)
    across = min(geo.kernel[2], WIDEST_ROW)
    moves = {p * geo.stride[2] + k * geo.dilation[2] for p in range(most) for k in range(across)}
    share = 1 / (
        1 + 0.5 * len(moves) / (most * across)
    )  # a permutation for each input, beside products
    flops = 2.0 * blocks * width * geo.points * geo.taps * widths.inputs
    count = bands(geo.batch * blocks) if flops > PARALLEL_FLOPS else 1
    packed = [Packed("weights", lambda: _pack_narrow(w, width))]
    if bias is not None:
        whole = Panels(blocks, (width,), (), 0.0)
        packed.append(Packed("bias", lambda: pack_bias(bias, whole)))
    reads: list[Layout | None] = [Layout(width, geo.halo), *(None for _ in site.inputs[1:])]
    return Choice(
        cost=site.target.time(flops, traffic(geo, w.size), share),
        reads=site.reads(reads, Layout(width)),
        writes=(Layout(width),),
        phases=one_phase(
            geo.batch * blocks * count, lambda em: _emit_narrow(em, geo, widths, blocks, count)
        ),
        packed=tuple(packed),
        detail=f"{width // widths.outputs} groups a vector",
    )


def _most_pixels(target: Target) -> int:
    return 8 if target.registers >= 32 else 4 if target.has_fma else 2


def _pack_narrow(w: np.ndarray, width: int) -> np.ndarray:
    """[K, C/group, *taps] as [output block][depth, row][channel][column][lane], flat."""
    k, inputs = w.shape[:2]
    across = w.shape[-1]
    wide = np.zeros((-(-k // width) * width, inputs, w[0, 0].size), w.dtype)
    wide[:k] = w.reshape(k, inputs, -1)
    shaped = wide.reshape(-1, width, inputs, w[0, 0].size // across, across)
    return np.ascontiguousarray(shaped.transpose(0, 3, 2, 4, 1)).reshape(-1)


def _emit_narrow(em: Emit, geo: Geometry, widths: Widths, blocks: int, count: int) -> None:
    """Tiles are (batch, output block, band of rows), the band innermost."""
    b, source, width = em.b, em.ins[0], block_of(em.target)
    assert source is not None
    batch, plane, step = steps(source.spec, geo.rank)
    stride = [k * s for k, s in zip(geo.stride, step, strict=True)]
    back = -sum(p * s for p, s in zip(geo.begin, step, strict=True))
    reach = width // widths.outputs * widths.inputs
    across = geo.kernel[2] if geo.kernel[2] <= WIDEST_ROW else 1
    row = widths.inputs * geo.kernel[2] * width
    levels = [
        Level(geo.kernel[0], geo.dilation[0] * step[0], geo.kernel[1] * row),
        Level(geo.kernel[1], geo.dilation[1] * step[1], row),
    ]
    if across < geo.kernel[2]:
        levels.append(Level(geo.kernel[2], geo.dilation[2] * step[2], width))
    most = _most_pixels(em.target)

    def body(x: Ptr, w: Ptr, start: list[Val], _: Val | int) -> list[Val]:
        acc, loaded = list(start), {}
        for i in range(widths.inputs):
            spread = [lane // widths.outputs * widths.inputs + i for lane in range(width)]
            factors = [(w + (i * geo.kernel[2] + j) * width).load(width) for j in range(across)]
            taken: dict[int, Val] = {}
            for j in range(across):
                for p in range(len(acc)):
                    place = (p * geo.stride[2] + j * geo.dilation[2]) * step[2]
                    if place not in loaded:
                        loaded[place] = (x + place).load(width)
                    if place not in taken:
                        taken[place] = loaded[place].shuffle(None, spread)
                    acc[p] = taken[place].fma(factors[j], acc[p])
        return acc

    with b.loop(em.begin, em.end) as t:
        band, rest = t % count, t // count
        block, n = rest % blocks, rest // blocks
        channel = block * reach
        x = source.pointer + n * batch + channel // width * plane + channel % width + back
        w = (em.packed[0] + block * (geo.kernel[0] * geo.kernel[1] * row)).fixed()
        bias = em.packed[1] + block * width if len(em.packed) > 1 else None
        sink = Sink(em, geo).at(n, block)

        def plane_of(
            d: Val | int,
            x: Ptr = x,
            w: Ptr = w,
            bias: Ptr | None = bias,
            sink: Sink = sink,
            band: Val | int = band,
        ) -> None:
            def one_row(r: Val | int, _: int) -> None:
                def tile(c: Val | int, wide: int) -> None:
                    corner = (x + d * stride[0] + r * stride[1] + c * stride[2]).fixed()
                    start = initial(b, bias, wide, (width,))
                    done = nest(b, levels, corner, w, start, body)
                    store_tile(sink.at(0, 0, d, r, c), done, 1, wide, 1)

                walk(b, cut(geo.out[2], most), 0, 1, tile)

            walk(b, ((geo.out[1], 1),), band, count, one_row)

        if geo.out[0] == 1:
            plane_of(0)
        else:
            with b.loop(0, geo.out[0]) as d:
                plane_of(d)
