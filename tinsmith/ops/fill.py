"""Tensors made from a few numbers: ranges, constants, diagonals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinsmith.graph import Type, Value, dtype_of
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import (
    INTS,
    NUMBERS,
    const_ints,
    dtype_attr,
    is_finite,
    length_of,
    need_data,
    need_dtype,
    need_rank,
    need_room,
    need_same,
    scalar,
    unknown,
)
from tinsmith.sizes import NUMBER, largest


@op()
def Range(start, limit, delta):
    """y[i] = start + i * delta for 0 <= i < ceil((limit - start) / delta), in the dtype of start

    Computed exactly for integers, in double precision for floats.
    """
    first, end, step = scalar(start), scalar(limit), scalar(delta)
    need_data(step != 0, "delta is 0")
    for name, number in (("start", first), ("limit", end), ("delta", step)):
        need_data(is_finite(number), f"{name} is {number}")
    count = _steps(first, end, step)
    dtype = np.asarray(start).dtype
    need_room((count,), np.int64)
    if dtype.kind in "iu":
        return (np.arange(count, dtype=np.int64) * step + first).astype(dtype)
    return (np.arange(count, dtype=np.float64) * float(step) + float(first)).astype(dtype)


def _steps(start: Any, limit: Any, delta: Any) -> int:
    if isinstance(start, NUMBER):
        return largest(0, -(-(limit - start) // delta))
    return max(0, math.ceil((float(limit) - float(start)) / float(delta)))


@Range.type
def _(start: Value, limit: Value, delta: Value) -> Type:
    need_dtype(start, NUMBERS, "start")
    need_same(start, limit, delta)
    for v in (start, limit, delta):
        need(v.const is None or v.const.size == 1, f"{v!r} must hold one number")
        need(v.const is None or is_finite(scalar(v.const)), f"{v!r} is not finite")
    need(delta.const is None or scalar(delta.const) != 0, "delta is 0")
    if start.const is None or limit.const is None or delta.const is None:
        return Type(start.dtype, (fresh(),))
    return Type(start.dtype, (_steps(*(scalar(v.const) for v in (start, limit, delta))),))


@op()
def ConstantOfShape(shape, *, value=0.0, dtype="float32"):
    """y[...] = value, with the shape given and the dtype named"""
    dims = tuple(int(d) for d in np.asarray(shape).reshape(-1))
    need_data(min(dims, default=0) >= 0, f"shape {list(dims)} has a negative dim")
    need_room(dims, dtype_of(dtype))
    return np.full(dims, value, dtype_of(dtype))


@ConstantOfShape.type
def _(shape: Value, *, value: Any, dtype: str) -> Type:
    need_dtype(shape, INTS, "shape")
    dims = const_ints(shape)
    need(dims is None or all(d >= 0 for d in dims), f"shape {dims} has a negative dim")
    return Type(dtype_attr(dtype), unknown(length_of(shape)) if dims is None else dims)


@op()
def EyeLike(x, *, dtype=None, k=0):
    """y[i, i + k] = 1, else 0, with the shape of x and its dtype unless one is named"""
    return np.eye(*x.shape, k=k).astype(x.dtype if dtype is None else dtype_of(dtype))


@EyeLike.type
def _(x: Value, *, dtype: str | None, k: int) -> Type:
    need_rank(x, 2, "x")
    return Type(
        x.dtype if dtype is None else dtype_attr(dtype), unknown(2) if x.shape is None else x.shape
    )
