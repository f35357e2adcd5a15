"""Convolution to few output channels, by vectors of input channels.

With less than half a vector of output channels, broadcasting pixels wastes most lanes. Here a
vector is a block of input channels of one pixel. Each output has a whole vector as accumulator.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.window.contract import Contraction, bias_at, initial
from tinsmith.kernels.window.convolve import convolve
from tinsmith.kernels.window.direct import flattened
from tinsmith.kernels.window.geometry import Geometry, image_of
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Place, Sink, Tiling, bands, cut, digits
from tinsmith.kernels.window.ways import Sums, over_blocks
from tinsmith.kernels.window.weights import ChannelBlocks, whole_blocks
from tinsmith.records import dataclass

EFFICIENCY = 0.95  # of the peak, beside the loads that are counted (estimated)
MOST_OUTPUTS = 8  # channels: one accumulator each, for every pixel of a tile (estimated)
SUMMING = 6  # instructions that add the lanes of one accumulator and place the sum (estimated)


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_few_outputs(site: Site) -> Choice:
    """Convolution to few channels (at most 8, or half a vector), by vectors of input channels."""
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
    """How many pixels a tile has, so that an accumulator for each pixel and each of `outputs`
    channels, and the weights, stay in registers."""
    return max(1, (20 if target.registers >= 32 else 8) // outputs)


def _pack(w: np.ndarray, width: int) -> np.ndarray:
    """Pack weights [K, C, *taps] as [channel block][tap][output][channel], flat; padding is 0."""
    blocks = whole_blocks(w.reshape(*w.shape[:2], -1).swapaxes(0, 1), width)
    return np.ascontiguousarray(blocks.transpose(0, 3, 2, 1)).reshape(-1)


def emit_few(em: Emit, geo: Geometry, blocks: int, count: int) -> None:
    """Emit the kernel for `blocks` channel blocks; its tiles are (batch, one of `count` bands). The
    contraction treats a block of V input channels as one of V interleaved groups (`sides`)."""
    b, width, outputs = em.b, block_of(em.target), geo.out_channels
    geo = flattened(em, geo)
    image, lanes = image_of(em.input(0), geo), (width,) * outputs
    columns = cut(geo.out[2], _pixels(em.target, outputs))
    plan = Tiling(((geo.out[1], 1),), columns, prod(geo.out))
    it = Contraction(lanes, ChannelBlocks(blocks, 1, 1, 1), stride=width, sides=width)
    sums = Sums(
        lanes, em.packed[0], partial(initial, b, None, lanes), over_blocks(em, geo, it),
        blocks * geo.taps,
    )  # fmt: skip
    with b.loop(em.begin, em.end) as t:
        band, n = digits(t, count)
        x = image.corner(n)
        sink = Summing(Sink(em, geo).at(n), em, outputs, [])
        convolve(em, geo, (band, count), sums, x, sink, plan=plan)


@dataclass(frozen=True)
class Summing:
    """A `Place` that adds up the lanes of accumulators, which are vectors along input channels. It
    collects the vectors of one pixel, one for each output; with the last it stores their sums, plus
    the bias, by `sink`."""

    sink: Place
    em: Emit
    outputs: int
    vectors: list[Val]

    def at(self, *index: Val | int) -> Summing:
        return replace(self, sink=self.sink.at(*index), vectors=[])

    def put(self, value: Val, *index: Val | int) -> None:
        self.vectors.append(value)
        if len(self.vectors) == self.outputs:
            n, _, *place = index
            self.sink.put(_summed(self.em, self.vectors, value.ty.lanes), n, 0, *place)
            self.vectors.clear()


def _summed(em: Emit, sums: list[Val], width: int) -> Val:
    """A vector of `width` lanes whose lane o is the sum of the lanes of sums[o], plus the bias of
    output o; other lanes are zero."""
    value = em.b.zero(F32.x(width))
    for o, part in enumerate(sums):
        one = part.reduce("add")
        bias = bias_at(em, o)
        if bias is not None:
            one = one + bias.load()
        value = value.with_lane(o, one)
    return value
