"""Transpose, Slice, Expand, Tile, Concat, Split, Pad, Gather and depth/space as strided copies.

All on plain layouts and elements of 1, 2, 4 or 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tinsmith.codegen.types import Ty
from tinsmith.kernels._kernel import (
    PLAIN,
    Choice,
    Emit,
    Phase,
    Site,
    Skip,
    Tier,
    kernel,
    packed_table,
)
from tinsmith.kernels.layout import lanes_of, spec_of
from tinsmith.kernels.move.strided import Copy, emit_copy, emit_fill, plan_copy
from tinsmith.kernels.walk import around

Part = tuple[Copy, int, int, int]
"""A copy, the operand or output it concerns, and both sides' first elements."""


def _strides(dims: Sequence[int]) -> tuple[int, ...]:
    return spec_of(np.float32, tuple(dims)).strides


def _bits(site: Site) -> int:
    return site.input(0).dtype.itemsize * 8


def _choice(
    site: Site, parts: Sequence[Part], reads: Sequence[int] = (0,), extra: tuple[Phase, ...] = ()
) -> Choice:
    """One phase over the tiles of all parts: part k copies operand `which` (Concat) to output 0,
    or operand 0 to output `which` (Split)."""
    site.need_no_epilogue("a copy has no epilogue")
    into_one = len(site.outputs) == 1
    bases = np.cumsum([0, *(c.tiles for c, *_ in parts)]).tolist()

    def emit(em: Emit) -> None:
        for (copy, which, src, dst), base in zip(parts, bases, strict=False):
            view = em.input(which if into_one else 0)
            out = em.outs[0 if into_one else which]
            if len(parts) == 1:
                emit_copy(em.b, copy, view.pointer + src, out.pointer + dst, em.begin, em.end)
                continue
            lo = em.b.maximum(em.begin, base)
            hi = em.b.minimum(em.end, base + copy.tiles)
            lo, hi = em.b.index(lo) - base, em.b.index(hi) - base
            emit_copy(em.b, copy, view.pointer + src, out.pointer + dst, lo, hi)

    wanted = tuple(PLAIN if i in reads else None for i in range(len(site.inputs)))
    elements = sum(c.elements for c, *_ in parts)
    slow = max(
        (1.5 if c.columns is not None else 1.0 if c.axes[-1].src in (0, 1) else 8.0)
        for c, *_ in parts
    )
    cost = 1e-6 + slow * site.target.time(0, 2 * elements * _bits(site) / 8)
    return Choice(cost, wanted, (PLAIN,) * len(site.outputs), (*extra, Phase(bases[-1], emit)))


@kernel("Transpose", Tier.VECTOR)
def transpose_strided(site: Site) -> Choice:
    """A strided copy; register transposes where the contiguous axis changes."""
    x, y = site.input(0), site.out
    perm = site.attr("perm") or tuple(reversed(range(len(x.dims))))
    src = _strides(x.dims)
    copy = plan_copy(y.dims, [src[p] for p in perm], _strides(y.dims), _bits(site))
    return _choice(site, [(copy, 0, 0, 0)])


@kernel("Slice", Tier.VECTOR)
def slice_strided(site: Site) -> Choice:
    """A copy from constant starts with constant steps, negative ones included."""
    x, y = site.input(0), site.out
    starts = site.const(1, "starts").reshape(-1)
    axes = site.const(3, "axes").reshape(-1) if site.has(3) else range(len(starts))
    steps = site.const(4, "steps").reshape(-1) if site.has(4) else [1] * len(starts)
    if site.has(2):
        site.const(2, "ends")
    src = list(_strides(x.dims))
    first = 0
    for axis, start, step in zip(axes, starts, steps, strict=True):
        axis, start, step, extent = (
            int(axis) % len(x.dims),
            int(start),
            int(step),
            x.dims[int(axis)],
        )
        start = start + extent if start < 0 else start
        start = min(max(start, 0), extent if step > 0 else extent - 1)
        first += start * src[axis]
        src[axis] *= step
    copy = plan_copy(y.dims, src, _strides(y.dims), _bits(site))
    return _choice(site, [(copy, 0, first, 0)])


@kernel("Expand", Tier.VECTOR)
def expand_strided(site: Site) -> Choice:
    """A copy that stands still along broadcast axes."""
    x, y = site.input(0), site.out
    if site.input(1).const is None:
        raise Skip("the shape is known only when the model runs")
    dims = (1,) * (len(y.dims) - len(x.dims)) + x.dims
    src = [
        0 if d == 1 and o != 1 else s for d, o, s in zip(dims, y.dims, _strides(dims), strict=True)
    ]
    return _choice(site, [(plan_copy(y.dims, src, _strides(y.dims), _bits(site)), 0, 0, 0)])


@kernel("Tile", Tier.VECTOR)
def tile_strided(site: Site) -> Choice:
    """Each axis is split into (repeats, extent); the source stands still along repeats."""
    x, y = site.input(0), site.out
    repeats = [o // d for o, d in zip(y.dims, x.dims, strict=True)]
    dims, src, dst = [], [], []
    for r, d, s, t in zip(repeats, x.dims, _strides(x.dims), _strides(y.dims), strict=True):
        dims += [r, d]
        src += [0, s]
        dst += [d * t, t]
    return _choice(site, [(plan_copy(dims, src, dst, _bits(site)), 0, 0, 0)])


@kernel("Concat", Tier.VECTOR)
def concat_strided(site: Site) -> Choice:
    """One copy for each input, into its part of the output."""
    y = site.out
    axis = site.attr("axis") % len(y.dims)
    dst = _strides(y.dims)
    parts: list[Part] = []
    at = 0
    for i, v in enumerate(site.inputs):
        assert v is not None
        if prod(v.dims):
            copy = plan_copy(v.dims, _strides(v.dims), dst, _bits(site))
            parts.append((copy, i, 0, at * dst[axis]))
        at += v.dims[axis]
    return _choice(site, parts, reads=range(len(site.inputs)))


@kernel("Split", Tier.VECTOR)
def split_strided(site: Site) -> Choice:
    """One copy for each output, from its part of the input."""
    x = site.input(0)
    axis = site.attr("axis") % len(x.dims)
    src = _strides(x.dims)
    parts: list[Part] = []
    at = 0
    for i, v in enumerate(site.outputs):
        copy = plan_copy(v.dims, src, _strides(v.dims), _bits(site))
        parts.append((copy, i, at * src[axis], 0))
        at += v.dims[axis]
    return _choice(site, parts)


@kernel("Pad", Tier.VECTOR)
def pad_constant(site: Site) -> Choice:
    """Fill, then copy what remains of the input; negative pads cut."""
    x, y = site.input(0), site.out
    if site.attr("mode") != "constant":
        raise Skip(f"mode is {site.attr('mode')}")
    pads = [int(p) for p in site.const(1, "pads").reshape(-1)]
    if site.has(3):
        axes = [int(a) % len(x.dims) for a in site.const(3, "axes").reshape(-1)]
    else:
        axes = list(range(len(x.dims)))
    value = site.const(2, "value").reshape(-1)[0] if site.has(2) else x.dtype.type(0)
    before = [0] * len(x.dims)
    after = [0] * len(x.dims)
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    dims = [d + min(lo, 0) + min(hi, 0) for d, lo, hi in zip(x.dims, before, after, strict=True)]
    if min(dims) <= 0:
        raise Skip("nothing of the input remains")
    src, dst = _strides(x.dims), _strides(y.dims)
    first = sum(-min(lo, 0) * s for lo, s in zip(before, src, strict=True))
    place = sum(max(lo, 0) * s for lo, s in zip(before, dst, strict=True))
    total, chunk = y.type.size, 4096
    word = np.asarray(value, x.dtype).reshape(1).view(f"u{x.dtype.itemsize}")[0]

    def fill(em: Emit) -> None:
        out = em.outs[0].pointer
        ty = Ty(f"u{_bits(site)}")
        end = em.b.minimum(em.b.index(em.end) * chunk, total)
        emit_fill(
            em.b,
            em.b.const(int(word), ty),
            out.cast(ty),
            em.b.index(em.begin) * chunk,
            end,
            lanes_of(em.target, ty.nbytes),
        )

    copy = plan_copy(dims, src, dst, _bits(site))
    return _choice(site, [(copy, 0, first, place)], extra=(Phase(-(-total // chunk), fill),))


@kernel("Gather", Tier.VECTOR)
def gather_constant(site: Site) -> Choice:
    """Rows at constant indices: their offsets are a table."""
    x, y = site.input(0), site.out
    if site.input(1).const is None:
        raise Skip("the indices are computed: one out of range could not be reported")
    indices = site.const(1, "indices").reshape(-1).astype(np.int64)
    outer, extent, inner = around(x.dims, site.attr("axis"))
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise Skip("an index is out of range")
    offsets = np.where(indices < 0, indices + extent, indices) * inner
    bits, count = _bits(site), len(indices)
    row = plan_copy((inner,), (1,), (1,), bits)

    def emit(em: Emit) -> None:
        source = em.input(0)
        with em.b.loop(em.begin, em.end) as tile:
            o, k = tile // count, tile % count
            offset = (em.packed[0] + k).load()
            x_row = source.pointer + o * (extent * inner) + offset
            emit_copy(em.b, row, x_row, em.outs[0].pointer + tile * inner, 0, 1)

    cost = 1e-6 + site.target.time(0, 2 * y.type.nbytes) + outer * count * 2e-9
    return Choice(
        cost,
        (PLAIN, None),
        (PLAIN,),
        (Phase(outer * count, emit),),
        (packed_table("offsets", offsets),),
    )


@kernel("Gather", Tier.VECTOR)
def gather_rows(site: Site) -> Choice:
    """Rows at indices that are known when the model runs, each checked against the extent."""
    x, indices, y = site.input(0), site.input(1), site.out
    if indices.const is not None:
        raise Skip("the indices are constant")
    if indices.dtype.kind not in "iu":
        raise Skip(f"the indices are {indices.dtype.name}")
    outer, extent, inner = around(x.dims, site.attr("axis"))
    count = indices.type.size
    row = plan_copy((inner,), (1,), (1,), _bits(site))

    def emit(em: Emit) -> None:
        b = em.b
        source, table = em.input(0), em.input(1)
        with b.loop(em.begin, em.end) as tile:
            o, k = tile // count, tile % count
            index = em.place(table.pointer + k, extent)
            x_row = source.pointer + o * (extent * inner) + index * inner
            emit_copy(b, row, x_row, em.outs[0].pointer + tile * inner, 0, 1)

    return Choice(
        cost=1e-6 + site.target.time(0, 2 * y.type.nbytes) + outer * count * 4e-9,
        reads=(PLAIN, PLAIN),
        writes=(PLAIN,),
        phases=(Phase(outer * count, emit),),
        scratch=64,
        detail=f"rows of {inner}",
        fault=f"an index is out of range: it must lie in [-{extent}, {extent})",
    )


def _rearranged(op: str, split: Callable[[Site], tuple[list[int], list[int]]]) -> None:
    """Register a copy for an operator that is Reshape - Transpose - Reshape: `split` gives the
    split input dims and their order in the output."""

    def rule(site: Site) -> Choice:
        dims, order = split(site)
        src = _strides(dims)
        out = [dims[i] for i in order]
        copy = plan_copy(out, [src[i] for i in order], _strides(out), _bits(site))
        return _choice(site, [(copy, 0, 0, 0)])

    rule.__name__ = f"{op.lower()}_strided"
    rule.__doc__ = "Split axes, permuted: a strided copy."
    kernel(op, Tier.VECTOR)(rule)


def _depth_to_space(site: Site) -> tuple[list[int], list[int]]:
    n, c, h, w = _four(site)
    k = site.attr("blocksize")
    if site.attr("mode") == "DCR":
        return [n, k, k, c // (k * k), h, w], [0, 3, 4, 1, 5, 2]
    return [n, c // (k * k), k, k, h, w], [0, 1, 4, 2, 5, 3]


def _space_to_depth(site: Site) -> tuple[list[int], list[int]]:
    n, c, h, w = _four(site)
    k = site.attr("blocksize")
    order = [0, 3, 5, 1, 2, 4] if site.attr("mode") == "DCR" else [0, 1, 3, 5, 2, 4]
    return [n, c, h // k, k, w // k, k], order


def _channel_shuffle(site: Site) -> tuple[list[int], list[int]]:
    n, c, *rest = site.input(0).dims
    g = site.attr("groups")
    return [n, g, c // g, prod(rest)], [0, 2, 1, 3]


def _four(site: Site) -> tuple[int, int, int, int]:
    dims = site.input(0).dims
    if len(dims) != 4:
        raise Skip(f"the rank is {len(dims)}")
    return dims  # type: ignore[return-value]


_rearranged("DepthToSpace", _depth_to_space)
_rearranged("SpaceToDepth", _space_to_depth)
_rearranged("ChannelShuffle", _channel_shuffle)
