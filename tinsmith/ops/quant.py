"""Quantisation to and from integers and small floats, and products and convolutions of quantised
tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim, Type, Value, agree, dtype_of, shapes_agree
from tinsmith.graph.types import name_of
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import FLOAT8, axis_of, dtypes_at, need_data, need_float
from tinsmith.ops.conv import check_conv, conv_flops, conv_shape, conv_sums
from tinsmith.ops.matmul import matmul_shape, product_flops
from tinsmith.ops.precision import is_float, is_half, widen
from tinsmith.ops.rescale import check_bytes
from tinsmith.ops.window import window
from tinsmith.sizes import NUMBER

LOW = FLOAT8 | {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
LOW |= {f"{kind}{bits}" for kind in ("int", "uint") for bits in (2, 4, 8, 16)}
QUANTISED = ", ".join(sorted(LOW))


@cache
def _range(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind in "iu":  # without importing ml_dtypes
        own = np.iinfo(dtype)
        return float(own.min), float(own.max)
    import ml_dtypes

    info = ml_dtypes.finfo(dtype) if is_float(dtype) else ml_dtypes.iinfo(dtype)
    return float(info.min), float(info.max)


def spread(s: Array, x: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point `s` in a form that broadcasts to the shape `x`. s has one number, one
    for each index on `axis`, or, with `block_size`, one for each block of so many of these (the
    shape x, but for fewer elements on `axis`)."""
    if s.size == 1 and s.ndim <= 1:
        return s.reshape(())
    if not block_size:
        need_data(s.size == x[axis], f"{s.size} numbers for axis {axis} of {x}")
        shape = [1] * len(x)
        shape[axis] = s.size
        return s.reshape(shape)
    axis %= len(x)
    repeated = np.repeat(s, block_size, axis=axis)
    return repeated[(*(slice(None),) * axis, slice(x[axis]))]


def narrow(v: Array, dtype: np.dtype[Any]) -> Array:
    """`v`, whole numbers as floats, in an integer type of at most 16 bits: numbers out of its range
    become its ends, NaN becomes 0."""
    low, high = _range(dtype)
    within = np.minimum(np.maximum(v, low), high)
    return np.where(np.isnan(within), 0.0, within).astype(np.int32).astype(dtype)


def divided_in(scale: Any, precision: str | None) -> np.dtype[Any]:
    """The element type in which a QuantizeLinear of these divides."""
    return scale.dtype if precision is None else dtype_of(precision)


@op("steps", "quantise")
def QuantizeLinear(
    x, scale, zero_point=None, *, axis=1, block_size=0, saturate=True, dtype=None, precision=None
):
    """y = saturate(round(x / scale) + zero_point), halves to even

    scale and zero_point have one number, one for each index on `axis`, or one for each block_size
    of these; the division is in the type of scale, or in `precision`. y has the type of zero_point,
    or dtype, or uint8. To float types x / scale + zero_point is rounded only once, to the type;
    saturate False lets float8 overflow to NaN or infinity.
    """
    low = dtype_of(_low_dtype(zero_point, dtype))
    real = divided_in(scale, precision)
    divisor = spread(scale, x.shape, axis, block_size).astype(real)
    v = widen(x.astype(real) / divisor)
    zero: Any = 0
    if zero_point is not None:
        zero = spread(zero_point, x.shape, axis, block_size).astype(np.float32)
    if not is_float(low):
        return narrow(np.rint(v.astype(np.float64)) + zero, low)
    v = v + zero if np.any(zero) else v
    if saturate or not low.name.startswith("float8"):
        v = np.clip(v, *_range(low))
    return np.asarray(v).astype(low)


def _low_dtype(zero_point: Any, dtype: str | None) -> Any:
    if zero_point is not None:
        return zero_point.dtype
    return dtype or "uint8"


@QuantizeLinear.type
def _(x, scale, zero_point=None, *, axis, block_size, saturate, dtype, precision):
    need(is_float(x.dtype) or x.dtype == np.int32, "x must be float or int32, it is {}", x.dtype)
    _check_scale(x, scale, zero_point, axis, block_size)
    low = dtype_of(_low_dtype(zero_point, dtype))
    need(name_of(low) in LOW, "{} is not a quantised type; those are {}", low, QUANTISED)
    need(dtype is None or dtype_of(dtype) == low, "dtype is {}, but zero_point is {}", dtype, low)
    return x.type.like(dtype=low)


def _check_scale(
    x: Value, scale: Value, zero_point: Value | None, axis: int, block_size: int
) -> None:
    """Raise TypeRuleError unless `scale` is of a floating-point type, and a scalar, a vector along
    `axis` of x, or, with `block_size`, one number for each block (the shape of x with fewer
    elements on `axis`), and the zero point has the shape of `scale`."""
    need_float(scale, "scale")
    if zero_point is not None:
        both = zero_point.shape, scale.shape
        ok = set(both) <= {(), (1,)} or shapes_agree(*both)
        told = zero_point.type, scale.type
        need(ok, "zero_point {} does not have the shape of scale {}", *told)
    if x.shape is None or scale.shape is None or scale.shape in ((), (1,)):
        return
    at = axis_of(axis, len(x.shape))
    size = x.shape[at]
    if not block_size:
        need(len(scale.shape) == 1, "without block_size scale needs rank 0 or 1: {}", scale.type)
        have = scale.shape[0]
        need(agree(have, size), "scale has {} numbers, axis {} of x has {}", have, axis, size)
        return
    need(block_size > 0, f"block_size must be positive, it is {block_size}")
    wants: list[Dim] = list(x.shape)
    wants[at] = -(-size // block_size) if isinstance(size, NUMBER) else size
    ok = shapes_agree(scale.shape, wants)
    need(ok, f"blocks of {block_size} need a scale of [{','.join(map(str, wants))}]: {scale.type}")


@op("steps", "dequantise")
def DequantizeLinear(x, scale, zero_point=None, *, axis=1, block_size=0, dtype=None):
    """y = (x - zero_point) * scale, of the type of scale or `dtype`

    scale and zero_point have one number, one for each index on `axis`, or one for each block_size
    of these.
    """
    real = scale.dtype if dtype is None else dtype_of(dtype)
    wide = np.float64 if real == np.float64 else np.float32
    v = x.astype(np.int64 if x.dtype.kind in "iu" else wide)
    if zero_point is not None:
        v = v - spread(zero_point, x.shape, axis, block_size).astype(v.dtype)
    y = v.astype(wide) * spread(scale, x.shape, axis, block_size).astype(wide)
    return np.asarray(y).astype(real, copy=False)


@DequantizeLinear.type
def _(x, scale, zero_point=None, *, axis, block_size, dtype):
    kind, zero = x.dtype, None if zero_point is None else zero_point.dtype
    need(name_of(kind) in LOW or kind == np.int32, "x must be of a quantised type, it is {}", kind)
    need(zero is None or zero == kind, "x is {}, zero_point is {}", kind, zero)
    _check_scale(x, scale, zero_point, axis, block_size)
    return x.type.like(dtype=scale.dtype if dtype is None else dtype_of(dtype))


@op()
def DynamicQuantizeLinear(x):
    """(y, scale, zero_point): x as uint8, where [min(x, 0), max(x, 0)] of all x becomes 0..255"""
    high = np.float32(max(0, x.max(initial=0)))
    low = np.float32(min(0, x.min(initial=0)))
    scale = (np.float32(1) if high == low else high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return y, np.asarray(scale, np.float32), np.asarray(zero).astype(np.uint8)


@DynamicQuantizeLinear.type
def _(x):
    need(x.dtype == np.float32, f"x must be float32, it is {x.dtype}")
    return x.type.like(dtype="uint8"), Type(np.dtype(np.float32), ()), Type(np.dtype(np.uint8), ())


# ---- integer products: float64 holds every sum of 8-bit products exactly


def _exact(sums: Array) -> Array:
    """Sums of integers, held in floats, as int32; sums out of its range wrap around."""
    return sums.astype(np.int64).astype(np.int32)


def _centred(x: Array, zero: Array | None, column: bool = False) -> Array:
    """x - zero as float64; `zero` None is 0. A vector `zero` has a number for each column of x, or,
    with `column`, for each row."""
    if zero is None:
        return x.astype(np.float64)
    if zero.size == 1:
        zero = zero.reshape(())
    elif zero.ndim == 1 and column:
        zero = zero[:, None]
    return x.astype(np.float64) - zero.astype(np.float64)


@op("anchor")
def MatMulInteger(a, b, a_zero_point=None, b_zero_point=None):
    """y = (a - a_zero_point) @ (b - b_zero_point), int32

    a_zero_point is one number or one for each row of a, b_zero_point one for each column of b.
    """
    left = _centred(a, a_zero_point, column=a.ndim > 1)
    return _exact(np.matmul(left, _centred(b, b_zero_point)))


@MatMulInteger.type
def _(a, b, a_zero_point=None, b_zero_point=None):
    check_bytes(a=a, b=b)
    _check_zeros((a, a_zero_point), (b, b_zero_point))
    return Type(np.dtype(np.int32), matmul_shape(a, b))


def _check_zeros(*pairs: tuple[Value, Value | None]) -> None:
    for v, zero in pairs:
        if zero is not None:
            told = v.name, v.dtype, zero.dtype
            need(zero.dtype == v.dtype, "{} is {}, its zero point is {}", *told)


def _check_single(**values: Value | None) -> None:
    for name, v in values.items():
        if v is not None and v.shape is not None:
            need(all(agree(d, 1) for d in v.shape), f"{name} must be one number, it is {v.type}")


@op("anchor", "window")
def ConvInteger(
    x, w, x_zero_point=None, w_zero_point=None, *, stride=None, pad=None, dilation=None, group=1,
    auto_pad="NOTSET",
):  # fmt: skip
    """y = Conv(x - x_zero_point, w - w_zero_point), int32; padding counts as x_zero_point

    w_zero_point is one number or one for each output channel.
    """
    win = window(x.shape[2:], w.shape[2:], stride, pad, dilation, auto_pad)
    return _exact(conv_sums(_centred(x, x_zero_point), _per_output(w, w_zero_point), win, group))


def _per_output(w: Array, zero: Array | None) -> Array:
    if zero is not None and zero.size > 1:
        zero = zero.reshape(-1, *(1,) * (w.ndim - 1))
    return _centred(w, zero)


@ConvInteger.type
def _(x, w, x_zero_point=None, w_zero_point=None, *, group, **attrs):
    check_conv(x, w, None, group)
    check_bytes(x=x, w=w)
    _check_zeros((x, x_zero_point), (w, w_zero_point))
    _check_single(x_zero_point=x_zero_point)
    return Type(np.dtype(np.int32), conv_shape(x, w, **attrs))


def _requantise(sums: Array, factor: Array, zero: Array) -> Array:
    return narrow(np.rint(sums.astype(np.float32) * factor) + np.float32(zero), zero.dtype)


@op("anchor", "window")
def QLinearConv(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b=None, *,
    stride=None, pad=None, dilation=None, group=1, auto_pad="NOTSET",
):  # fmt: skip
    """y = saturate(round((Conv(x - xz, w - wz) + b) * x_scale * w_scale / y_scale) + yz)

    b is int32 with scale x_scale * w_scale; w_scale and w_zero_point are one number or one for
    each output channel.
    """
    sums = ConvInteger.reference(
        x, w, x_zero_point, w_zero_point, stride=stride, pad=pad, dilation=dilation, group=group,
        auto_pad=auto_pad,
    )  # fmt: skip
    tail = (1,) * (x.ndim - 2)
    if b is not None:
        sums = sums + b.reshape(-1, *tail)
    factor = x_scale.reshape(()) * w_scale.reshape(-1, *tail) / y_scale.reshape(())
    return _requantise(sums, factor.astype(np.float32), y_zero_point.reshape(()))


@QLinearConv.type
def _(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b=None, *, group,
    **attrs,
):  # fmt: skip
    check_conv(x, w, b, group)
    check_bytes(x=x, w=w, y_zero_point=y_zero_point)
    _check_zeros((x, x_zero_point), (w, w_zero_point))
    _check_single(x_scale=x_scale, x_zero_point=x_zero_point)
    _check_single(y_scale=y_scale, y_zero_point=y_zero_point)
    need(b is None or b.dtype == np.int32, "b must be int32")
    if w.shape is not None and w_scale.shape is not None and len(w_scale.shape) == 1:
        have, m = w_scale.shape[0], w.shape[0]
        need(have == 1 or agree(have, m), f"w_scale has {have} numbers, w has {m} output channels")
    return Type(y_zero_point.dtype, conv_shape(x, w, **attrs))


@op("anchor")
def QLinearMatMul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """y = saturate(round((a - az) @ (b - bz) * a_scale * b_scale / y_scale) + yz)

    Each scale and zero point is one number; for a also one for each row, for b one for each column.
    """
    rows = a_scale[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    if a_scale.size == 1:
        rows = a_scale.reshape(())
    columns = b_scale.reshape(()) if b_scale.size == 1 else b_scale
    sums = MatMulInteger.reference(a, b, a_zero_point, b_zero_point)
    factor = widen(rows) * widen(columns) / widen(y_scale.reshape(()))
    return _requantise(sums, factor.astype(np.float32), y_zero_point.reshape(()))


@QLinearMatMul.type
def _(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    check_bytes(a=a, b=b, y_zero_point=y_zero_point)
    _check_zeros((a, a_zero_point), (b, b_zero_point))
    _check_single(y_scale=y_scale, y_zero_point=y_zero_point)
    return Type(y_zero_point.dtype, matmul_shape(a, b))


MatMulInteger.cost(product_flops)
QLinearMatMul.cost(lambda a, s, z, b, *_: product_flops(a, b))
ConvInteger.cost(lambda x, w, *_, **attrs: conv_flops(x, w, **attrs))
QLinearConv.cost(lambda x, s, z, w, *_, **attrs: conv_flops(x, w, **attrs))
MatMulInteger.factors = ConvInteger.factors = dtypes_at(0, 1)
QLinearMatMul.factors = QLinearConv.factors = dtypes_at(0, 3)


# ---- weights in few bits


def decoded(w: Array, scale: Array | None, zero: Array | None, block_size: int) -> Array:
    """The weights [k, n] of a SmallMatMul as float32: (w - zero) * scale, or w without a scale.
    scale and zero have a row for each block of `block_size` rows of w (0: one row for all)."""
    real = w.astype(np.float32)
    if scale is None:
        return real
    each = block_size or max(1, len(w))
    if zero is not None:
        real -= np.repeat(zero.astype(np.float32), each, axis=0)[: len(w)]
    return real * np.repeat(scale.astype(np.float32), each, axis=0)[: len(w)]


@op("anchor")
def SmallMatMul(a, w, scale=None, zero=None, *, block_size=0):
    """y = a @ ((w - zero) * scale), a [...,m,k] float32, w [k,n] small integers or half floats

    scale and zero have a row of n for each block of block_size rows of w (0: one row for all).
    A w of half floats (float16, bfloat16) has neither.
    """
    return np.matmul(a, decoded(w, scale, zero, block_size))


@SmallMatMul.type
def _(a, w, scale=None, zero=None, *, block_size):
    need(a.dtype == np.float32, f"a must be float32, it is {a.dtype}")
    need(w.rank in (None, 2), f"w must be a matrix, it is {w.type}")
    if is_half(w.dtype):
        need(scale is None and zero is None, f"w is {w.dtype}: it has no scale or zero point")
    else:
        need(w.dtype.name in LOW, f"w is {w.dtype}, which is no type of small weights")
        need(scale is not None and scale.dtype == np.float32, "scale must be float32")
    need(zero is None or zero.dtype == w.dtype, f"w is {w.dtype}, zero is {zero and zero.dtype}")
    if w.type.is_static and scale is not None:
        k, n = w.dims
        want = (-(-k // block_size) if block_size else 1, n)
        for name, v in (("scale", scale), ("zero", zero)):
            need(v is None or v.dims == want, f"{name} must be {want}, it is {v and v.type}")
    return Type(a.dtype, matmul_shape(a, w))


SmallMatMul.cost(product_flops)
