"""Conversions between element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value, dtype_of
from tinsmith.graph.types import name_of
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import FLOAT8, dtype_attr
from tinsmith.ops.precision import is_float

NIBBLES = {"int4", "uint4", "int2", "uint2"}


@op("elementwise", "conversion")
def Cast(x, *, to, saturate=True, round_mode="up"):
    """y = x converted to the dtype named by `to`

    To floats, numbers round to nearest even, and overflow to infinity, or NaN in types without it
    (with `saturate`, a float8 becomes its largest number). From floats to integers they are
    truncated; numbers out of range become the nearest integer of the type (those of 4 and 2 bits
    wrap around), NaN becomes 0 (open in ONNX). From integers to integers they wrap around.
    To bool, all but 0 is True. `round_mode` ("up", "down", "nearest") is for float8_e8m0fnu only.
    Strings are parsed as by Python; numbers become strings of the fewest digits that identify them.
    """
    dtype = dtype_of(to)
    if x.dtype.kind == "O" or dtype.kind == "O":
        return _cast_string(x, dtype)
    name = name_of(dtype)
    if name in FLOAT8 and saturate:
        return _saturated(x, dtype)
    if name == "float8_e8m0fnu":
        return _to_e8m0(np.asarray(x), dtype, saturate, round_mode)
    if name in NIBBLES and name_of(x.dtype) not in NIBBLES:
        return Cast.reference(x, to="int32").astype(dtype)
    # Generated code truncates this way by itself: only arrays are led around numpy's own.
    if dtype.kind in "iu" and isinstance(x, np.ndarray | np.generic) and is_float(x.dtype):
        return _truncated(x, dtype)
    return x.astype(dtype)


def _truncated(x: Any, dtype: np.dtype[Any]) -> Any:
    wide = x if x.dtype.name in ("float32", "float64") else x.astype(np.float32)
    info = np.iinfo(dtype)
    above, below = wide >= float(info.max + 1), wide <= float(info.min)  # both are powers of two
    inside = np.where(above | below | np.isnan(wide), 0, wide).astype(dtype)
    ends = np.where(above, dtype.type(info.max), np.where(below, dtype.type(info.min), inside))
    return ends.astype(dtype)


def _saturated(x: Any, dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    top = float(ml_dtypes.finfo(dtype).max)
    wide = x.astype(np.float64 if x.dtype.name in ("float64", "int32", "int64") else np.float32)
    return np.minimum(np.maximum(wide, -top), top).astype(dtype)


def _to_e8m0(x: Any, dtype: np.dtype[Any], saturate: bool, round_mode: str) -> Any:
    """|x| as float8_e8m0fnu, which holds the powers of two 2^-127 .. 2^127 as their exponent + 127;
    255 is NaN. `round_mode` chooses between two powers ("nearest": 3 becomes 4). Numbers out of
    this range become its nearest end if `saturate`, else NaN."""
    wide = np.abs(x.astype(np.float64))
    mantissa, exponent = np.frexp(wide)  # wide = mantissa * 2^exponent, mantissa in [0.5, 1)
    if round_mode == "up":
        exponent = exponent + (mantissa > 0.5)
    elif round_mode == "nearest":
        exponent = exponent + (mantissa >= 0.75)
    code = exponent - 1 + 127
    low, high = (wide == 0) | (code < 0), np.isinf(wide) | (code > 254)
    code = np.where(low, 0 if saturate else 255, np.where(high, 254 if saturate else 255, code))
    return np.where(np.isnan(wide), 255, code).astype(np.uint8).view(dtype)


def _cast_string(x: Any, dtype: np.dtype[Any]) -> Any:
    x = np.asarray(x)
    out = np.empty(x.shape, dtype)
    if dtype.kind == "O" and x.dtype.kind == "O":
        return x
    convert = _written if dtype.kind == "O" else _reader(dtype)
    for i in np.ndindex(x.shape):
        out[i] = convert(x[i])
    return out


def _written(v: Any) -> str:
    if v.dtype.name in ("bool",):
        return "1" if v else "0"
    if v.dtype.kind in "iu" or v.dtype.name in NIBBLES:
        return str(int(v))
    if v.dtype.name not in ("float16", "float32", "float64"):
        v = np.float32(v)
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "INF" if v > 0 else "-INF"
    return str(v)


def _reader(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu" or dtype.name in NIBBLES:
        return lambda s: np.array(_whole(s)).astype(dtype)
    if dtype.kind == "b":
        return lambda s: bool(float(s)) if s not in ("True", "False") else s == "True"
    return lambda s: np.array(float(s)).astype(dtype)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


@Cast.type
def _(x: Value, *, to: str, saturate: bool, round_mode: str) -> Type:
    need_one_of(("up", "down", "nearest"), round_mode=round_mode)
    return Type(dtype_attr(to, "to"), x.shape)


@op("view")
def BitCast(x, *, to):
    """y = the bits of x read as the dtype named by `to`, which has the same width"""
    return np.ascontiguousarray(x).view(dtype_of(to)).reshape(np.shape(x))


@BitCast.type
def _(x: Value, *, to: str) -> Type:
    dtype = dtype_attr(to, "to")
    need(dtype.kind != "O" and x.dtype.kind != "O", "strings have no bits to reinterpret")
    need(
        dtype.itemsize == x.dtype.itemsize, f"{x.dtype.name} and {dtype.name} have different widths"
    )
    return Type(dtype, x.shape)
