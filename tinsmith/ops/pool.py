"""Pooling over windows and over whole images, and the inverse of max pooling."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Type, Value, dtype_of
from tinsmith.ops._apart import planes
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import need_axes, need_float, need_room
from tinsmith.ops.precision import is_float, widen
from tinsmith.ops.reduce import Reduce
from tinsmith.ops.window import Window, padded, spatial_attr, tap, taps, window


@op("reduction", "homogeneous", "window")
def MaxPool(
    x, *, kernel, stride=None, pad=None, dilation=None, ceil_mode=False, storage_order=0,
    auto_pad="NOTSET", with_indices=False,
):  # fmt: skip
    """y[n,c,o] = max over k of x[n, c, o*stride + k*dilation - pad]; padding never wins

    pad is all begins, then all ends. with_indices adds an output: the index of the (first) maximum
    in the flat x, int64; storage_order 1 counts spatial places with the first axis fastest.
    """
    win = window(x.shape[2:], kernel, stride, pad, dilation, auto_pad, ceil_mode)
    fill = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    if not with_indices:
        return _separable(padded(x, win, fill), win, np.maximum)
    sizes = x.shape[2:]
    places = np.arange(prod(sizes), dtype=np.int64)
    if storage_order:
        places = places.reshape(sizes[::-1]).transpose()
    places = padded(places.reshape(sizes), win, -1)
    y = where = None
    for (_, part), (_, place) in zip(
        taps(padded(x, win, fill), win), taps(places, win), strict=True
    ):
        if y is None or where is None:
            y, where = part.copy(), np.broadcast_to(place, part.shape).copy()
            continue
        better = (part > y) | (np.isnan(part) & ~np.isnan(y)) if is_float(x.dtype) else part > y
        better |= (where < 0) & (place >= 0)
        np.copyto(y, part, where=better)
        np.copyto(where, np.broadcast_to(place, part.shape), where=better)
    assert y is not None and where is not None
    planes = np.arange(prod(x.shape[:2]), dtype=np.int64) * prod(sizes)
    return y, where + planes.reshape(*x.shape[:2], *(1,) * len(sizes))


def _separable(x: Array, win: Window, combine: Callable[[Array, Array], Array]) -> Array:
    """Reduce each window of a padded array [..., *spatial] to one number by `combine` (np.maximum,
    np.add), one axis after the other: [..., *win.out]."""
    lead = x.ndim - len(win.kernel)
    for i, k in enumerate(win.kernel):
        axis, d, s, n = lead + i, win.dilation[i], win.stride[i], int(win.out[i])
        y = tap(x, axis, 0, s, n).copy()
        for t in range(1, k):
            y = combine(y, tap(x, axis, t * d, s, n))
        x = y
    return x


def pool_type(
    x: Value, *, kernel: Any, stride: Any, pad: Any, dilation: Any, auto_pad: str, ceil_mode: bool,
    **_: Any,
) -> Type:  # fmt: skip
    """The output type of a pooling of x, by its attributes; new symbols for all dims, by the rank
    of `kernel`, if the rank of x is unknown. Raises TypeRuleError where they do not fit x."""
    if x.shape is None:
        return Type(x.dtype, tuple(fresh() for _ in range(len(kernel) + 2)))
    need_axes(x, 3, "x, [N,C,*spatial],")
    axes = len(x.shape) - 2
    need(axes == len(kernel), f"the kernel is {kernel}, x has {axes} spatial axes")
    win = window(x.shape[2:], kernel, stride, pad, dilation, auto_pad, ceil_mode)
    return x.type.like(shape=(*x.shape[:2], *win.out))


def _flops(x: Value, *, kernel: Any, p: int = 0, **attrs: Any) -> float:
    """How many operations a pooling takes: for each output element one per tap of the kernel, or
    three with `p` (LpPool)."""
    return (3 if p else 1) * prod(kernel) * pool_type(x, kernel=kernel, **attrs).size


@MaxPool.type
def _(x, *, with_indices, **attrs):
    y = pool_type(x, **attrs)
    return (y, y.like(dtype="int64")) if with_indices else y


@op("reduction", "homogeneous", "window")
def AveragePool(
    x, *, kernel, stride=None, pad=None, dilation=None, ceil_mode=False, count_include_pad=False,
    auto_pad="NOTSET",
):  # fmt: skip
    """y[n,c,o] = sum over k of x[n, c, o*stride + k*dilation - pad] / count

    count: the taps k that lie in x, with count_include_pad also those in `pad`, but never those
    beyond it, which ceil_mode may add.
    """
    win = window(x.shape[2:], kernel, stride, pad, dilation, auto_pad, ceil_mode)
    y = _separable(padded(widen(x), win, 0), win, np.add)
    for i, n in enumerate(win.out):
        counts = _counts(x.shape[2 + i], win, i, count_include_pad)
        y /= counts.astype(y.dtype).reshape(-1, *(1,) * (len(win.out) - 1 - i))
        assert len(counts) == n
    return y.astype(x.dtype, copy=False)


def _counts(size: int, win: Window, axis: int, include_pad: bool) -> Array:
    """By how many taps AveragePool divides along one spatial axis, at least 1: an array [out].
    `size` is the length of the axis in x; with `include_pad` taps in the padding count."""
    starts = np.arange(int(win.out[axis])) * win.stride[axis] - win.begin[axis]
    places = starts[:, None] + np.arange(win.kernel[axis]) * win.dilation[axis]
    low, high = (-win.begin[axis], size + win.end[axis]) if include_pad else (0, size)
    return np.maximum(((places >= low) & (places < high)).sum(axis=1), 1)


@AveragePool.type
def _(x, **attrs):
    need_float(x, "x")
    return pool_type(x, **attrs)


@op("reduction", "homogeneous", "window")
def LpPool(
    x, *, kernel, stride=None, pad=None, dilation=None, ceil_mode=False, p=2, auto_pad="NOTSET"
):
    """y[n,c,o] = (sum over k of |x[n, c, o*stride + k*dilation - pad]|^p)^(1/p)"""
    win = window(x.shape[2:], kernel, stride, pad, dilation, auto_pad, ceil_mode)
    sums = _separable(padded(np.abs(widen(x)) ** p, win, 0), win, np.add)
    return (sums ** (1 / p)).astype(x.dtype, copy=False)


@LpPool.type
def _(x, *, p, **attrs):
    need(p > 0, f"p must be positive, it is {p}")
    return pool_type(x, **attrs)


@op("reduction", "homogeneous")
def GlobalPool(x, *, kind="mean", p=2, dtype=None):
    """y[n,c,1,...] = the mean, maximum or p-norm of x[n,c,...]; kind mean | max | lp

    y has the element type of x, or, for a mean only, `dtype`. Without spatial elements a mean is
    NaN, a maximum the least number of the type.
    """
    axes = tuple(range(2, x.ndim))
    wide = widen(x) if dtype is None else x.astype(dtype)
    if kind == "lp":
        y = (np.abs(wide) ** p).sum(axis=axes, keepdims=True) ** (1 / p)
    else:
        y = Reduce(wide, axes, kind=kind, noop_with_empty_axes=True)
    return y.astype(dtype or x.dtype, copy=False)


@GlobalPool.type
def _(x, *, kind, p, dtype):
    need_one_of(("mean", "max", "lp"), kind=kind)
    need(p > 0, f"p must be positive, it is {p}")
    need(dtype is None or kind == "mean", f"only a mean may be {dtype}, kind is {kind}")
    made = x.type if dtype is None else x.type.like(dtype=dtype_of(dtype))
    if x.shape is None:
        return made
    need_axes(x, 2, "x")
    return made.like(shape=(*x.shape[:2], *(1,) * (len(x.shape) - 2)))


GlobalPool.cost(lambda x, *, kind, **_: x.type.size * (3 if kind == "lp" else 1))


@op("window")
def MaxUnpool(x, indices, output_shape=None, *, kernel, stride=None, pad=None):
    """y.flat[indices] = x, zero elsewhere: the inverse of MaxPool

    Spatial sizes n of x become (n - 1) * stride + kernel - pads; indices are flat indices into a y
    of this shape. A larger output_shape (of all axes) then adds zeros at their ends.
    """
    shape = (*x.shape[:2], *_unpooled(x.shape[2:], kernel, stride, pad))
    for dims in (shape,) if output_shape is None else (shape, output_shape):
        need_room(dims, x.dtype)
    y = np.zeros(prod(shape), x.dtype)
    y[indices.ravel()] = x.ravel()
    y = y.reshape(shape)
    if output_shape is None or tuple(output_shape) == shape:
        return y
    larger = np.zeros(tuple(int(n) for n in output_shape), x.dtype)
    larger[tuple(slice(n) for n in shape)] = y
    return larger


def _unpooled(sizes: Any, kernel: Any, stride: Any, pad: Any) -> tuple[Any, ...]:
    rank = len(sizes)
    kernel = spatial_attr("kernel", kernel, rank, 1, 1)
    stride = spatial_attr("stride", stride, rank, 1, 1)
    pads = spatial_attr("pad", pad, 2 * rank, 0, 0)
    return tuple(
        fresh() if isinstance(n, str) else (n - 1) * s + k - pads[i] - pads[rank + i]
        for i, (n, k, s) in enumerate(zip(sizes, kernel, stride, strict=True))
    )


@MaxUnpool.type
def _(x, indices, output_shape=None, *, kernel, stride, pad):
    need(indices.dtype == np.int64, f"indices must be int64, they are {indices.dtype}")
    if output_shape is not None and output_shape.const is not None:
        return x.type.like(shape=tuple(int(n) for n in output_shape.const))
    if x.shape is None or output_shape is not None:
        rank = x.rank
        return x.type.like(shape=None if rank is None else tuple(fresh() for _ in range(rank)))
    return x.type.like(shape=(*x.shape[:2], *_unpooled(x.shape[2:], kernel, stride, pad)))


for _pool in (MaxPool, AveragePool, LpPool):
    _pool.cost(_flops)
for _pool in (MaxPool, AveragePool, LpPool, GlobalPool):
    _pool.apart(planes)
