"""Operators that interpolate at fractional places: deformable convolution, grid sampling, and
affine grids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim, Type, agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import need_axes, need_room, need_same
from tinsmith.ops.conv import check_conv, conv_shape
from tinsmith.ops.precision import widen
from tinsmith.ops.resize import cubic
from tinsmith.ops.window import window
from tinsmith.sizes import NUMBER

MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic"}
MODES["bicubic"] = "cubic"
REACH = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Mode -> the elements that are read along each axis, relative to the one at or below the point."""


def read(x: Array, places: Sequence[Array]) -> Array:
    """The elements of x [C,*spatial] at integer places, 0 for places outside: [C,*P]. `places`: an
    integer array of shape P for each spatial axis."""
    inside = np.ones(places[0].shape, bool)
    flat = np.zeros(places[0].shape, np.int64)
    for size, place in zip(x.shape[1:], places, strict=True):
        inside &= (place >= 0) & (place < size)
        flat = flat * size + np.clip(place, 0, max(size - 1, 0))
    if not prod(x.shape[1:]):
        return np.zeros((x.shape[0], *flat.shape), x.dtype)
    return np.where(inside, x.reshape(x.shape[0], -1)[:, flat], x.dtype.type(0))


def interpolate(x: Array, at: Sequence[Array]) -> Array:
    """x [C,*spatial] at fractional places, by linear interpolation, with 0 outside: [C,*P]. `at`:
    an array of shape P for each spatial axis."""
    low = [np.floor(a) for a in at]
    part = [a - b for a, b in zip(at, low, strict=True)]
    total = np.zeros((x.shape[0], *at[0].shape), x.dtype)
    for corner in itertools.product((0, 1), repeat=len(at)):
        weight = np.ones(at[0].shape, x.dtype)
        for up, p in zip(corner, part, strict=True):
            weight = weight * (p if up else 1 - p)
        places = [_whole(b + up) for b, up in zip(low, corner, strict=True)]
        total += weight * read(x, places)
    return total


def _whole(a: Array) -> Array:
    return np.clip(np.nan_to_num(a, nan=-9.0), -(2.0**31), 2.0**31).astype(np.int64)


@op("anchor", "window")
def DeformConv(
    x, w, offset, b=None, mask=None, *, stride=None, pad=None, dilation=None, group=1,
    offset_group=1,
):  # fmt: skip
    """y = Conv(x, w, b), where tap k at output o reads x at o*stride + k*dilation - pad + offset

    offset [N, offset_group*taps*rank, *out] has a number for each spatial axis of each tap; mask
    [N, offset_group*taps, *out] scales each tap. x is interpolated linearly, and 0 outside.
    """
    win = window(x.shape[2:], w.shape[2:], stride, pad, dilation)
    wide, out, rank = widen(x), tuple(int(d) for d in win.out), len(win.out)
    n, c, m, taps = x.shape[0], x.shape[1], w.shape[0], prod(win.kernel)
    shift = widen(offset).reshape(n, offset_group, taps, rank, *out)
    scale = np.ones((n, offset_group, taps, *out), wide.dtype)
    if mask is not None:
        scale = widen(mask).reshape(scale.shape)
    base = np.indices(out).astype(wide.dtype)
    places = np.indices(win.kernel).reshape(rank, taps)
    y = np.zeros((n, m, *out), wide.dtype)
    per = c // offset_group
    for i in range(n):
        columns = np.empty((c, taps, *out), wide.dtype)
        for g, t in itertools.product(range(offset_group), range(taps)):
            at = [
                base[a] * win.stride[a]
                + (places[a, t] * win.dilation[a] - win.begin[a])
                + shift[i, g, t, a]
                for a in range(rank)
            ]
            part = slice(g * per, (g + 1) * per)
            columns[part, t] = interpolate(wide[i, part], at) * scale[i, g, t]
        a = widen(w).reshape(group, m // group, -1)
        y[i] = (a @ columns.reshape(group, a.shape[2], -1)).reshape(m, *out)
    if b is not None:
        y += widen(b).reshape(-1, *(1,) * rank)
    return y.astype(x.dtype, copy=False)


@DeformConv.type
def _(x, w, offset, b=None, mask=None, *, group, offset_group, **attrs):
    check_conv(x, w, b, group)
    need_same(x, w, offset, b, mask)
    shape = conv_shape(x, w, **attrs)
    if shape is not None and w.shape is not None and w.type.is_static:
        taps = prod(w.dims[2:])
        for name, v, per in (("offset", offset, taps * (len(shape) - 2)), ("mask", mask, taps)):
            if v is None or v.shape is None:
                continue
            need(len(v.shape) == len(shape), f"{name} needs rank {len(shape)}, it has {v.rank}")
            have = v.shape[1]
            wants = per * offset_group
            need(agree(have, wants), f"{name} has {have} channels, {wants} are needed")
    if x.shape is not None and isinstance(x.shape[1], NUMBER):
        need(
            x.shape[1] % offset_group == 0,
            f"offset_group {offset_group} does not divide {x.shape[1]} channels",
        )
    return Type(x.dtype, shape)


@DeformConv.cost
def _(x, w, offset, b=None, mask=None, **attrs):
    shape = conv_shape(x, w, **attrs)
    assert shape is not None
    points = prod(int(d) for d in (shape[0], *shape[2:]))
    sampling = points * x.dims[1] * prod(w.dims[2:]) * 2 ** (len(shape) - 2) * 2
    return 2 * points * shape[1] * prod(w.dims[1:]) + sampling


# ---- grid sampling


@op()
def GridSample(x, grid, *, mode="linear", padding_mode="zeros", align_corners=False):
    """y[n,c,o] = x[n,c] interpolated at the place grid[n,o], in [-1, 1], innermost axis first

    x [N,C,*spatial], grid [N,*out,rank]. mode linear | nearest | cubic (or bilinear, bicubic);
    padding_mode zeros | border | reflection gives elements outside. -1 and 1 are the edges of x,
    or, with align_corners, the centres of its outermost elements. For border, places are clipped to
    x; with cubic, those of the elements that are read, as in PyTorch.
    """
    mode = MODES[mode]
    sizes, rank = x.shape[2:], x.ndim - 2
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), widen(x).dtype)
    if not y.size:
        return y.astype(x.dtype, copy=False)
    for i in range(x.shape[0]):
        at = []
        for a, size in enumerate(sizes):
            g = widen(grid)[i, ..., rank - 1 - a]
            place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
            place = np.rint(place) if mode == "nearest" else place
            low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
            if padding_mode == "border" and mode != "cubic":
                place = np.where((place < low) | (place > high), np.clip(place, 0, size - 1), place)
            elif padding_mode == "reflection":
                place = _reflect(place, low, high)
            at.append(place)
        y[i] = _sample(widen(x[i]), at, mode, padding_mode, align_corners)
    return y.astype(x.dtype, copy=False)


def _reflect(place: Array, low: float, high: float) -> Array:
    """Places reflected at `low` and `high` until they lie in [low, high]."""
    span = high - low
    if span == 0:
        return np.full_like(place, low)
    over = np.where(place < low, low - place, place - high)
    turns = np.floor(over / span)
    rest, even = over - turns * span, turns % 2 == 0
    below = np.where(even, low + rest, high - rest)
    above = np.where(even, high - rest, low + rest)
    folded = np.where(place < low, below, np.where(place > high, above, place))
    return folded.astype(place.dtype)


def _sample(
    x: Array, at: Sequence[Array], mode: str, padding_mode: str, align_corners: bool
) -> Array:
    """x [C,*spatial] interpolated at fractional places by the rules of GridSample: [C,*P]. `at`: an
    array of shape P, in elements of x, for each spatial axis."""
    low = [np.floor(a) for a in at]
    total = np.zeros((x.shape[0], *at[0].shape), x.dtype)
    for corner in itertools.product(REACH[mode], repeat=len(at)):
        weight, places = np.ones(at[0].shape, x.dtype), []
        for o, a, b, size in zip(corner, at, low, x.shape[1:], strict=True):
            if mode != "nearest":
                t = np.abs(a - b - o)
                weight = weight * (1 - t if mode == "linear" else cubic(t, -0.75))
            place = b + o
            if padding_mode == "border":
                place = np.clip(place, 0, size - 1)
            elif padding_mode == "reflection":
                edge = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
                place = np.trunc(_reflect(place, *edge))
            places.append(_whole(place))
        total += weight * read(x, places)
    return total


@GridSample.type
def _(x, grid, *, mode, padding_mode, align_corners):
    need_one_of(MODES, mode=mode)
    need_one_of(("zeros", "border", "reflection"), padding_mode=padding_mode)
    need_axes(x, 3, "x")
    need_axes(grid, 3, "grid")
    if grid.shape is not None:
        rank = len(grid.shape)
        need(x.rank in (None, rank), f"x has rank {x.rank}, grid has {rank}")
        last, wants = grid.shape[-1], rank - 2
        need(agree(last, wants), f"the last axis of grid has {last} numbers, {wants} are needed")
    rank = x.rank or grid.rank
    if rank is None:
        return Type(x.dtype, None)
    shape: list[Dim] = [fresh() for _ in range(rank)]
    if grid.shape is not None:
        shape[0], shape[2:] = grid.shape[0], grid.shape[1:-1]
    if x.shape is not None:
        n = shape[0] if grid.shape is not None else x.shape[0]
        need(agree(x.shape[0], n), f"x is a batch of {x.shape[0]}, grid one of {n}")
        shape[:2] = x.shape[0] if isinstance(n, str) else n, x.shape[1]
    return Type(x.dtype, tuple(shape))


@GridSample.cost
def _(x, grid, *, mode, padding_mode, align_corners):
    reach = len(REACH[MODES[mode]]) ** (len(x.dims) - 2)
    return 2.0 * reach * prod(x.dims[:2]) * prod(grid.dims[1:-1])


@op()
def AffineGrid(theta, size, *, align_corners=False):
    """grid[n,*o] = theta[n] @ (place of o in [-1,1], innermost axis first, 1)

    theta [N,2,3] or [N,3,4]; size is (N, C, *spatial) of the image to be sampled by the grid
    [N,*spatial,rank].
    """
    wide, sizes = widen(theta), [int(s) for s in size[2:]]
    need_room((theta.shape[0], *sizes, theta.shape[1]), wide.dtype)
    flat = places_of(sizes, align_corners, wide.dtype) @ wide.swapaxes(1, 2)
    return flat.reshape(theta.shape[0], *sizes, theta.shape[1]).astype(theta.dtype, copy=False)


def places_of(sizes: Sequence[int], aligned: bool, dtype: np.dtype[Any]) -> Array:
    """The places of all elements of an image, [elements, rank + 1]: a row (x, y, ..., 1) for each,
    numbers in [-1, 1], innermost axis first. -1 and 1 are the centres of the first and the last
    element of an axis if `aligned` (a single element lies at 0), else their outer edges."""
    axes = []
    for count in sizes:
        steps = np.arange(count, dtype=dtype)
        if aligned:
            axes.append(steps * (2 / (count - 1)) - 1 if count > 1 else np.zeros_like(steps))
        else:
            axes.append((2 * steps + 1) / max(count, 1) - 1)
    places = np.meshgrid(*axes, indexing="ij")[::-1]
    return np.stack([*places, np.ones_like(places[0])], axis=-1).reshape(-1, len(sizes) + 1)


@AffineGrid.type
def _(theta, size, *, align_corners):
    need(theta.rank in (None, 3), f"theta needs rank 3 ([N,2,3] or [N,3,4]), it has {theta.rank}")
    rank = theta.shape[1] if theta.shape and isinstance(theta.shape[1], NUMBER) else None
    if size.const is not None:
        dims = tuple(int(s) for s in size.const)
        need(
            rank in (None, len(dims) - 2),
            f"theta is for {rank} spatial axes, size has {len(dims) - 2}",
        )
        return Type(theta.dtype, (dims[0], *dims[2:], len(dims) - 2))
    if rank is None and size.shape and isinstance(size.shape[0], NUMBER):
        rank = size.shape[0] - 2
    if rank is None:
        return Type(theta.dtype, None)
    n = theta.shape[0] if theta.shape else fresh()
    return Type(theta.dtype, (n, *(fresh() for _ in range(rank)), rank))
