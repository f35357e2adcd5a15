"""Winograd convolution of channel-blocked data, in three stages: transform, multiply, transform
back.

Large images are cut into blocks of tiles whose V and M stay in L2; a thread takes a block through
all three stages. If one block holds all tiles, each stage is a phase of its own, which threads
share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.matrix import CONFIGURATION
from tinsmith.codegen.products import MATRICES
from tinsmith.graph import Array
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import Choice, Emit, Packed, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.float_products import are_moderate, can_be_split, float_product
from tinsmith.kernels.narrow import EVENLY, need_words
from tinsmith.kernels.stages import Stage, stage
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.site import ConvSite, dense_site
from tinsmith.kernels.window.weights import padded_bias
from tinsmith.kernels.winograd import split_precision
from tinsmith.kernels.winograd.choose import (
    algorithms,
    best_plan,
    free_plan,
    is_free,
    taps_plan,
    typical_geometry,
    without_sizes,
)
from tinsmith.kernels.winograd.fetch import Prefetch, tensors
from tinsmith.kernels.winograd.frames import Rooms
from tinsmith.kernels.winograd.inputs import input_stage
from tinsmith.kernels.winograd.matrices import Bilinear
from tinsmith.kernels.winograd.outliers import Sizes
from tinsmith.kernels.winograd.outputs import output_stage
from tinsmith.kernels.winograd.product import product_stage
from tinsmith.kernels.winograd.repair import pack_inverse, pack_present
from tinsmith.kernels.winograd.taps import pack_taps, taps_stage
from tinsmith.kernels.winograd.tiling import Frames, WinogradPlan
from tinsmith.kernels.winograd.weights import pack, packed_bytes

LEAST_REGISTERS = 32
"""The fewest vector registers for 24-bit weights: with fewer, the parts of every fourth weight
would be spilled. Estimated."""
SMALLEST = 1e-30
"""The largest weight must have at least this magnitude: transformed weights may be a thousand times
smaller, and must not be denormal."""


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def winograd(site: Site) -> list[Choice]:
    """Winograd convolution F(m, r) on channel-blocked data, one choice for each tile size."""
    return choices(site, site.precision)


@kernel("Conv", Tier.SHAPED, dtypes="float32", isas="amx", numbers=True)
def winograd_amx(site: Site) -> list[Choice]:
    """Winograd convolution F(m, r) by split-precision products on matrix registers."""
    return choices(site, "split")


@kernel("Conv", Tier.SHAPED, dtypes="float32", numbers=True)
def winograd_narrow(site: Site) -> list[Choice]:
    """Winograd convolution F(m, r) with transformed weights of 24 bits each."""
    return choices(site, site.precision, words=True)


@kernel("Conv", Tier.SHAPED, dtypes="float32", numbers=True)
def winograd_taps(site: Site) -> list[Choice]:
    """Winograd convolution F(m, r) that makes its transformed weights anew in each run."""
    return choices(site, site.precision, of_taps=True)


def choices(site: Site, precision: str, words: bool = False, of_taps: bool = False) -> list[Choice]:
    """One choice for each algorithm whose error growth `precision` (a key of GROWTH) allows.
    `words`: weights have 24 bits (`kernels/narrow`); `of_taps`: kept as taps (`taps.py`). Raises
    Skip as `plane_site` does, for "split" as `float_product`, for `words` as `need_words`; if no
    choice is left, there are fewer input or output channels than in one block, all weights are
    nearly 0, or free sizes meet frames or dilation; for `of_taps` also if weights are huge or not
    finite, or of fewer bytes than `narrow.LEAST`."""
    conv = plane_site(site)
    geo, w, width, frames = conv.geo, conv.weights, conv.width, None
    if geo.channels < width or geo.out_channels < width:
        raise Skip(f"{geo.channels} to {geo.out_channels} channels do not fill blocks of {width}")
    found = need_algorithms(geo, precision)
    need_normal(w)
    if precision == "split":
        float_product(site, MATRICES, w)
    if words:
        if site.target.registers < LEAST_REGISTERS:
            raise Skip(f"parts of weights do not fit in {site.target.registers} registers")
        need_words(site, w.reshape(len(w), -1).T, width, EVENLY)
    if of_taps and w.nbytes < narrow.LEAST:
        raise Skip(f"{w.nbytes} bytes of weights seldom come from memory")
    if of_taps and not are_moderate(w):
        raise Skip("weights are very large, infinite or NaN, and sums of them might not be finite")
    if geo.rank == 3:
        frames, geo = by_frames(geo, width)
    offered = []
    target, threads, split = site.target, site.threads, precision == "split"
    if is_free(geo) and (geo.rank == 3 or max(geo.dilation) > 1):
        raise Skip("frames, and images with gaps, need all sizes as numbers")
    for rows, cols in found:
        if is_free(geo):
            made = free_plan(target, geo, rows, cols, threads)
        elif of_taps:
            made = taps_plan(target, geo, rows, cols, threads)
        else:
            made = best_plan(target, geo, rows, cols, threads, split, words)
        if made is not None:
            plan = replace(made[0], frames=frames)
            offered.append(choice(conv, plan, planes, made[1]))
    if not offered:
        raise Skip("the sums of so many tiles do not stay in the first-level cache")
    return offered


def by_frames(geo: Geometry, width: int) -> tuple[Frames, Geometry]:
    """A three-dimensional convolution as one of planes, whose channels are those of all frames that
    a plane of the output reads: how frames are read, and the geometry of the planes. `width`:
    channels of a block."""
    blocks, (high, wide) = -(-geo.channels // width), geo.kernel[1:]
    halo = geo.begin[0], geo.after[0]
    frames = Frames(geo.out[0], geo.kernel[0], blocks, geo.stride[0], geo.dilation[0], halo)
    planes = replace(
        geo, batch=geo.batch * frames.out, channels=frames.taps * blocks * width,
        size=(1, *geo.size[1:]), out=(1, *geo.out[1:]), kernel=(1, high, wide),
        stride=(1, *geo.stride[1:]), dilation=(1, *geo.dilation[1:]), begin=(0, *geo.begin[1:]),
    )  # fmt: skip
    return frames, planes


def planes(w: Array, plan: WinogradPlan) -> Array:
    """The weights [K, C, *taps] as those of a plan's planes, [K, C', r_h, r_w]: if images are
    frames, C' counts the channels of all frames that a result reads."""
    high, wide = plan.geo.kernel[1:]
    if plan.frames is None:
        return w.reshape(*w.shape[:2], high, wide)
    padded = np.zeros((len(w), plan.frames.blocks * plan.width, *w.shape[2:]), w.dtype)
    padded[:, : w.shape[1]] = w
    return padded.swapaxes(1, 2).reshape(len(w), plan.geo.channels, high, wide)


def plane_site(site: Site) -> ConvSite:
    """A Conv site (of any rank), decoded. Raises Skip if Winograd's method cannot compute it: if it
    has groups, both a stride and dilation, or weights or a bias that are not constant."""
    conv = dense_site(site)
    geo = conv.geo
    if max(geo.dilation[1:]) > 1 and max(geo.stride[1:]) > 1:
        raise Skip(f"stride {geo.stride[3 - geo.rank :]} with dilation")
    return conv


def is_normal(w: Array) -> bool:
    """Whether some weight's magnitude is at least SMALLEST, so that transformed ones are not
    denormal: `Packed.fits` of most plans (of others: the functions below)."""
    return any(np.abs(part).max() >= SMALLEST for part in w)


def can_be_taps(w: Array) -> bool:
    return is_normal(w) and are_moderate(w)


def can_be_split_normally(w: Array) -> bool:
    return is_normal(w) and can_be_split(w)


def can_be_words(w: Array) -> bool:
    return is_normal(w) and narrow.fits(w.reshape(len(w), -1).T, EVENLY)


def need_normal(w: Array) -> None:
    """Raise Skip if transformed weights might be denormal, which would lose precision."""
    if not is_normal(w):
        raise Skip(f"all weights are below {SMALLEST:g}: transformed, they would be less exact")


def need_algorithms(geo: Geometry, precision: str) -> Sequence[tuple[Bilinear, Bilinear]]:
    """The `algorithms` for a convolution. Raises Skip if there is none."""
    if found := algorithms(typical_geometry(geo), precision):
        return found
    kind = "in split precision" if precision == "split" else f"of {precision} precision"
    size = "x".join(map(str, geo.kernel[3 - geo.rank :]))
    stride = "x".join(map(str, geo.stride[3 - geo.rank :]))
    out = "x".join(map(str, geo.out[3 - geo.rank :]))
    raise Skip(
        f"no algorithm {kind} saves multiplications for {size} taps"
        f" at stride {stride} and {out} results"
    )


Turn = Callable[[Array, WinogradPlan], Array]
"""turn(w, plan) is the weights w of a site as those of the plan's two axes, [K, C, r_h, r_w]."""


def choice(
    conv: ConvSite, plan: WinogradPlan, turn: Turn, seconds: float, rooms: Rooms | None = None
) -> Choice:
    """The choice for a plan that is estimated to take `seconds`. `turn`: see `Turn`; `rooms`: where
    its memory lies, by default `Rooms()`."""
    rooms = rooms or Rooms()
    own = 4 * plan.edge + CONFIGURATION * plan.split
    return conv.choice(
        seconds, phases(plan, rooms), constants(without_sizes(plan), conv.weights, turn, conv.bias),
        plan.halo, workspace=own if plan.whole else 4 * plan.size + own,
        scratch=4 * plan.size if plan.whole else 0, detail=str(plan),
    )  # fmt: skip


def constants(plan: WinogradPlan, w: Array, turn: Turn, bias: Array | None) -> tuple[Packed, ...]:
    """The packed arrays of a plan: its weights, its bias, and, unless weights are kept as taps, the
    matrix that recovers taps from transformed weights and the mask of taps that are not zero
    (`repair.py`). `w` are the site's weights, which `turn` converts."""
    make, fits = pack, can_be_words if plan.words else is_normal
    if plan.of_taps:
        make, fits = pack_taps, can_be_taps
    elif plan.split:
        make, fits = split_precision.pack, can_be_split_normally
    weights = Packed("weights", _turned, (make, turn, w, plan), packed_bytes(plan), fits)
    padded = Packed("bias", padded_bias, (bias, plan.outputs * plan.width))
    if plan.of_taps:
        return weights, padded
    present = Packed("present", _turned, (pack_present, turn, w, plan))
    return weights, padded, Packed("inverse", pack_inverse, (plan,)), present


def _turned(pack: Turn, turn: Turn, w: Array, plan: WinogradPlan) -> Array:
    """The site's weights w, converted by `turn`, then packed by `pack`: one function, as `Packed`
    wants."""
    return pack(turn(w, plan), plan)


def phases(plan: WinogradPlan, rooms: Rooms) -> tuple[Phase, ...]:
    """One phase over blocks or, if the plan is `whole`, one for each of the three stages."""
    if not plan.whole:
        return (Phase(plan.blocks, lambda em: emit_blocks(em, plan, rooms)),)

    def lines(groups: int, function: Callable[..., Stage]) -> Phase:
        def emit(em: Emit) -> None:
            emit_lines(em, plan, function(em, plan, rooms))

        return Phase(groups * plan.lines, emit, sweep=plan.lines)

    products = Phase(plan.units, lambda em: emit_products(em, plan, rooms))
    return lines(plan.groups, input_function), products, lines(plan.outputs, output_function)


def input_function(em: Emit, plan: WinogradPlan, rooms: Rooms) -> Stage:
    """Emit `input_stage` as a function of its own. Returns call(g0, g1, t0, t1, base), which emits
    a call of it."""
    return stage(
        em, "inputs", "g0 g1 t0 t1 base", lambda em, *at: input_stage(em, plan, rooms, *at)
    )


def output_function(em: Emit, plan: WinogradPlan, rooms: Rooms) -> Stage:
    """Emit `output_stage` as a function of its own. Returns call(k0, k1, t0, t1, base), which emits
    a call of it."""
    return stage(
        em, "outputs", "k0 k1 t0 t1 base", lambda em, *at: output_stage(em, plan, rooms, *at)
    )


def emit_blocks(em: Emit, plan: WinogradPlan, rooms: Rooms) -> None:
    """Emit the only phase of a plan that is not `whole`: all stages, where a tile is a block."""
    b = em.b
    even = not plan.is_free and plan.total % plan.blocks == 0

    def body(em: Emit, u0: Val, u1: Val, start: Val, count: Val | int) -> None:
        count = plan.tiles if even else count
        prefetch = tensors(em, plan, rooms.source(em), start, count)
        space = rooms.space(em, plan)
        Sizes(plan, space).judge(em.b, count)
        multiply(em, plan, rooms, u0, u1, count, prefetch)

    inputs = input_function(em, plan, rooms)
    products = stage(em, "products", "u0 u1 start count", body)
    outputs = output_function(em, plan, rooms)
    with b.loop(em.begin, em.end) as block:
        start = block * plan.total // plan.blocks
        stop = (block + 1) * plan.total // plan.blocks
        inputs(0, plan.groups, start, stop, start)
        products(0, plan.units, start, stop - start)
        outputs(0, plan.outputs, start, stop, start)


def emit_lines(em: Emit, plan: WinogradPlan, transform: Stage) -> None:
    """Emit the phase of one `transform`, of data or of results. A tile of the phase is a pair of a
    group of channel blocks, or an output block, and a row of tiles."""
    with em.b.loop(em.begin, em.end) as unit:
        g, line = unit // plan.lines, em.b.index(unit % plan.lines)
        transform(g, g + 1, line * plan.across, (line + 1) * plan.across, 0)


def emit_products(em: Emit, plan: WinogradPlan, rooms: Rooms) -> None:
    """Emit the phase of the products. A tile of the phase is one of `WinogradPlan.units`; the first
    also judges the sizes of the block's tiles (`Sizes.judge`)."""
    with em.b.when(em.begin.eq(0)):
        Sizes(plan, rooms.space(em, plan)).judge(em.b, plan.tiles)
    multiply(em, plan, rooms, em.begin, em.end, plan.tiles)


def multiply(
    em: Emit, plan: WinogradPlan, rooms: Rooms, u0: Val, u1: Val, count: Val | int,
    prefetch: Prefetch | None = None,
) -> None:  # fmt: skip
    """Emit the products of the units [u0, u1) (`WinogradPlan.units`) of a block of `count` tiles:
    in split precision, by weights that are made of taps, or by transformed weights, as the plan
    says. `prefetch(i)`: see `product_stage`."""
    space = rooms.space(em, plan)
    if plan.split:
        split_precision.product_stage(em, plan, space, rooms.registers(em, plan), u0, u1, prefetch)
    elif plan.of_taps:
        taps_stage(em, plan, space, u0, u1)
    else:
        product_stage(em, plan, space, u0, u1, count, prefetch)
