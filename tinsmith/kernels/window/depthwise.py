"""Depthwise convolution on channel-blocked data: one filter for each channel, no sum over channels.

Inputs are floats, or bytes that become floats when they are loaded; float32 holds their sums
exactly. A vector is the channels of a block at one pixel. Small kernels are unrolled, for one or
two rows of outputs, with weights in registers if there are enough; others loop over kernel rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.products import FLOAT32
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import F32
from tinsmith.conditions import cached
from tinsmith.kernels._kernel import Choice, Emit, Packed, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import block_of
from tinsmith.kernels.sharing import by_positions
from tinsmith.kernels.walk import run
from tinsmith.kernels.window.contract import bias_at, initial, nest
from tinsmith.kernels.window.convolve import grid, store_tile
from tinsmith.kernels.window.edges import Edges, edges_of, pack_start
from tinsmith.kernels.window.geometry import Geometry, Triple, conv_geometry, image_of
from tinsmith.kernels.window.site import ConvSite, conv_site
from tinsmith.kernels.window.tiles import Sink, Tiling, bands, cut, digits, sweep
from tinsmith.kernels.window.ways import tap_levels
from tinsmith.kernels.window.weights import whole_blocks
from tinsmith.records import dataclass
from tinsmith.sizes import Size, typical

EFFICIENCY = 0.95  # of the peak, beside what the tiling counts (estimated)
WIDENED = 1.3  # times as long: bytes that become floats where they are loaded (estimated)
LARGEST, EXACT = 255, 1 << 24  # of magnitudes of bytes; whole numbers that float32 holds
UNROLLED_TAPS = 9  # of a kernel whose taps are all unrolled, for what registers hold (estimated)
WIDEST_ROW = 9  # taps of a kernel row that are unrolled (estimated)

Extent = tuple[int, int]
"""The (rows, columns) of outputs of a register tile."""
Sums = Callable[[Ptr, tuple[Val | int, Val | int], Extent], list[Val]]
"""sums(corner, first, extent) emits the results of a register tile, a vector for each output, row
by row. `first` is the (row, column) of its first output, whose window begins at `corner`."""


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def conv_depthwise(site: Site) -> Choice:
    """Depthwise convolution on channel-blocked data."""
    conv = conv_site(site)
    packed = [
        Packed("weights", pack_taps, (conv.weights, conv.width)),
        *conv.packed_bias(pack_taps, conv.width),
    ]
    return _choice(conv, packed, None, EFFICIENCY)


@kernel("ConvInteger", Tier.SHAPED, dtypes="int8 uint8")
def conv_depthwise_bytes(site: Site) -> Choice:
    """Depthwise convolution of bytes on channel-blocked data, exact in sums of float32."""
    conv = ConvSite(site, conv_geometry(site), site.const(1, "the weights"), None)
    geo, zero = conv.geo, int(site.const(2).reshape(())) if site.has(2) else 0
    if site.has(3) and site.const(3).any():
        raise Skip("the weights have zero points")
    if 2 * geo.taps * LARGEST**2 > EXACT:
        raise Skip(f"sums of {geo.taps} taps may be too large for float32")
    packed = [Packed("weights", pack_floats, (conv.weights, conv.width))]
    edges = None
    if site.has(2):
        edges = edges_of(geo, zero)
        packed.append(Packed("start", pack_start, (conv.weights, zero, edges, conv.width)))
    return _choice(conv, packed, edges, EFFICIENCY / WIDENED)


def _choice(
    conv: ConvSite, packed: Sequence[Packed], edges: Edges | None, efficiency: float
) -> Choice:
    """The `Choice` of a depthwise convolution with these packed arrays: weights, then the bias or
    the starts, if any. Raises Skip unless every group has one input and one output channel.
    `edges`: the table of starts (`edges.py`); None: sums begin with the bias. `efficiency`: share
    of the peak."""
    site, geo, width, blocks = conv.site, conv.geo, conv.width, conv.blocks
    if not conv.groups == geo.channels == geo.out_channels:
        raise Skip(f"{conv.groups} groups of {geo.channels} to {geo.out_channels} channels")
    plan = tiling(site.target, geo)
    flops = 2.0 * blocks * width * typical(geo.batch * geo.out[0]) * geo.taps * plan.cost
    count = bands(geo.batch * blocks, plan.most_bands, site.threads, flops)
    read = float(site.input(0).dtype.itemsize) * geo.channels * typical(prod(geo.size))
    near = geo.batch == 1 and by_positions(
        site, site.input(0), read, flops, (plan.most_bands, blocks * count), planes=2 * blocks
    )
    tiles = geo.batch * blocks * count
    emit = functools.partial(emit_depthwise, geo=geo, blocks=blocks, count=count, edges=edges)
    return conv.choice(
        conv.time(flops, efficiency),
        one_phase(tiles, emit, count if near else 0),
        packed,
        by_channels=geo.batch == 1 and not near,
        detail=f"tile {plan}",
    )


def pack_taps(values: np.ndarray, width: int) -> np.ndarray:
    """Pack weights [C, 1, *taps] or a bias [C] as [block of `width` channels][tap][lane], flat,
    zero-padded."""
    blocks = whole_blocks(values.reshape(len(values), -1), width).swapaxes(1, 2)
    return np.ascontiguousarray(blocks).reshape(-1)


def pack_floats(values: np.ndarray, width: int) -> np.ndarray:
    """Pack weights that are bytes as `pack_taps` does, converted to float32."""
    return pack_taps(values.astype(np.float32), width)


def unrolled(geo: Geometry) -> bool:
    """Whether code has all taps one after the other, without a loop: if the kernel has one plane
    and at most UNROLLED_TAPS taps."""
    return geo.taps <= UNROLLED_TAPS and geo.kernel[0] == 1


@cached(1024)
def reach(outputs: int, stride: int, taps: int, dilation: int) -> int:
    """How many different inputs along an axis `outputs` neighbouring outputs read, if windows have
    `taps` taps, `dilation` apart, and begin `stride` apart."""
    return len({o * stride + k * dilation for o in range(outputs) for k in range(taps)})


@cached(1024)
def tiling(target: Target, geo: Geometry) -> Tiling:
    """The cheapest cut of a plane of outputs into tiles. Its cost is that of one tap of all outputs
    of one channel block, in vector multiply-adds."""
    rich = target.registers >= 32
    most = 16 if rich else 8 if target.has_fma else 6
    room = 32 if rich else 14 if target.has_fma else 11
    rate = 1.0 / target.pipes  # cycles of a product; a load takes the same
    best: Tiling | None = None
    free = isinstance(geo.out[1], Size) or isinstance(geo.out[2], Size)
    rows, cols = map(typical, geo.out[1:])
    kernel_rows = geo.kernel[1] if unrolled(geo) else 1
    for high in (1, 2) if unrolled(geo) and target.has_fma and not free else (1,):
        if high > rows:
            continue
        for wide in range(1, min(most // high, cols) + 1):
            columns = reach(wide, geo.stride[2], geo.kernel[2], geo.dilation[2])
            holds = rich or unrolled(geo)  # a row of inputs; but 32 registers hold small kernels
            if holds and not (rich and unrolled(geo)) and wide > 1 and high * wide + columns > room:
                break  # it would not stay in registers
            down, across = cut(rows, high), cut(cols, wide)
            if down[0][1] != high or across[0][1] != wide:
                continue
            cost = 0.0
            for (n, h), (m, w) in itertools.product(down, across):
                columns = reach(w, geo.stride[2], min(geo.kernel[2], WIDEST_ROW), geo.dilation[2])
                lines = reach(h, geo.stride[1], kernel_rows, geo.dilation[1])
                products = rate * h * w * geo.taps
                loads = rate * lines * columns * (geo.taps / geo.kernel[2] / kernel_rows)
                loads += 0.0 if rich and unrolled(geo) else rate * geo.taps
                tile = max(products, loads, 5 * geo.taps if h * w < 5 else 0.0)
                cost += n * m * (tile + 0.1 * min(products, loads) + 4 + 0.5 * h * w)
            cost /= rate * geo.taps
            cost *= 1 + 0.01 * (len(down) * len(across) - 1)
            if best is None or cost < best.cost:
                best = Tiling(down, across, cost)
    assert best is not None
    if free:
        return replace(best, rows=((geo.out[1], 1),), cols=cut(geo.out[2], best.cols[0][1]))
    return best


@dataclass(frozen=True)
class Filters:
    """The weights of one channel block, at `weights` as [tap][lane], and where its bias lies; None
    without one. `held`: all weights as loaded vectors if registers have room for them, else
    empty."""

    weights: Ptr
    bias: Ptr | None
    width: int
    held: tuple[Val, ...]

    def tap(self, i: int) -> Val:
        """The weights of tap number i: loaded here, unless they are held."""
        return self.held[i] if self.held else (self.weights + i * self.width).load(self.width)


def filters_of(em: Emit, geo: Geometry, block: Val | int, edges: Edges | None = None) -> Filters:
    """The `Filters` of channel block number `block`: weights from the first packed array, bias from
    the last. With `edges` the last array has tables of starts in place of the bias (`edges.py`)."""
    width = block_of(em.target)
    weights = (em.packed[0] + block * (geo.taps * width)).fixed()
    bias = bias_at(em, block, width * (edges.places if edges else 1))
    hold = range(geo.taps) if unrolled(geo) and em.target.registers >= 32 else ()
    return Filters(weights, bias, width, tuple((weights + i * width).load(width) for i in hold))


def emit_depthwise(
    em: Emit, geo: Geometry, blocks: int, count: int, edges: Edges | None = None
) -> None:
    """Emit a depthwise convolution; its tiles are those of `each_block`, for `blocks` channel
    blocks and `count` bands of each. `edges`: the table of starts (`edges.py`); None: sums begin
    with the bias."""
    b, step, whole = em.b, image_of(em.input(0), geo).step, em.input(0).pointer.elem != F32

    def block_sums(block: Val | int) -> Sums:
        filters = filters_of(em, geo, block, edges)

        def sums(corner: Ptr, first: tuple[Val | int, Val | int], extent: Extent) -> list[Val]:
            if edges is None:
                start = initial(b, filters.bias, (filters.width,)) * prod(extent)
            else:
                start = edges.start(b, filters.bias, filters.width, first, extent)
            if unrolled(geo):
                done = taps(geo, lambda i: corner + i * step[1], step[2], filters, start, extent[1])
            else:
                done = _rows(em, geo, step, corner, filters, start)
            return [v.truncated("i32") for v in done] if whole else done

        return sums

    each_block(replace(em, lanewise=True), geo, tiling(em.target, geo), (blocks, count), block_sums)


def each_block(
    em: Emit, geo: Geometry, plan: Tiling, cut: tuple[int, int],
    block_sums: Callable[[Val | int], Sums],
) -> None:  # fmt: skip
    """Emit a kernel whose outputs depend on their own channel alone. Its tiles are (batch, channel
    block, band), the band innermost; `cut` is (channel blocks, bands of each).

    `block_sums(block)` emits what is done once for a channel block, such as loading its weights,
    and returns a function that emits the results of a register tile (`Sums`).
    """
    b, image, (blocks, count) = em.b, image_of(em.input(0), geo), cut
    with b.loop(em.begin, em.end) as t:
        band, block, n = digits(t, count, blocks)
        x = image.corner(n, block)
        sink = Sink(em, geo).at(n, block)
        sums = block_sums(block)

        def plane(d: Val | int) -> None:
            def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
                done = sums(image.window(x, d, r, c), (r, c), (high, wide))
                store_tile(sink.at(0, 0, d, r, c), done, grid(high, wide), 1)

            sweep(b, plan, band, count, tile)

        run(b, 0, geo.out[0], plane)


def rows_read(geo: Geometry, high: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """For every line of inputs that `high` neighbouring rows of outputs read: its number i, and
    (q, k) for each row q of outputs that reads it with kernel row k."""
    for i in range(geo.span(1, high)):
        each = [(q, *divmod(i - q * geo.stride[1], geo.dilation[1])) for q in range(high)]
        read = [(q, k) for q, k, rest in each if not rest and 0 <= k < geo.kernel[1]]
        if read:
            yield i, read


def taps(
    geo: Geometry, line: Callable[[int], Ptr], gap: int, filters: Filters, start: list[Val],
    wide: int,
) -> list[Val]:  # fmt: skip
    """Emit all taps of a tile whose rows have `wide` outputs; returns its sums, row by row, added
    to `start`. Each input vector is loaded once for all outputs that read it.

    `line(i)` is the address of the tile's first input in line i of those that its windows cover;
    neighbouring inputs are `gap` elements apart.
    """
    acc, across, apart = list(start), geo.stride[2], geo.dilation[2]
    for i, read in rows_read(geo, len(start) // wide):
        loaded: dict[int, Val] = {}
        for q, k in read:
            for j in range(geo.kernel[2]):
                w = filters.tap(k * geo.kernel[2] + j)
                for p in range(wide):
                    place = (p * across + j * apart) * gap
                    if place not in loaded:
                        loaded[place] = (line(i) + place).load(filters.width).to("f32")
                    acc[q * wide + p] = FLOAT32.step(acc[q * wide + p], loaded[place], w)
    return acc


def row_taps(
    geo: Geometry, x: Ptr, w: Ptr, gap: int, start: list[Val], across: int, width: int
) -> list[Val]:
    """Emit the first `across` taps of a kernel row for a row of outputs; returns their sums, added
    to `start`, a vector for each output. x is the address of the first output's first input, w of
    the row's weights, `width` lanes a tap; neighbouring inputs are `gap` elements apart."""
    acc, loaded = list(start), {}
    for j in range(across):
        factor = (w + j * width).load(width)
        for p in range(len(acc)):
            place = (p * geo.stride[2] + j * geo.dilation[2]) * gap
            if place not in loaded:
                loaded[place] = (x + place).load(width).to("f32")
            acc[p] = FLOAT32.step(acc[p], loaded[place], factor)
    return acc


def _rows(
    em: Emit, geo: Geometry, step: Triple, corner: Ptr, filters: Filters, start: list[Val]
) -> list[Val]:
    """Emit all taps of neighbouring outputs of one row, in loops over kernel planes and rows, and
    over the taps of kernel rows of more than WIDEST_ROW. Returns their sums, added to `start`. The
    first window begins at `corner`; neighbouring inputs are `step` elements apart on each axis."""
    width, across = filters.width, geo.kernel[2]
    levels = tap_levels(geo, step, width)
    if across > WIDEST_ROW:
        across = 1
    else:
        levels.pop()

    def body(x: Ptr, w: Ptr, acc: list[Val], _: Val | int) -> list[Val]:
        return row_taps(geo, x, w, step[2], acc, across, width)

    return nest(em.b, levels, corner, filters.weights, start, body)
