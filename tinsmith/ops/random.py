"""Random tensors. A seed makes a call repeatable; without one every call differs.

The generator is numpy's: other engines give other numbers for a seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value, dtype_of
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, op
from tinsmith.ops._rules import FLOATS, dtype_attr, need_dtype, need_rank, need_room
from tinsmith.ops.precision import widen
from tinsmith.sizes import NUMBER


def _generator(seed: float | None) -> np.random.Generator:
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(int(np.float64(seed).view(np.uint64)))


def _need_shape(shape: Any) -> tuple[int, ...]:
    need(all(isinstance(d, NUMBER) and d >= 0 for d in shape), f"shape {shape} has a negative dim")
    return tuple(shape)


@op("impure")
def RandomNormal(*, shape, dtype="float32", mean=0.0, scale=1.0, seed=None):
    """y ~ N(mean, scale^2)"""
    need_room(shape, np.float64)
    return _generator(seed).normal(mean, scale, shape).astype(dtype_of(dtype))


@RandomNormal.type
def _(*, shape: tuple[int, ...], dtype: str, mean: float, scale: float, seed: Any) -> Type:
    need(scale >= 0, f"scale is {scale}")
    return Type(dtype_attr(dtype), _need_shape(shape))


@op("impure")
def RandomUniform(*, shape, dtype="float32", low=0.0, high=1.0, seed=None):
    """y ~ U[low, high)"""
    need_room(shape, np.float64)
    return _generator(seed).uniform(low, high, shape).astype(dtype_of(dtype))


@RandomUniform.type
def _(*, shape: tuple[int, ...], dtype: str, low: float, high: float, seed: Any) -> Type:
    need(low <= high, f"low {low} is above high {high}")
    return Type(dtype_attr(dtype), _need_shape(shape))


@op("impure")
def RandomNormalLike(x, *, dtype=None, mean=0.0, scale=1.0, seed=None):
    """y ~ N(mean, scale^2), with the shape of x and its dtype unless one is named"""
    y = _generator(seed).normal(mean, scale, x.shape)
    return np.asarray(y).astype(x.dtype if dtype is None else dtype_of(dtype))


@op("impure")
def RandomUniformLike(x, *, dtype=None, low=0.0, high=1.0, seed=None):
    """y ~ U[low, high), with the shape of x and its dtype unless one is named"""
    y = _generator(seed).uniform(low, high, x.shape)
    return np.asarray(y).astype(x.dtype if dtype is None else dtype_of(dtype))


@op("impure")
def Bernoulli(x, *, dtype=None, seed=None):
    """y = 1 with probability x, else 0, in the dtype of x unless one is named"""
    y = _generator(seed).random(x.shape) < x.astype(np.float64)
    return np.asarray(y).astype(x.dtype if dtype is None else dtype_of(dtype))


def _like(x: Value, *, dtype: str | None, **_: Any) -> Type:
    return Type(x.dtype if dtype is None else dtype_attr(dtype), x.shape)


RandomNormalLike.type(_like)
RandomUniformLike.type(_like)


@Bernoulli.type
def _(x: Value, *, dtype: str | None, seed: Any) -> Type:
    need_dtype(x, FLOATS, "x")
    return _like(x, dtype=dtype)


@op("impure")
def Multinomial(x, *, dtype="int32", sample_size=1, seed=None):
    """y[n, i] = a class c, drawn with probability e^x[n, c] / sum of e^x[n, :]; i < sample_size"""
    wide = widen(x).astype(np.float64)
    p = np.exp(wide - np.max(wide, axis=1, keepdims=True, initial=-np.inf))
    edges = np.cumsum(p, axis=1)
    drawn = _generator(seed).random((x.shape[0], sample_size, 1)) * edges[:, None, -1:]
    return np.sum(drawn >= edges[:, None, :], axis=-1).astype(dtype_of(dtype))


@Multinomial.type
def _(x: Value, *, dtype: str, sample_size: int, seed: Any) -> Type:
    need_dtype(x, FLOATS, "x")
    need_rank(x, 2, "x")
    need(dtype in ("int32", "int64"), f"dtype is {dtype!r}, not int32 or int64")
    need(sample_size >= 1, f"sample_size is {sample_size}")
    need(x.shape is None or x.shape[1] != 0, "there is no class to draw")
    batch: Any = fresh() if x.shape is None else x.shape[0]
    return Type(dtype_attr(dtype), (batch, sample_size))
