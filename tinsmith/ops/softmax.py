"""Softmax and its relatives, along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value
from tinsmith.ops._apart import but_one
from tinsmith.ops._op import axis_of, op
from tinsmith.ops._rules import need_float
from tinsmith.ops.precision import widen

Array = np.ndarray[Any, Any]


def _same(x: Value, axis: int) -> Type:
    need_float(x, "x")
    if x.shape is not None:
        axis_of(axis, len(x.shape))
    return x.type


def softmax(x: Array, axis: int = -1) -> Array:
    """The softmax of a float32 or float64 array; a row of -inf only gives NaN."""
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


Softmax.type(lambda x, *, axis: _same(x, axis))
LogSoftmax.type(lambda x, *, axis: _same(x, axis))
Hardmax.type(lambda x, *, axis: _same(x, axis))
Softmax.cost(lambda x, *, axis: 20 * x.type.size)
LogSoftmax.cost(lambda x, *, axis: 20 * x.type.size)


for _one in (Softmax, LogSoftmax, Hardmax):
    _one.apart(but_one)
