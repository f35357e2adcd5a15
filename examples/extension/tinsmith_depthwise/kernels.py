"""Depthwise 3x3 convolutions of stride 1: four outputs side by side, weights in registers."""

from tinsmith.codegen.products import FLOAT32
from tinsmith.kernels._kernel import Choice, Packed, Skip, Tier, kernel
from tinsmith.kernels.sharing import each_unit
from tinsmith.kernels.window.contract import bias_at, initial
from tinsmith.kernels.window.depthwise import pack_taps
from tinsmith.kernels.window.site import conv_site

TILE = 4  # outputs side by side: with nine weights and one input they fill 14 of 16 registers


@kernel("Conv", Tier.ISA, dtypes="float32", isas="sse2 avx2 avx512", numbers=True)
def depthwise_3x3_rows(site) -> Choice:
    """Depthwise 3x3 convolution of stride 1, four outputs of a row at a time."""
    conv = conv_site(site)
    geo, width, blocks = conv.geo, conv.width, conv.blocks
    if not conv.groups == geo.channels == geo.out_channels:
        raise Skip(f"{conv.groups} groups of {geo.channels} to {geo.out_channels} channels")
    shape = geo.kernel, geo.stride, geo.dilation
    if geo.rank != 2 or shape != ((1, 3, 3), (1, 1, 1), (1, 1, 1)):
        raise Skip(f"kernel {geo.kernel}, stride {geo.stride}, dilation {geo.dilation}")
    _, rows, cols = geo.out
    _, top, left = geo.begin

    def line(em, unit) -> None:
        """One row of the outputs of a block of channels."""
        b, x = em.b, em.input(0)
        row, plane = unit % rows, unit // rows
        block, n = plane % blocks, plane // blocks
        weights = em.packed[0] + block * (9 * width)
        taps = [(weights + i * width).load(width) for i in range(9)]
        (start,) = initial(b, bias_at(em, block, width), (width,))

        def outputs(first, count: int) -> None:
            sums = [start] * count
            for i in range(3):
                for j in range(count + 2):  # each input is read once for all that it reaches
                    value = x.at(n, block, row + (i - top), first + (j - left)).load(width)
                    for o in range(max(0, j - 2), min(count, j + 1)):
                        sums[o] = FLOAT32.step(sums[o], value, taps[3 * i + j - o])
            for o, total in enumerate(sums):
                em.finish(total, (n, block, row, first + o))

        if whole := cols // TILE * TILE:
            with b.loop(0, whole, TILE) as first:
                outputs(first, TILE)
        if cols % TILE:
            outputs(b.index(whole), cols % TILE)

    units = geo.batch * blocks * rows
    seconds = conv.time(2.0 * 9 * width * units * cols, 0.9)
    return conv.choice(
        seconds,
        each_unit(units, seconds, line),
        [Packed("weights", pack_taps, (conv.weights, width)), *conv.packed_bias(pack_taps, width)],
        detail=f"{TILE} outputs",
    )
