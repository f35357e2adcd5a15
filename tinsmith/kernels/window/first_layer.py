"""Convolution from a plain image of few channels to channel-blocked data.

Networks begin with three channels in plain order; as blocks of 16 channels they would take five
times the memory. So a band of input rows is copied into a zero-padded workspace, or read in place
if no window reaches beyond the image. All panels of output channels broadcast pixels from there.
"""

from __future__ import annotations

from dataclasses import replace

from tinsmith.codegen.builder import Val
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import LINE, PLAIN
from tinsmith.kernels.window.contract import Contraction, bias_at, contract, initial
from tinsmith.kernels.window.convolve import grid, store_tile
from tinsmith.kernels.window.geometry import Geometry, image_of, triple
from tinsmith.kernels.window.padded import room
from tinsmith.kernels.window.panels import Panel, every_panel
from tinsmith.kernels.window.plain import Rows, Segment, Segments
from tinsmith.kernels.window.site import dense_site
from tinsmith.kernels.window.tiles import Panels, Sink, digits, panels, tiling, walk
from tinsmith.kernels.window.ways import tap_levels
from tinsmith.kernels.window.weights import ChannelBlocks, pack_bias, pack_panels
from tinsmith.sizes import typical

EFFICIENCY = 0.98  # of the peak, beside what the tiling counts (estimated)
WORKSPACE = 96 << 10  # bytes that a band of input rows should not exceed (estimated)
MOST_CHANNELS = 8  # of the input, where a block has no more lanes than those (estimated)


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
    rows, bands = _bands(geo)
    planes = geo.batch * geo.out[0]
    flops = 2 * width * cut.cost * typical(planes * geo.out[1] * depth)
    copied = geo.channels * geo.kernel[0] * bands.plane()  # of a band
    copies = typical(copied * bands.bands * planes)
    plan = tiling(site.target, 1, geo.out[2], cut.main if cut.count else cut.tail, depth)
    made = conv.choice(
        conv.time(flops, EFFICIENCY) + site.target.time(0, 8.0 * copies if bands.copied else 0.0),
        one_phase(planes * bands.bands, lambda em: _emit(em, geo, cut, blocks, rows, bands)),
        [
            Packed("weights", pack_panels, (conv.weights, cut, blocks)),
            *conv.packed_bias(pack_bias, cut),
        ],
        workspace=4 * room(copied) if bands.copied else 0,
        detail=f"tile {plan}x{cut}, bands of {rows} rows",
    )
    return replace(made, reads=(PLAIN, *made.reads[1:]))


def _bands(geo: Geometry) -> tuple[int, Segments]:
    """(rows, cut): bands of `rows` rows of the output, the last perhaps of fewer, as segments. They
    have a 16th of all rows, or fewer, at least one, so that their input fits into WORKSPACE."""
    pitch = geo.span(2, geo.out[2])
    rows = typical(-(-geo.out[1] // 16))
    each = typical(4 * geo.channels * geo.kernel[0] * pitch)
    while rows > 1 and geo.span(1, rows) * each > WORKSPACE:
        rows -= 1
    count, copied = -(-geo.out[1] // rows), any(geo.begin) or any(geo.after)
    last = geo.out[1] - (count - 1) * rows
    return rows, Segments(count, 1, last, geo.out[2], geo.span(1, rows), pitch, copied)


def _emit(
    em: Emit, geo: Geometry, cut: Panels, blocks: ChannelBlocks, rows: int, bands: Segments
) -> None:
    """Emit the kernel; its tiles are (batch, output plane, band), the band innermost. Input rows
    are copied once for all panels of the band, or read in place (`Segments.copied`)."""
    b, image = em.b, image_of(em.input(0), geo)
    with b.loop(em.begin, em.end) as t:
        index, d, n = digits(t, bands.bands, geo.out[0])
        first, corner = index * rows, image.pointer + n * image.batch
        whole = Segment(geo, bands, n, 0, (d, first, 0), rows, geo.out[2], corner)
        source = whole.rows(em, 0, geo.channels)
        count = b.minimum(rows, b.index(geo.out[1]) - first)
        sink = Sink(em, geo).at(n, 0, d, first)
        every_panel(b, cut, lambda panel: _emit_panel(em, geo, source, blocks, panel, count, sink))


def _emit_panel(
    em: Emit, geo: Geometry, source: Rows, blocks: ChannelBlocks, panel: Panel, rows: Val | int,
    sink: Sink,
) -> None:  # fmt: skip
    """Emit `rows` rows of outputs of one panel; `sink` stands at the first."""
    b, lanes, (channel, *gaps) = em.b, panel.lanes, source.reach
    far = typical(em.outs[0].spec.nbytes) > em.target.l2 // 2
    w = (em.packed[0] + panel.channel * (blocks.stored * geo.taps)).fixed()
    bias = bias_at(em, panel.channel)
    near = replace(geo, dilation=(1, 1, 1))  # which `gaps` have already
    levels = tap_levels(near, triple(gaps), blocks.stored * sum(lanes))
    it = Contraction(lanes, blocks, levels, channel)
    plan = tiling(em.target, 1, geo.out[2], lanes, blocks.padded * geo.taps)
    with b.loop(0, rows) as r:
        line = source.x + r * (geo.stride[1] * source.pitch)
        out = sink.at(0, panel.block, 0, r)

        def tile(c: Val | int, wide: int) -> None:
            pixels = [j * geo.stride[2] for j in range(wide)]
            start = initial(b, bias, lanes) * wide
            corner = (line + c * geo.stride[2]).fixed()
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
