"""1x1, depthwise and 1x1 convolutions as one kernel; and a convolution of an image whose channels
are scaled.

The first 1x1 convolution expands an image to more channels, whose rows go into a ring buffer in the
core's cache. When all rows that the next output rows read are there, the depthwise convolution
filters them, and the last one projects the result to fewer channels. So the expanded image never
goes to memory.

Where numbers s that only the run knows scale the channels of an image x, W (s x) = (W s) x:
`conv_scaled` scales the weights W, and reads the image as it is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tinsmith.codegen.types import F32
from tinsmith.graph import Value
from tinsmith.kernels._kernel import (
    Choice,
    Emit,
    Packed,
    Phase,
    Site,
    Skip,
    Tier,
    View,
    kernel,
    one_phase,
)
from tinsmith.kernels.block.emit import emit_block, tiles_of, workspace
from tinsmith.kernels.block.plan import BlockPlan, plan_block
from tinsmith.kernels.block.stages import Stages, broadcast, stages_of
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.trace import make_site
from tinsmith.kernels.walk import spots
from tinsmith.kernels.window.depthwise import pack_taps
from tinsmith.kernels.window.direct import direct, way_of
from tinsmith.kernels.window.site import conv_site
from tinsmith.kernels.window.ways import Blocked
from tinsmith.kernels.window.weights import pack_bias, pack_panels
from tinsmith.ops._arithmetic import multiplies
from tinsmith.ops._weights import is_convolution


@kernel("Block", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_block(site: Site) -> Choice:
    """Depthwise convolution with a 1x1 before, after or both, by rows through the core's cache."""
    stages = stages_of(site)
    reads = stages.reads()
    plan = plan_block(site.target, stages.shape)
    return Choice(
        cost=plan.cost, reads=reads, writes=(Layout(stages.width),),
        phases=one_phase(tiles_of(stages, plan), lambda em: emit_block(em, stages, plan)),
        packed=tuple(_packed(stages, plan)), workspace=workspace(stages, plan),
        detail=f"{plan.most} rows, {plan.bands} bands",
    )  # fmt: skip


def _packed(stages: Stages, plan: BlockPlan) -> list[Packed]:
    """The packed arrays of all convolutions of a block, in order (see `Stage.packed`)."""
    found: list[Packed] = []
    for name, stage, dense in (
        ("expand", stages.expand, plan.expand),
        ("depthwise", stages.depthwise, None),
        ("project", stages.project, plan.project),
    ):
        if stage is None:
            continue
        weights = bias = (pack_taps, stages.width)
        if dense is not None:
            weights = (pack_panels, dense.panels, dense.blocks)
            bias = (pack_bias, dense.panels)
        found += stage.packed(name, weights, bias)
    return found


# ---- scaled channels


@kernel("Block", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_scaled(site: Site) -> Choice:
    """A 1x1 convolution of one image that scales its weights instead of the image's channels.

    For blocks of a product, an image by one factor for each channel, and a convolution without
    groups at stride 1. The first phase scales the packed weights, into scratch (`emit_scale`)."""
    x, factors, conv = _parts(site)
    dense, inputs = conv_site(conv), site.attr("body").inputs
    geo, w = dense.geo, dense.weights
    if dense.groups != 1 or not geo.is_pointwise:
        raise Skip(f"{conv.node.name} is no 1x1 convolution of all channels at stride 1")
    if geo.batch > 1:
        raise Skip(f"there are {geo.batch} images, which share the weights")
    way = way_of(site.target, geo)
    made = direct(dense)
    wanted = {x: made.reads[0], factors: Layout(block_of(site.target))}
    for v, layout in zip(conv.extras, made.reads[len(conv.inputs) :], strict=True):
        if v not in inputs:
            raise Skip(f"the epilogue reads {v.name}, which is no input of the block")
        if wanted.setdefault(v, layout) != layout:
            raise Skip(f"{v.name} is read in two layouts")

    def scale(em: Emit) -> None:
        emit_scale(em, em.input(inputs.index(factors)), way)

    def convolve(phase: Phase, em: Emit) -> None:
        extras = tuple(broadcast(em.input(inputs.index(v)), conv) for v in conv.extras)
        ins = (em.ins[inputs.index(x)], *(None for _ in conv.inputs[1:]))
        packed = (em.scratch.cast(F32), *em.packed[1:])
        phase.emit(replace(em, site=conv, ins=ins, extras=extras, packed=packed))

    convolutions = [replace(phase, emit=partial(convolve, phase)) for phase in made.phases]
    return replace(
        made,
        cost=made.cost + w.nbytes / site.target.l3_bandwidth + site.target.time(0, 8.0 * w.size),
        reads=tuple(wanted.get(v) for v in inputs),
        phases=(Phase(way.blocks.count, scale), *convolutions),
        scratch=4 * way.rows * way.stored,
    )


def _parts(site: Site) -> tuple[Value, Value, Site]:
    """(the image, its channels' factors, the site of the convolution) of a block that is the
    product of the two and a float32 convolution of that. Raises Skip for other blocks."""
    first, *rest = site.attr("body").nodes
    if not multiplies(first) or len(rest) != 1:
        raise Skip("it is no product before one convolution")
    x, factors = sorted(filter(None, first.inputs), key=lambda v: -v.type.size)
    if x.dims != first.output.dims or factors.dims != (*x.dims[:2], 1, 1) or x.dims == factors.dims:
        raise Skip(f"{first.name} is no product of an image and one number for each channel")
    for v in (x, factors):
        if v not in site.attr("body").inputs:
            raise Skip(f"{v.name} is a constant")
    conv = make_site(rest[0], site.target, site.precision)
    if not is_convolution(conv.anchor) or conv.out.dtype != np.float32:
        raise Skip(f"{rest[0].name} is no convolution in float32")
    conv.threads = site.threads
    return x, factors, conv


def emit_scale(em: Emit, factors: View, way: Blocked) -> None:
    """Emit the phase that writes to scratch the packed weights times the factors of their input
    channels. A tile is one block of input channels. `way`: how weights are packed."""
    b, source, scaled = em.b, em.packed[0], em.scratch.cast(F32)
    cut, blocks, depth, first = way.panels, way.blocks, way.stored, 0
    with b.loop(em.begin, em.end) as block:
        s = factors.at(0, block, 0, 0)
        for count, lanes in ((cut.count, cut.main), (1, cut.tail)):
            if not count or not lanes:
                continue
            row = sum(lanes)
            with b.loop(0, count) as p, b.loop(0, blocks.stored) as c:
                place = (p * row + first) * depth + (block * blocks.stored + c) * row
                factor = s + c
                for offset, wide in spots(lanes):
                    at = place + offset
                    (scaled + at).store((source + at).load(wide) * factor.splat(wide))
            first += count * row
