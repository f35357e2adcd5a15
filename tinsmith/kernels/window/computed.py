"""Depthwise convolution whose weights are computed when the model runs: packed, then as usual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.builder import Ptr
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import PLAIN, Choice, Emit, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.depthwise import EFFICIENCY, depthwise_cut, emit_depthwise
from tinsmith.kernels.window.direct import traffic
from tinsmith.kernels.window.tiles import bands

PACKING = 2e-9  # seconds of one weight, about


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_depthwise_computed(site: Site) -> Choice:
    """Depthwise convolution by computed weights, on channel-blocked data."""
    w = site.input(1)
    if w.const is not None:
        raise Skip("the weights are a constant")
    if site.has(2):
        raise Skip("there is a bias")
    geo, blocks, plan, flops = depthwise_cut(site)
    width = block_of(site.target)
    count = bands(geo.batch * blocks, plan.most_bands)
    time = site.target.time(flops, traffic(geo, geo.channels * geo.taps), EFFICIENCY)

    def compute(em: Emit) -> None:
        emit_depthwise(replace(em, packed=(em.scratch.cast(F32),)), geo, blocks, count)

    return Choice(
        cost=time + PACKING * blocks * width * geo.taps,
        reads=site.reads([Layout(width, geo.halo), PLAIN, *(None for _ in site.inputs[2:])],
                         Layout(width)),
        writes=(Layout(width),),
        phases=(
            Phase(blocks, _packing(geo.channels, geo.taps, width)),
            Phase(geo.batch * blocks * count, compute),
        ),
        scratch=4 * blocks * width * geo.taps,
        detail=f"tile {plan}",
    )  # fmt: skip


def _packing(channels: int, taps: int, width: int) -> Callable[[Emit], None]:
    """[C, taps] as [channel block][tap][lane] in scratch; lanes beyond the channels are zero."""

    def emit(em: Emit) -> None:
        b, source = em.b, em.ins[1]
        assert source is not None
        x, y = source.pointer, em.scratch.cast(F32)
        with b.loop(em.begin, em.end) as block, b.loop(0, width) as lane:
            channel = block * width + lane
            to = y + block * (taps * width) + lane

            def copy(channel: Ptr = x + channel * taps, to: Ptr = to) -> None:
                with b.loop(0, taps) as i:
                    (to + i * width).store((channel + i).load())

            def clear(to: Ptr = to) -> None:
                with b.loop(0, taps) as i:
                    (to + i * width).store(b.zero(F32))

            b.choose(channel < channels, copy, clear)

    return emit
