"""Winograd's method for the first layer of a network: few channels, stride 2, a plain image.

Even and odd rows and columns of the zero-padded image become channels of an image of half the size
(space to depth). There the convolution has half the taps on each axis, and stride 1:

    x'[(p C + c) 2 + q][i][j] = padded x[c][2 i + p][2 j + q]

where C is the number of channels, and p and q are 0 or 1. The first phase makes this image x'; the
others are a Winograd convolution of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32, I1
from tinsmith.graph import Array
from tinsmith.kernels._kernel import Choice, Emit, Phase, Site, Skip, Tier, View, kernel
from tinsmith.kernels.layout import PLAIN, Layout, Spec, spec_of
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.winograd.choose import best_plan, free_plan, is_free
from tinsmith.kernels.winograd.frames import Rooms
from tinsmith.kernels.winograd.kernel import choice, need_algorithms, need_normal, plane_site
from tinsmith.kernels.winograd.tiling import WinogradPlan
from tinsmith.sizes import Size, largest, smallest, typical

MOST_CHANNELS = 4  # input channels (images have 1 to 4); estimated


@kernel("Conv", Tier.SHAPED, dtypes="float32")
def winograd_stem(site: Site) -> list[Choice]:
    """Winograd convolution of a plain image of up to 4 channels at stride 2, by space to depth."""
    conv = plane_site(site)
    geo, width = conv.geo, conv.width
    if geo.rank != 2 or geo.stride != (1, 2, 2):
        raise Skip(f"stride is {'x'.join(map(str, geo.stride[3 - geo.rank :]))}, 2x2 is needed")
    if geo.channels > MOST_CHANNELS:
        raise Skip(f"{geo.channels} input channels are more than {MOST_CHANNELS}")
    if geo.out_channels < width:
        raise Skip(f"{geo.out_channels} output channels do not fill a block of {width}")
    if is_free(geo) and any(isinstance(n, Size) or n > width for n in geo.begin):
        raise Skip(
            "padding that a size tells, or of more than a vector, needs all sizes as numbers"
        )
    smaller = space_to_depth(geo)
    found = need_algorithms(smaller, site.precision)
    need_normal(conv.weights)
    choices = []
    for rows, cols in found:
        plan_for = free_plan if is_free(geo) else best_plan
        plan, seconds = plan_for(site.target, smaller, rows, cols, site.threads)
        image = spec_of(np.float32, depth_dims(plan), Layout(width))
        read = 8 * prod(geo.size) * geo.channels * geo.batch
        copied = site.target.time(0, float(typical(read + image.nbytes)))
        rooms = Rooms(lambda em, image=image: View(em.scratch.cast(F32), image), image.size)
        made = choice(conv, plan, fold, seconds + copied, rooms)
        copy = Phase(
            geo.batch * image.spatial[0],
            lambda em, image=image: emit_space_to_depth(em, geo, image),
        )
        choices.append(replace(
            made, reads=(PLAIN, *made.reads[1:]), phases=(copy, *made.phases),
            scratch=made.scratch + image.nbytes,
        ))  # fmt: skip
    return choices


def space_to_depth(geo: Geometry) -> Geometry:
    """The geometry of the convolution of the smaller image: no padding, stride 1."""
    taps = tuple(-(-k // 2) for k in geo.kernel)
    size = tuple(o + k - 1 for o, k in zip(geo.out, taps, strict=True))
    return replace(
        geo, channels=4 * geo.channels, size=size, kernel=taps, stride=(1, 1, 1), begin=(0, 0, 0),
        most_after=(0, 0, 0),
    )  # fmt: skip


def depth_dims(plan: WinogradPlan) -> tuple[int, int, int, int]:
    """The (batch, channels, height, width) of the smaller image in scratch, with the rows and
    columns beyond it that tiles read. A width that only a call tells is rounded up to whole vectors
    of pairs."""
    (_, below), (_, right) = plan.halo
    _, high, wide = plan.geo.size
    wide, pairs = wide + right, plan.width // 2
    if isinstance(wide, Size):
        wide = -(-wide // pairs) * pairs
    return (plan.geo.batch, plan.geo.channels, high + below, wide)


def fold(w: Array, _: WinogradPlan) -> Array:
    """The `Turn` of the smaller image: weights [K, C, r_h, r_w] become [K, 4 C, (r_h + 1) // 2,
    (r_w + 1) // 2], with zeros for taps beyond the last."""
    outputs, channels, high, wide = w.shape
    even = np.pad(w, ((0, 0), (0, 0), (0, high % 2), (0, wide % 2)))
    parts = even.reshape(outputs, channels, -(-high // 2), 2, -(-wide // 2), 2)
    return parts.transpose(0, 3, 1, 5, 2, 4).reshape(
        outputs, 4 * channels, -(-high // 2), -(-wide // 2)
    )


def emit_space_to_depth(em: Emit, geo: Geometry, image: Spec) -> None:
    """Emit the phase that makes the smaller `image` in scratch; `geo` is the site's. A tile is one
    row of one image.

    A vector of an input row holds V / 2 pairs (even column, odd column). V / 2 such vectors, from
    different rows and channels, are transposed to V / 2 pixels of the blocked image.
    """
    b, source = em.b, em.input(0)
    width = image.layout.block
    pairs, high, wide = width // 2, *image.spatial
    batch, channel, row, _ = source.spec.strides
    space = em.scratch.cast(F32)
    zero, free = b.zero(F32.x(width)), isinstance(wide, Size)

    def inside(j: Val | int) -> Val | None:
        """The mask of elements in the row, of the vector from pair j on; None: all are."""
        before, stop = j * -2 + geo.begin[2], j * -2 + (geo.begin[2] + geo.size[2])
        if not isinstance(before, int):
            return b.first_lanes(stop, width)
        valid = [before <= k and (free or k < stop) for k in range(width)]
        mask = None if all(valid) else b.vector(list(map(int, valid)), I1)
        return mask & b.first_lanes(stop, width) if free and mask is not None else mask

    def chunk(line: Sequence[tuple[Ptr, Val]], to: Ptr, j: Val | int, mask: Val | None) -> None:
        """Emit the pixels of a vector of pairs j, j + 1, ... to a row at `to`. `line` has, for each
        input row and channel, its address and whether it exists (otherwise it is zeros)."""
        count = pairs if free or not isinstance(j, int) else min(pairs, wide - j)
        for block in range(image.blocks):
            rows = []
            for at, valid in line[block * pairs : (block + 1) * pairs]:
                rows.append(valid.select((at + j * 2).load(width, mask), zero))
            rows += [zero] * (pairs - len(rows))
            for k, value in enumerate(transpose_pairs(rows)[:count]):
                (to + (block * image.strides[1] + k * width) + j * width).store(value)

    with b.loop(em.begin, em.end) as unit:
        n, i = unit // high, unit % high
        line = []
        for p in range(2):
            y = b.index(i) * 2 + (p - geo.begin[1])
            valid = ((y >= 0) & (y < geo.size[1])).splat(width)
            near = b.minimum(b.maximum(y, 0), geo.size[1] - 1)
            for c in range(geo.channels):
                at = source.pointer + n * batch + near * row + (c * channel - geo.begin[2])
                line.append((at.fixed(), valid))
        to = (space + n * image.strides[0] + i * image.strides[2]).fixed()
        first = -(-geo.begin[2] // (2 * pairs)) * pairs
        count = largest(0, (geo.begin[2] + geo.size[2] - 2 * first) // width)
        last = first + smallest(count, largest(0, wide - first) // pairs) * pairs
        for j in range(0, first if free else min(first, wide), pairs):
            chunk(line, to, j, inside(j))
        if free or last > first:
            with b.loop(first, last, pairs) as j:
                chunk(line, to, j, None)
        if free:
            with b.loop(last, wide, pairs) as j:
                chunk(line, to, j, inside(j))
        else:
            for j in range(last, wide, pairs):
                chunk(line, to, j, inside(j))


def transpose_pairs(rows: Sequence[Val]) -> list[Val]:
    """Emit a transpose of pairs of elements: pair j of rows[i] becomes pair i of result j. There
    are as many rows as pairs in a row, a power of two."""
    done, step = list(rows), 1
    while step < len(done):
        for i in range(len(done)):
            if i & step:
                continue
            a, c = done[i], done[i + step]
            done[i], done[i + step] = (_interleave(a, c, step, half) for half in (0, step))
        step *= 2
    return done


def _interleave(a: Val, c: Val, step: int, half: int) -> Val:
    """Emit one result of a step of the transpose: pairs whose number has the bit `step` clear come
    from a, the others from c. `half` (0 or `step`) selects which of the two results."""
    pairs = a.ty.lanes // 2
    order = [j + half if not j & step else pairs + j - step + half for j in range(pairs)]
    return a.shuffle(c, [2 * k + q for k in order for q in range(2)])
