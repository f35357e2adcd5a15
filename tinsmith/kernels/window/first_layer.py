"""Convolution from a plain image of few channels to channel-blocked data.

Networks begin with three channels in plain order; as blocks of 16 channels they would take five
times the memory. So a band of input rows is copied into a zero-padded workspace, or read in place
if no window reaches beyond the image. All panels of output channels broadcast pixels from there.
"""

from __future__ import annotations

from dataclasses import replace

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import LINE, PLAIN
from tinsmith.kernels.window.contract import Contraction, bias_at, contract, initial
from tinsmith.kernels.window.convolve import grid, store_tile
from tinsmith.kernels.window.geometry import Geometry, Triple, image_of
from tinsmith.kernels.window.padded import Reach, copy_rows, room
from tinsmith.kernels.window.panels import Panel, every_panel
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Panels, Sink, digits, panels, tiling, walk
from tinsmith.kernels.window.ways import tap_levels
from tinsmith.kernels.window.weights import ChannelBlocks, pack_bias, pack_panels
from tinsmith.records import dataclass
from tinsmith.sizes import typical

EFFICIENCY = 0.98  # of the peak, beside what the tiling counts (estimated)
WORKSPACE = 96 << 10  # bytes that a band of input rows should not exceed (estimated)
MOST_CHANNELS = 8  # of the input, where a block has no more lanes than those (estimated)


@dataclass(frozen=True)
class Band:
    """How output planes are cut into bands of rows, and how the input rows of a band lie in the
    workspace; distances are in elements."""

    rows: int  # output rows of a band
    count: int  # bands of one output plane
    lines: int  # input rows of a full band
    pitch: int  # pixels of an input row, with padding
    step: Triple  # from one (plane, row, pixel) to the next, as `geometry.steps`
    channel: int  # from one channel to the next
    copied: bool  # False: the input is read in place


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_first_layer(site: Site) -> Choice:
    """Convolution of a plain image of few channels (8, or less than a block), in bands of rows."""
    conv = dense_site(site)
    geo, width = conv.geo, conv.width
    if geo.channels >= width and geo.channels > MOST_CHANNELS:
        raise Skip(f"{geo.channels} input channels are enough for a block of {width}")
    step = max(s for s in range(1, 8) if geo.channels % s == 0)
    blocks = ChannelBlocks(1, geo.channels, geo.channels, step)
    depth = geo.channels * geo.taps
    cut = panels(site.target, geo.out_channels, 1, geo.out[2], depth)
    band = _band(geo)
    planes = geo.batch * geo.out[0]
    flops = 2 * width * cut.cost * typical(planes * geo.out[1] * depth)
    copies = typical(geo.channels * geo.kernel[0] * band.lines * band.pitch * band.count * planes)
    plan = tiling(site.target, 1, geo.out[2], cut.main if cut.count else cut.tail, depth)
    made = conv.choice(
        conv.time(flops, EFFICIENCY) + site.target.time(0, 8.0 * copies if band.copied else 0.0),
        one_phase(planes * band.count, lambda em: emit_first_layer(em, geo, cut, blocks, band)),
        [
            Packed("weights", pack_panels, (conv.weights, cut, blocks)),
            *conv.packed_bias(pack_bias, cut),
        ],
        workspace=4 * room(geo.channels * band.channel) if band.copied else 0,
        detail=f"tile {plan}x{cut}, bands of {band.rows} rows",
    )
    return replace(made, reads=(PLAIN, *made.reads[1:]))


def _band(geo: Geometry) -> Band:
    """Bands of a 16th of the output's rows, or of fewer, at least one, so that their input fits
    into WORKSPACE."""
    copied = any(geo.begin) or any(geo.after)
    pitch = geo.span(2, geo.out[2])
    rows = typical(-(-geo.out[1] // 16))
    each = typical(4 * geo.channels * geo.kernel[0] * pitch)
    while rows > 1 and geo.span(1, rows) * each > WORKSPACE:
        rows -= 1
    count, lines = -(-geo.out[1] // rows), geo.span(1, rows)
    plane = lines * pitch
    return Band(rows, count, lines, pitch, (plane, pitch, 1), geo.kernel[0] * plane, copied)


@dataclass(frozen=True)
class Rows:
    """The input rows of a band, copied or in place. `x` is the address of the first window's first
    pixel; from there channels are `channel` elements apart, pixels `step` on each axis."""

    geo: Geometry
    x: Ptr
    channel: int
    step: Triple


def emit_first_layer(
    em: Emit, geo: Geometry, cut: Panels, blocks: ChannelBlocks, band: Band
) -> None:
    """Emit the kernel; its tiles are (batch, output plane, band), the band innermost. Input rows
    are copied once for all panels of the band, or read in place (`band.copied`)."""
    b = em.b
    with b.loop(em.begin, em.end) as t:
        index, d, n = digits(t, band.count, geo.out[0])
        first = index * band.rows
        source = _rows_of(em, geo, band, n, d, first)
        count = b.minimum(band.rows, b.index(geo.out[1]) - first)
        sink = Sink(em, geo).at(n, 0, d, first)
        every_panel(b, cut, lambda panel: _emit_panel(em, source, blocks, panel, count, sink))


def _rows_of(
    em: Emit, geo: Geometry, band: Band, n: Val | int, d: Val | int, first: Val | int
) -> Rows:
    """The input rows of the band of outputs of image n that begins with row `first` of plane d.
    Emits the copy to the workspace, unless they are read in place."""
    b, source = em.b, image_of(em.input(0), geo)
    image, channel, step = source.pointer + n * source.batch, source.plane, source.step
    if not band.copied:
        x = image + d * (geo.stride[0] * step[0]) + first * (geo.stride[1] * step[1])
        return Rows(geo, x, channel, step)
    x = em.workspace.cast(F32)
    corner = (
        b.index(d) * geo.stride[0] - geo.begin[0],
        b.index(first) * geo.stride[1] - geo.begin[1],
        -geo.begin[2],
    )
    extent = (band.lines, band.pitch)
    copy_rows(b, Reach(image, x, geo, corner, extent, geo.channels, channel, step))
    return Rows(replace(geo, dilation=(1, *geo.dilation[1:])), x, band.channel, band.step)


def _emit_panel(
    em: Emit, source: Rows, blocks: ChannelBlocks, panel: Panel, rows: Val | int, sink: Sink
) -> None:
    """Emit `rows` rows of outputs of one panel; `sink` stands at the first."""
    b, geo, step, lanes = em.b, source.geo, source.step, panel.lanes
    far = typical(em.outs[0].spec.nbytes) > em.target.l2 // 2
    w = (em.packed[0] + panel.channel * (blocks.stored * geo.taps)).fixed()
    bias = bias_at(em, panel.channel)
    levels = tap_levels(geo, step, blocks.stored * sum(lanes))
    it = Contraction(lanes, blocks, levels, source.channel)
    plan = tiling(em.target, 1, geo.out[2], lanes, blocks.padded * geo.taps)
    stride = geo.stride[2] * step[2]
    with b.loop(0, rows) as r:
        line = source.x + r * (geo.stride[1] * step[1])
        out = sink.at(0, panel.block, 0, r)

        def tile(c: Val | int, wide: int) -> None:
            pixels = [j * stride for j in range(wide)]
            start = initial(b, bias, lanes) * wide
            corner = (line + c * stride).fixed()
            if far:
                _ask_for_row(out.at(0, 0, 0, 1, c), wide, len(lanes))
            done = contract(b, it, corner, w, start, pixels)
            store_tile(out.at(0, 0, 0, 0, c), done, grid(1, wide), len(lanes))

        walk(b, plan.cols, 0, 1, tile)


def _ask_for_row(sink: Sink, wide: int, vectors: int) -> None:
    """Emit prefetches, for writing, of the cache lines of `wide` results in a row, of `vectors`
    vectors each, from where `sink` stands: stores would wait for lines that are far away."""
    out = sink.em.outs[0]
    for o in range(vectors):
        for j in range(0, wide, max(1, LINE // sink.width)):
            out.at(*sink.geometry.place((0, o, 0, 0, j))).fixed().prefetch(True)
