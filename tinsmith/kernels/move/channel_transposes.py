"""Transposes of images from NCHW to NHWC, or back, where NCHW is channel-blocked.

A pixel's channels are whole vectors on both sides, which are copied as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinsmith.codegen.builder import Ptr
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, View, kernel, one_phase
from tinsmith.kernels.layout import PLAIN, Layout, block_of, spec_of
from tinsmith.kernels.walk import Position, Walk, run
from tinsmith.sizes import Size, typical

UNROLLED = 8  # the most channel blocks of a pixel that are copied without a loop (estimated)
PART = 32 << 10  # bytes of a tile, about (estimated)


@kernel("Transpose", Tier.VECTOR)
def transpose_blocked(site: Site) -> list[Choice]:
    """NCHW to NHWC, or back, where the images are channel-blocked.

    For four-byte elements and 1 to 3 spatial axes. Both directions are offered if the order is
    both, as for one spatial axis."""
    x = site.input(0)
    rank = len(x.dims)
    site.need_no_epilogue("a copy has no epilogue")
    if rank not in (3, 4, 5) or x.dtype.itemsize != 4:
        raise Skip(f"{x.type} is no image of four-byte elements")
    perm = tuple(site.attr("perm") or reversed(range(rank)))
    inner = tuple(range(2, rank))
    choices = []
    if perm == (0, *inner, 1):
        choices.append(_choice(site, to_rows=True))
    if perm == (0, rank - 1, *range(1, rank - 1)):
        choices.append(_choice(site, to_rows=False))
    if not choices:
        raise Skip(f"the order {list(perm)} does not move the channels alone")
    return choices


def _choice(site: Site, to_rows: bool) -> Choice:
    """The choice for NCHW to NHWC (`to_rows`), or back."""
    x = site.input(0)
    image = x.dims if to_rows else site.out.dims
    n, channels, *spatial = image
    if isinstance(channels, Size):
        raise Skip("blocks of channels need their number")
    layout = Layout(block_of(site.target))
    pixels = prod(spatial)
    parts = max(1, min(typical(pixels) * channels * 4 // PART, typical(pixels)))
    nbytes = x.type.nbytes + spec_of(x.dtype, image, layout).nbytes
    return Choice(
        cost=0.2e-6 + site.target.time(0, nbytes),
        reads=(layout,) if to_rows else (PLAIN,),
        writes=(PLAIN,) if to_rows else (layout,),
        phases=one_phase(n * parts, lambda em: _emit(em, to_rows, parts)),
    )


def _emit(em: Emit, to_rows: bool, parts: int) -> None:
    """Emit the kernel. A tile is one of `parts` shares of an image. `to_rows`: as in `_choice`."""
    b, source = em.b, em.input(0)
    image, flat = (source, em.outs[0]) if to_rows else (em.outs[0], source)
    walk = Walk(image.spec.spatial, [image.spec.strides[2:], flat.spec.strides[1:-1]])
    with b.loop(em.begin, em.end) as tile:
        part, n = tile % parts, tile // parts
        starts = [(v.pointer + n * v.spec.strides[0]).fixed() for v in (image, flat)]

        def line(starts: Sequence[Ptr], lo: Position, hi: Position) -> None:
            def pixel(i: Position) -> None:
                a, z = ((p + i * s).fixed() for p, s in zip(starts, walk.steps, strict=True))
                _pixel(em, image, a, z, to_rows)

            run(b, lo, hi, pixel)

        walk.shared(b, starts, part, parts, line)


def _pixel(em: Emit, image: View, blocked: Ptr, flat: Ptr, to_rows: bool) -> None:
    """Emit a copy of all channels of one pixel, from the blocked image (at `blocked`) to contiguous
    channels (at `flat`) if `to_rows`, otherwise back."""
    b, spec = em.b, image.spec
    block, plane = spec.layout.block, spec.strides[1]
    full, rest = divmod(spec.dims[1], block)

    def one(c: Position, count: int = block) -> None:
        a, z = blocked + c * plane, flat + c * block
        if to_rows:
            z.store(a.load(block), count=count)
        else:
            a.store(z.load(block, count=count))

    if full <= UNROLLED:
        for c in range(full):
            one(c)
    else:
        run(b, 0, full, one)
    if rest:
        one(full, rest)
