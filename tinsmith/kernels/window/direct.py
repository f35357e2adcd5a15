"""Direct convolution on channel-blocked data: any kernel, stride, dilation and padding, group 1.

The input is read with the halo that its windows need, so there is no edge code. A tile keeps
pixels x output vectors in registers through all input channels and taps; 1x1 convolutions run
over all pixels as one row where nothing lies between the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import I64
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.geometry import Geometry, conv_geometry, steps
from tinsmith.kernels.window.tiles import (
    Level,
    Panels,
    Sink,
    bands,
    contract,
    initial,
    panels,
    sweep,
    tiling,
)
from tinsmith.kernels.window.weights import ChannelBlocks, channel_blocks, pack_bias, pack_panels

EFFICIENCY = 0.96
PARALLEL_FLOPS = 4e5  # less than this is done by one thread


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_direct(site: Site) -> Choice:
    """Direct convolution on channel-blocked data, bias in the initial accumulators."""
    if site.attr("group") != 1:
        raise Skip(f"group is {site.attr('group')}")
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    geo = conv_geometry(site)
    width = block_of(site.target)
    blocks = channel_blocks(geo.channels, width)
    rows, cols = (1, prod(geo.out)) if geo.is_pointwise else geo.out[1:]
    depth = blocks.padded * geo.taps
    cut = panels(site.target, geo.out_channels, rows, cols, depth)
    planes = geo.batch * (1 if geo.is_pointwise else geo.out[0])
    flops = 2.0 * width * cut.cost * planes * depth
    count = bands(geo.batch * cut.total) if flops > PARALLEL_FLOPS else 1
    packed = [Packed("weights", lambda: pack_panels(w, cut, blocks))]
    if bias is not None:
        packed.append(Packed("bias", lambda: pack_bias(bias, cut)))
    plan = tiling(site.target, rows, cols, cut.main if cut.count else cut.tail, depth)
    layout = Layout(width)
    reads: list[Layout | None] = [Layout(width, geo.halo), *(None for _ in site.inputs[1:])]
    return Choice(
        cost=site.target.time(flops, traffic(geo, w.size), EFFICIENCY),
        reads=site.reads(reads, layout),
        writes=(layout,),
        phases=one_phase(
            cut.total * geo.batch * count, lambda em: emit_direct(em, geo, cut, blocks, count)
        ),
        packed=tuple(packed),
        detail=f"tile {plan}x{cut}",
    )


def traffic(geo: Geometry, weights: int) -> float:
    """Bytes of input, output and weights, each touched once."""
    values = geo.channels * prod(geo.size) + geo.out_channels * prod(geo.out)
    return 4.0 * (geo.batch * values + weights)


def flattened(em: Emit, geo: Geometry) -> Geometry:
    """The geometry with all pixels in one row, where nothing lies between the rows."""
    views = [em.ins[0], em.outs[0], *em.extras]
    for view in views:
        assert view is not None
        _, _, (plane, row, pixel) = steps(view.spec, geo.rank)
        flat_rows = geo.rank < 2 or row == pixel * geo.out[2]
        flat_planes = geo.rank < 3 or plane == row * geo.out[1]
        if not (flat_rows and flat_planes):
            return geo
    row = (1, 1, prod(geo.out))
    return replace(geo, size=row, out=row)


def emit_direct(em: Emit, geo: Geometry, cut: Panels, blocks: ChannelBlocks, count: int) -> None:
    """Tiles are (panel, batch, band), the band innermost."""
    b = em.b
    if geo.is_pointwise:
        geo = flattened(em, geo)
    weights, bias = em.packed[0], em.packed[1] if len(em.packed) > 1 else None
    depth = blocks.count * blocks.stored * geo.taps
    whole, main = sum(cut.main), len(cut.main)
    with b.loop(em.begin, em.end) as t:
        band, rest = t % count, t // count
        n, panel = rest % geo.batch, rest // geo.batch

        def full() -> None:
            w = weights + panel * (whole * depth)
            at = None if bias is None else bias + panel * whole
            _panel(em, geo, blocks, cut.main, w, at, n, panel * main, band, count)

        def tail() -> None:
            w = weights + cut.count * whole * depth
            at = None if bias is None else bias + cut.count * whole
            _panel(em, geo, blocks, cut.tail, w, at, n, cut.count * main, band, count)

        if not cut.tail:
            full()
        elif not cut.count:
            tail()
        else:
            b.choose(panel < cut.count, full, tail)


def _panel(
    em: Emit,
    geo: Geometry,
    blocks: ChannelBlocks,
    lanes: tuple[int, ...],
    w: Ptr,
    bias: Ptr | None,
    n: Val | int,
    block: Val | int,
    band: Val | int,
    count: int,
) -> None:
    """A band of one image's outputs for one panel."""
    b, source = em.b, em.ins[0]
    assert source is not None
    batch, plane, step = steps(source.spec, geo.rank)
    x = source.pointer + n * batch + -sum(p * s for p, s in zip(geo.begin, step, strict=True))
    sink = Sink(em, geo).at(n, block)
    row = sum(lanes)
    levels = _levels(geo, blocks, row, plane, step)
    plan = tiling(em.target, geo.out[1], geo.out[2], lanes, blocks.padded * geo.taps)

    def channels(block: Val | int) -> Val | int:
        if blocks.last == blocks.width or blocks.count == 1:
            return blocks.last
        return b.minimum(blocks.width, b.const(blocks.padded, I64) - block * blocks.width)

    def planes(d: Val | int) -> None:
        def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
            strides = [k * s for k, s in zip(geo.stride, step, strict=True)]
            corner = x + d * strides[0] + r * strides[1] + c * strides[2]
            pixels = [i * strides[1] + j * strides[2] for i in range(high) for j in range(wide)]
            start = initial(b, bias, len(pixels), lanes)
            done = contract(
                b, corner.fixed(), w.fixed(), start, pixels, lanes, levels, channels, blocks.step
            )
            store_tile(sink.at(0, 0, d, r, c), done, high, wide, len(lanes))

        sweep(b, plan, band, count, tile)

    if geo.out[0] == 1:
        planes(0)
    else:
        with b.loop(0, geo.out[0]) as d:
            planes(d)


def store_tile(sink: Sink, values: Sequence[Val], high: int, wide: int, vectors: int) -> None:
    """Finish the accumulators of a tile at its first output."""
    for p, (i, j) in enumerate(itertools.product(range(high), range(wide))):
        for o in range(vectors):
            sink.put(values[p * vectors + o], 0, o, 0, i, j)


def _levels(
    geo: Geometry, blocks: ChannelBlocks, row: int, plane: int, step: tuple[int, int, int]
) -> list[Level]:
    """The loops over channel blocks and taps; the channels of a block are innermost."""
    stored = blocks.stored * row
    levels = [Level(blocks.count, plane, geo.taps * stored)]
    for axis in range(3):
        inner = prod(geo.kernel[axis + 1 :])
        levels.append(Level(geo.kernel[axis], geo.dilation[axis] * step[axis], inner * stored))
    return levels
