"""Convolution of narrow groups, several of which fill one vector, and of channel multipliers.

Each input channel of every group is spread over its group's lanes by one permutation of the input
vector, so that no lane works for nothing; the taps of a kernel row share it.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.target import Target
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.rows import run
from tinsmith.kernels.window.contract import Level, initial, nest
from tinsmith.kernels.window.direct import PARALLEL_FLOPS, grid, store_tile, traffic
from tinsmith.kernels.window.geometry import Geometry, Widths, conv_geometry, group_widths, steps
from tinsmith.kernels.window.tiles import Panels, Sink, bands, cut, walk
from tinsmith.kernels.window.weights import pack_bias

WIDEST_ROW = 7  # taps of a kernel row that are unrolled


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_narrow_groups(site: Site) -> Choice:
    """Convolution with several groups in one vector, spread over their lanes by permutations."""
    geo = conv_geometry(site)
    widths, width = group_widths(site, geo), block_of(site.target)
    w = site.const(1, "the weights")
    bias = site.const(2, "the bias") if site.has(2) else None
    reach = max(1, width // widths.outputs) * widths.inputs
    if widths.inputs % width == 0 or width % widths.outputs or width % reach:
        raise Skip(f"groups of {widths.inputs} to {widths.outputs} do not fill blocks of {width}")
    if widths.inputs == widths.outputs == 1:
        raise Skip("every channel is a group of its own, and nothing needs to be spread")
    blocks = -(-geo.out_channels // width)
    most = _most_pixels(site.target)
    across = min(geo.kernel[2], WIDEST_ROW)
    moves = {p * geo.stride[2] + k * geo.dilation[2] for p in range(most) for k in range(across)}
    ratio = len(moves) / (most * across)  # permutations for each product
    share = 1 / (1 + 0.8 * ratio**2)
    flops = 2.0 * blocks * width * geo.points * geo.taps * widths.inputs
    count = bands(geo.batch * blocks, geo.out[1]) if flops > PARALLEL_FLOPS else 1
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
        ) -> None:
            def one_row(r: Val | int, _: int) -> None:
                def tile(c: Val | int, wide: int) -> None:
                    corner = (x + d * stride[0] + r * stride[1] + c * stride[2]).fixed()
                    start = initial(b, bias, wide, (width,))
                    done = nest(b, levels, corner, w, start, body)
                    store_tile(sink.at(0, 0, d, r, c), done, grid(1, wide), 1)

                walk(b, cut(geo.out[2], most), 0, 1, tile)

            walk(b, ((geo.out[1], 1),), band, count, one_row)

        run(b, 0, geo.out[0], plane_of)
