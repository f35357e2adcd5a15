"""Convolution to few outputs: vectors run along the input channels, and are summed at the end.

With less than half a vector of output channels, broadcasting pixels wastes most lanes. Here a
vector is a block of input channels of one pixel, multiplied into one accumulator for each output.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.contract import Level, bias_at, nest
from tinsmith.kernels.window.direct import flattened
from tinsmith.kernels.window.geometry import Geometry, image_of
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Sink, Tiling, bands, cut, digits, sweep
from tinsmith.kernels.window.ways import tap_levels

EFFICIENCY = 0.95  # of the peak, beside the loads that are counted (estimated)
MOST_OUTPUTS = 8  # channels: one accumulator each, for every pixel of a tile (estimated)
SUMMING = 6  # instructions that add the lanes of one accumulator and place the sum (estimated)


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_few_outputs(site: Site) -> Choice:
    """Convolution to at most 8 channels, by vectors of input channels."""
    conv = dense_site(site)
    geo, outputs, width, blocks = conv.geo, conv.geo.out_channels, conv.width, conv.blocks
    if outputs > min(MOST_OUTPUTS, width // 2):
        raise Skip(f"{outputs} outputs are enough for vectors of {width} outputs")
    wide = _pixels(site.target, outputs)
    loads = 1 + (outputs + wide) / (outputs * wide)  # beside a product, where loads are the limit
    steps_each = max(1.0, 0.62 * loads) * blocks * geo.taps + SUMMING
    flops = 2.0 * width * geo.points * outputs * steps_each
    lines = prod(geo.out[1:]) if geo.is_pointwise else geo.out[1]
    count = bands(geo.batch, lines, flops=flops)
    return conv.choice(
        conv.time(flops, EFFICIENCY),
        one_phase(geo.batch * count, lambda em: emit_few(em, geo, blocks, count)),
        [Packed("weights", _pack, (conv.weights, width)), *conv.packed_bias(np.asarray)],
        detail=f"{wide} pixels",
    )


def _pixels(target: Target, outputs: int) -> int:
    """Pixels of a tile, so that accumulators and weights stay in registers."""
    return max(1, (20 if target.registers >= 32 else 8) // outputs)


def _pack(w: np.ndarray, width: int) -> np.ndarray:
    """[K, C, *taps] as [channel block][tap][output][channel], flat."""
    k, c = w.shape[:2]
    flat = w.reshape(k, c, -1)
    wide = np.zeros((k, -(-c // width) * width, flat.shape[2]), w.dtype)
    wide[:, :c] = flat
    shaped = wide.reshape(k, -1, width, flat.shape[2])
    return np.ascontiguousarray(shaped.transpose(1, 3, 0, 2)).reshape(-1)


def emit_few(em: Emit, geo: Geometry, blocks: int, count: int) -> None:
    """Tiles are (batch, band), the band innermost."""
    b, width, outputs = em.b, block_of(em.target), geo.out_channels
    geo = flattened(em, geo)
    image = image_of(em.input(0), geo)
    row = outputs * width
    levels = [Level(blocks, image.plane, geo.taps * row), *tap_levels(geo, image.step, row)]
    columns = cut(geo.out[2], _pixels(em.target, outputs))
    plan = Tiling(((geo.out[1], 1),), columns, prod(geo.out))

    def body(x: Ptr, w: Ptr, start: list[Val], _: Val | int) -> list[Val]:
        acc = list(start)
        ws = [(w + o * width).load(width) for o in range(outputs)]
        for p in range(len(acc) // outputs):
            pixel = (x + p * image.stride[2]).load(width)
            for o in range(outputs):
                acc[p * outputs + o] = pixel.fma(ws[o], acc[p * outputs + o])
        return acc

    with b.loop(em.begin, em.end) as t:
        band, n = digits(t, count)
        x = image.corner(n)
        sink = Sink(em, geo).at(n)

        def planes(d: Val | int) -> None:
            def tile(r: Val | int, c: Val | int, _: int, wide: int) -> None:
                corner = image.window(x, d, r, c)
                zeros = [b.zero(F32.x(width))] * (wide * outputs)
                done = nest(b, levels, corner, em.packed[0].fixed(), zeros, body)
                place = sink.at(0, 0, d, r, c)
                for p in range(wide):
                    sums = done[p * outputs : (p + 1) * outputs]
                    place.put(_summed(em, b, sums, width), 0, 0, 0, 0, p)

            sweep(b, plan, band, count, tile)

        run(b, 0, geo.out[0], planes)


def _summed(em: Emit, b: Builder, sums: list[Val], width: int) -> Val:
    """The vector whose lane o is the sum of `sums[o]`, plus the bias; the others are zero."""
    value = b.zero(F32.x(width))
    for o, part in enumerate(sums):
        one = part.reduce("add")
        bias = bias_at(em, o)
        if bias is not None:
            one = one + bias.load()
        value = value.with_lane(o, one)
    return value
