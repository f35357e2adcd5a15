"""Normalisations, and softmax and its relatives."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Array, Type, Value, agree, shapes_agree
from tinsmith.ops._apart import before, but_one, images
from tinsmith.ops._dims import broadcast
from tinsmith.ops._op import OPS, need, op
from tinsmith.ops._rules import as_dtype, axis_of, in_float32_of, need_axes, need_float
from tinsmith.ops.precision import widen


def _channels(v: Array, rank: int) -> Array:
    return widen(v).reshape(-1, *(1,) * max(rank - 2, 0))


def _check_channels(x: Value, **vectors: Value | None) -> None:
    """Raise TypeRuleError unless x is of a floating-point type, and each of `vectors` has one
    element for each channel of x (axis 1; a vector x has one channel)."""
    need_float(x, "x")
    channels = None
    if x.shape is not None:
        need(len(x.shape) >= 1, "x needs a channel axis, it is a scalar")
        channels = x.shape[1] if len(x.shape) > 1 else 1
    for name, v in vectors.items():
        if v is None or v.shape is None:
            continue
        need(len(v.shape) == 1, f"{name} needs rank 1, it has {len(v.shape)}")
        have = v.shape[0]
        need(agree(have, channels), f"{name} has {have} elements, x has {channels} channels")


@op()
def BatchNorm(x, scale, shift, mean, var, *, eps=1e-5):
    """y = (x - mean) * scale / sqrt(var + eps) + shift, x [N,C,...], all others [C]"""
    scale, shift, mean, var = (_channels(v, x.ndim) for v in (scale, shift, mean, var))
    factor = scale / np.sqrt(var + var.dtype.type(eps))
    y = (widen(x) - mean) * factor + shift
    return y.astype(x.dtype, copy=False)


@BatchNorm.type
def _(x, scale, shift, mean, var, *, eps):
    _check_channels(x, scale=scale, shift=shift, mean=mean, var=var)
    return x.type


def _standard(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """((x - mean) / sqrt(var + eps), mean, 1 / sqrt(var + eps)) for statistics over `axes`, which
    the last two keep with size 1."""
    mean = x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    centred = x - mean
    var = np.mean(centred * centred, axis=axes, keepdims=True, dtype=x.dtype)
    inverse = 1 / np.sqrt(var + x.dtype.type(eps))
    return centred * inverse, mean, inverse


@op("reduction")
def InstanceNorm(x, scale, shift, *, eps=1e-5):
    """y = (x - mean) * scale / sqrt(var + eps) + shift, statistics over each plane x[n,c]"""
    y, _, _ = _standard(widen(x), tuple(range(2, x.ndim)), eps)
    y = y * _channels(scale, x.ndim) + _channels(shift, x.ndim)
    return y.astype(x.dtype, copy=False)


@InstanceNorm.type
def _(x, scale, shift, *, eps):
    _check_channels(x, scale=scale, shift=shift)
    need_axes(x, 3, "x")
    return x.type


@op("reduction")
def GroupNorm(x, scale, shift, *, groups, eps=1e-5):
    """y = (x - mean) * scale / sqrt(var + eps) + shift, statistics over each group of channels

    scale and shift have one number for each channel.
    """
    wide = widen(x)
    grouped = wide.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y, _, _ = _standard(grouped, tuple(range(2, grouped.ndim)), eps)
    y = y.reshape(x.shape) * _channels(scale, x.ndim) + _channels(shift, x.ndim)
    return y.astype(x.dtype, copy=False)


@GroupNorm.type
def _(x, scale, shift, *, groups, eps):
    _check_channels(x, scale=scale, shift=shift)
    need(groups >= 1, f"groups must be at least 1, it is {groups}")
    if x.shape is not None:
        need_axes(x, 2, "x")
        c = x.shape[1]
        need(isinstance(c, str) or c % groups == 0, f"{groups} groups do not divide {c} channels")
    return x.type


@op("reduction")
def LayerNorm(x, scale=None, shift=None, *, axis=-1, eps=1e-5, with_stats=False):
    """y = (x - mean) / sqrt(var + eps) * scale + shift, statistics over the axes from `axis` on

    with_stats adds the outputs mean and 1 / sqrt(var + eps), float32, with these axes as 1.
    """
    axes = tuple(range(axis % x.ndim, x.ndim))
    y, mean, inverse = _standard(widen(x), axes, eps)
    y = y if scale is None else y * widen(scale)
    y = y if shift is None else y + widen(shift)
    y = y.astype(x.dtype, copy=False)
    if not with_stats:
        return y
    return y, mean.astype(np.float32), inverse.astype(np.float32)


def _check_layer(x: Value, axis: int, **operands: Value | None) -> None:
    need_float(x, "x")
    if x.shape is None:
        return
    axis_of(axis, len(x.shape))
    for name, v in operands.items():
        if v is not None and v.shape is not None:
            fits = shapes_agree(broadcast(v.shape, x.shape), x.shape)
            need(fits, f"{name} [{','.join(map(str, v.shape))}] does not broadcast to x {x.type}")


@LayerNorm.type
def _(x, scale=None, shift=None, *, axis, eps, with_stats):
    _check_layer(x, axis, scale=scale, shift=shift)
    if not with_stats:
        return x.type
    stats = Type(np.dtype(np.float32), None)
    if x.shape is not None:
        start = axis_of(axis, len(x.shape))
        stats = stats.like(shape=(*x.shape[:start], *(1,) * (len(x.shape) - start)))
    return x.type, stats, stats


@op("reduction")
def RMSNorm(x, scale, *, axis=-1, eps=1e-5):
    """y = x / sqrt(mean(x^2) + eps) * scale, mean over the axes from `axis` on, dtype of scale"""
    wide, axes = widen(x), tuple(range(axis % x.ndim, x.ndim))
    square = np.mean(wide * wide, axis=axes, keepdims=True, dtype=wide.dtype)
    y = wide / np.sqrt(square + wide.dtype.type(eps))
    return (y * widen(scale)).astype(scale.dtype, copy=False)


@RMSNorm.type
def _(x, scale, *, axis, eps):
    _check_layer(x, axis, scale=scale)
    return x.type.like(dtype=scale.dtype)


@op("reduction")
def LpNorm(x, *, axis=-1, p=2):
    """y = x / (sum of |x|^p along the axis)^(1/p), and 0 where that is 0"""
    wide = widen(x)
    sums = (np.abs(wide) if p == 1 else wide * wide).sum(axis=axis, keepdims=True)
    length = sums if p == 1 else np.sqrt(sums)
    y = np.divide(wide, length, out=np.zeros_like(wide), where=length != 0)
    return y.astype(x.dtype, copy=False)


@LpNorm.type
def _(x, *, axis, p):
    need(p in (1, 2), f"p must be 1 or 2, it is {p}")
    return _same(x, axis)


@op("reduction")
def LRN(x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
    """y[:,c] = x[:,c] / (bias + alpha / size * sum of x[:,d]^2)^beta, d: `size` channels about c"""
    wide, channels = widen(x), x.shape[1]
    before, after = (size - 1) // 2, size // 2
    square = np.pad(wide * wide, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
    sums = np.zeros_like(wide)
    for d in range(size):
        sums += square[:, d : d + channels]
    y = wide / (wide.dtype.type(bias) + sums * wide.dtype.type(alpha / size)) ** beta
    return y.astype(x.dtype, copy=False)


@LRN.type
def _(x, *, size, alpha, beta, bias):
    _check_channels(x)
    need(size >= 1, f"size must be at least 1, it is {size}")
    need_axes(x, 2, "x")
    return x.type


@op("composed")
def MeanVarianceNorm(x, *, axes=(0, 2, 3), eps=1e-9):
    """y = (x - mean) / (std + eps), statistics over the axes"""
    wide, over = in_float32_of(x), np.array(axes, np.int64)
    centred = OPS["Sub"](wide, OPS["Reduce"](wide, over, kind="mean"))
    spread = OPS["Reduce"](OPS["Mul"](centred, centred), over, kind="mean")
    deviation = OPS["Add"](OPS["Sqrt"](spread), np.asarray(eps, wide.dtype))
    return as_dtype(OPS["Div"](centred, deviation), x.dtype)


@MeanVarianceNorm.type
def _(x, *, axes, eps):
    return _same(x, *axes)


BatchNorm.cost(lambda x, *_, **__: 2 * x.type.size)
LayerNorm.cost(lambda x, *_, **__: 8 * x.type.size)
RMSNorm.cost(lambda x, *_, **__: 4 * x.type.size)
LRN.cost(lambda x, *, size, **_: (size + 20) * x.type.size)

for _norm in (InstanceNorm, GroupNorm, LRN):
    _norm.apart(images)
for _norm in (LayerNorm, RMSNorm):
    _norm.apart(before)
LpNorm.apart(but_one)


# ---- softmax and its relatives, along one axis


def _same(x: Value, *axes: int) -> Type:
    """The type of x, for operators that keep it. Raises TypeRuleError unless x is of a
    floating-point type and has these axes."""
    need_float(x, "x")
    if x.shape is not None:
        for axis in axes:
            axis_of(axis, len(x.shape))
    return x.type


def softmax(x: Array, axis: int = -1) -> Array:
    """The softmax of a float32 or float64 array along `axis`; a row of -inf only gives NaN."""
    if not x.size:
        return x
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    return e


@op("reduction")
def Softmax(x, *, axis=-1):
    """y = exp(x - max(x)) / sum(exp(x - max(x))), along the axis"""
    return softmax(widen(x), axis).astype(x.dtype, copy=False)


@op("reduction")
def LogSoftmax(x, *, axis=-1):
    """y = x - max(x) - log(sum(exp(x - max(x)))), along the axis"""
    if not x.size:
        return x
    shifted = widen(x) - widen(x).max(axis=axis, keepdims=True)
    y = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return y.astype(x.dtype, copy=False)


@op("reduction")
def Hardmax(x, *, axis=-1):
    """y = 1 at the first maximum along the axis, 0 elsewhere"""
    y = np.zeros_like(x)
    if x.size:
        first = np.expand_dims(widen(x).argmax(axis=axis), axis)
        np.put_along_axis(y, first, x.dtype.type(1), axis)
    return y


Softmax.cost(lambda x, *, axis: 20 * x.type.size)
LogSoftmax.cost(lambda x, *, axis: 20 * x.type.size)
for _one in (Softmax, LogSoftmax, Hardmax):
    _one.type(lambda x, *, axis: _same(x, axis))
    _one.apart(but_one)
