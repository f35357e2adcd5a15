"""Channels picked from several tensors (ChannelGather), by shuffles of lanes on channel-blocked
data or copies on plain data; and DepthToSpace on channel-blocked data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from tinsmith.codegen.builder import Ptr
from tinsmith.kernels._kernel import Choice, Emit, Layout, Phase, Site, Skip, Tier, kernel
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.move.moves import copies
from tinsmith.kernels.sharing import PARTS, by_positions, whole_shares
from tinsmith.kernels.transpose import blend
from tinsmith.kernels.walk import Position, Walk, run
from tinsmith.sizes import typical

PART = 32 << 10  # bytes of output of a tile, about (estimated)
SHUFFLE = 0.4e-9  # seconds of a two-source shuffle (estimated)

Lane = tuple[int, int]  # input, channel
Mix = list[tuple[int, int, list[int]]]
"""How an output block of channels is made of input blocks: for each of these its input, its number,
and for each output lane which of its lanes goes there, or -1."""


@kernel("ChannelGather", Tier.VECTOR)
def channel_gather(site: Site) -> list[Choice]:
    """Lane shuffles between channel blocks, or copies of whole planes on plain data.

    Two choices; the shuffles only for four-byte elements."""
    choices = [copies(site)]
    if site.out.dtype.itemsize == 4:
        choices.append(_blocks(site))
    return choices


def channels_of(sources: Sequence[tuple[int, int, int]]) -> list[Lane]:
    """(input, channel) of each output channel. `sources`: stretches (input, first channel, count)
    of channels that follow each other in the output."""
    return [(i, lo + k) for i, lo, count in sources for k in range(count)]


def mix_of(lanes: Sequence[Lane], block: int) -> Mix:
    """The `Mix` of an output block of channels: (input, input block, for each output lane its lane
    there or -1), sorted. lanes[k] = (input, channel) goes to output lane k; lanes beyond stay
    empty. All blocks have `block` channels."""
    places = sorted((i, c // block, k, c % block) for k, (i, c) in enumerate(lanes))
    mix: Mix = []
    for (i, source), group in groupby(places, key=lambda p: p[:2]):
        picked = [-1] * block
        for _, _, k, lane in group:
            picked[k] = lane
        mix.append((i, source, picked))
    return mix


def _blocks(site: Site) -> Choice:
    """The choice of lane shuffles on channel-blocked data."""
    block = block_of(site.target)
    lanes = channels_of(site.attr("sources"))
    mixes = [mix_of(lanes[k : k + block], block) for k in range(0, len(lanes), block)]
    n, pixels = site.out.dims[0], prod(site.out.dims[2:])
    parts = max(1, min(pixels * block * 4 // PART, pixels))
    source = max((site.input(i) for i in range(len(site.inputs))), key=lambda v: v.type.nbytes)
    shares = whole_shares(min(pixels, PARTS), site.threads)
    near = n == 1 and by_positions(
        site, source, read=site.out.type.nbytes, flops=0.0, parts=(shares, len(mixes)),
        planes=2 * len(mixes),
    )  # fmt: skip
    if near:
        parts = whole_shares(parts, site.threads)
    loads = sum(map(len, mixes))
    vectors = len({(i, source) for mix in mixes for i, source, _ in mix}) + len(mixes)
    nbytes = 4 * block * n * pixels * vectors
    cost = 0.2e-6 + site.target.time(0, nbytes) + typical(n * pixels) * loads * SHUFFLE
    layout = Layout(block)

    def emit(em: Emit) -> None:
        b = em.b
        each = n * parts
        for k, mix in enumerate(mixes):
            lo = b.index(b.maximum(em.begin, k * each))
            hi = b.index(b.minimum(em.end, (k + 1) * each))
            with b.loop(lo, hi) as tile:
                here = tile - k * each
                part, image = here % parts, here // parts
                _mix_rows(em, mix, k, image, part, parts)

    return Choice(
        cost, (layout,) * len(site.inputs), (layout,),
        (Phase(len(mixes) * n * parts, emit, sweep=parts if near else 0),),
        by_channels=n == 1 and not near, detail=f"{loads} vectors into {len(mixes)}",
    )  # fmt: skip


def _mix_rows(em: Emit, mix: Mix, k: int, image: Position, part: Position, parts: int) -> None:
    """Emit share number `part` of `parts` of the pixels of output block k of one image. Each pixel
    is blended from the vectors that `mix` names."""
    b, out = em.b, em.outs[0]
    block = out.spec.layout.block
    views = [out, *(em.input(i) for i, _, _ in mix)]
    numbers = [k, *(source for _, source, _ in mix)]
    planes = [v.at(image, c).fixed() for v, c in zip(views, numbers, strict=True)]
    walk = Walk(out.spec.spatial, [v.spec.strides[2:] for v in views])
    picks = [picked for _, _, picked in mix]

    def row(starts: Sequence[Ptr], lo: Position, hi: Position) -> None:
        def pixel(p: Position) -> None:
            steps = [p * step for step in walk.steps]
            loaded = [(x + s).load(block) for x, s in zip(starts[1:], steps[1:], strict=True)]
            (starts[0] + steps[0]).store(blend(loaded, picks))

        run(b, lo, hi, pixel)

    walk.shared(b, planes, part, parts, row)


@kernel("DepthToSpace", Tier.VECTOR)
def depth_to_space_blocks(site: Site) -> Choice:
    """Channels that become r x r blocks of pixels, on channel-blocked data, in mode DCR.

    Only where the result's channels are whole channel blocks."""
    site.need_no_epilogue("a copy has no epilogue")
    block, r = block_of(site.target), site.attr("blocksize")
    n, channels, height, width = site.out.dims
    if site.attr("mode") != "DCR" or channels % block:
        raise Skip(f"{channels} channels in mode {site.attr('mode')} are no whole blocks that stay")
    blocks, layout = channels // block, Layout(block)

    def emit(em: Emit) -> None:
        """A tile is one row of one block of the result."""
        b, x, out = em.b, em.input(0), em.outs[0]
        with b.loop(em.begin, em.end) as t:
            image, rest = t // (blocks * height), t % (blocks * height)
            at, y = rest // height, rest % height
            first = y % r * (r * blocks) + at  # the input's block for the pixels of even steps
            source = [x.at(image, first + j * blocks, y // r, 0).fixed() for j in range(r)]
            sink = out.at(image, at, y, 0).fixed()
            with b.loop(0, width // r) as w:
                for j, line in enumerate(source):
                    (sink + (w * r + j) * block).store((line + w * block).load(block))

    cost = 1e-6 + site.target.time(0, 2 * site.out.type.nbytes)
    return Choice(cost, (layout,), (layout,), (Phase(n * blocks * height, emit),))
