"""Quantisation as elementwise arithmetic, and products of integers as exact products of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, opt, p

rules = RuleSet("lower-quant", "Quantised operators become arithmetic that has native kernels.")
register("machine")(rules)

FLOAT32 = np.dtype(np.float32)
SMALL = ("int8", "uint8", "int16", "uint16")
Array = np.ndarray[Any, Any]
EXACT = 1 << 24  # up to here every whole number is a float32


def _along(v: Value, x: Value, axis: int, block_size: int) -> Value | Array:
    """A scale or zero point as float32 that broadcasts to x: one number, or one for each place."""
    shape, dims = shape_of(v), np.zeros(0, np.int64)
    if shape not in ((), (1,)):
        if block_size:
            raise Skip(f"it is quantised in blocks of {block_size}")
        rank = len(shape_of(x))
        dims = np.ones(rank, np.int64)
        dims[axis % rank] = -1
    if v.const is not None:
        return v.const.astype(FLOAT32).reshape(dims)
    v = _float(v)
    return v if shape == () else OPS["Reshape"](v, dims)


def _float(v: Value) -> Any:
    if v.const is not None:
        return v.const.astype(FLOAT32)
    return v if v.dtype == FLOAT32 else OPS["Cast"](v, to="float32")


def _is_zero(zero: Value | None) -> bool:
    return zero is None or (zero.const is not None and not np.any(zero.const))


def given(dtype: str, *shape: int) -> Callable[[Graph, Any], Value]:
    """A sample: an input of one element type."""
    return lambda graph, _: graph.input("x", Type(np.dtype(dtype), shape))


@rules.rule(
    p.DequantizeLinear("x", "scale", opt("zero")).named("q"),
    x=np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    scale=np.array([0.5, 1, 3], np.float32),
    zero=np.array([1, 2, 30], np.uint8),
)
def dequantize(x: Value, scale: Value, zero: Value | None, q: Node) -> Value:
    """dequantise(x, s, z) -> (float(x) - float(z)) * s."""
    if scale.dtype != FLOAT32 or q.output.dtype != FLOAT32:
        raise Skip(f"the scale is {scale.dtype}, the result {q.output.dtype}")
    if x.dtype.name not in (*SMALL, "int32"):
        raise Skip(f"x is {x.dtype}")
    y = OPS["Cast"](x, to="float32")
    if zero is not None and not _is_zero(zero):
        if x.dtype == np.int32:
            raise Skip("x is int32, with a zero point")
        y = OPS["Sub"](y, _along(zero, x, q.axis, q.block_size))
    return OPS["Mul"](y, _along(scale, x, q.axis, q.block_size))


@rules.rule(
    p.QuantizeLinear("x", "scale", opt("zero")).named("q"),
    x=(2, 3, 4),
    scale=np.array([0.5, 0.01, 3], np.float32),
    zero=np.array([1, 2, 30], np.uint8),
)
def quantize(x: Value, scale: Value, zero: Value | None, q: Node) -> Value:
    """quantise(x, s, z) -> clip(round(x / s) + float(z)) as an integer."""
    low = q.output.dtype
    if low.name not in SMALL or scale.dtype != FLOAT32 or q.precision not in (None, "float32"):
        raise Skip(f"the result is {low}, the scale {scale.dtype}")
    if x.dtype != FLOAT32 and x.dtype != np.int32:
        raise Skip(f"x is {x.dtype}")
    real = x if x.dtype == FLOAT32 else OPS["Cast"](x, to="float32")
    y = OPS["Round"](OPS["Div"](real, _along(scale, x, q.axis, q.block_size)))
    if zero is not None and not _is_zero(zero):
        y = OPS["Add"](y, _along(zero, x, q.axis, q.block_size))
    return OPS["Cast"](clipped(y, low), to=low.name)


def clipped(y: Value, low: np.dtype[Any]) -> Value:
    info = np.iinfo(low)
    return OPS["Min"](OPS["Max"](y, np.float32(info.min)), np.float32(info.max))


@rules.rule(p.DynamicQuantizeLinear("x").named("q"), x=given("float32", 3, 5))
def dynamic_quantize(x: Value, q: Node) -> tuple[Value, ...]:
    """dynamic_quantise(x) -> quantise(x, s, z), with s and z from max(x, 0) and min(x, 0)."""
    if x.dtype != FLOAT32:
        raise Skip(f"x is {x.dtype}")
    zero = np.float32(0)
    axes = np.arange(len(shape_of(x)), dtype=np.int64)
    if not len(axes) or 0 in shape_of(x):
        raise Skip("x is a number, or empty")
    high, low = (
        OPS[one](OPS["Reduce"](x, axes, kind=kind, keepdims=False), zero)
        for one, kind in (("Max", "max"), ("Min", "min"))
    )
    span = OPS["Where"](OPS["Equal"](high, low), np.float32(1), OPS["Sub"](high, low))
    scale = OPS["Div"](span, np.float32(255))
    place = OPS["Round"](clipped(OPS["Div"](OPS["Neg"](low), scale), np.dtype(np.uint8)))
    y = OPS["Add"](OPS["Round"](OPS["Div"](x, scale)), place)
    y = OPS["Cast"](clipped(y, np.dtype(np.uint8)), to="uint8")
    return y, scale, OPS["Cast"](place, to="uint8")


@rules.rule(
    p.MatMulInteger("a", "b", opt("a_zero"), opt("b_zero")).named("m"),
    a=given("uint8", 3, 4),
    b=np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    a_zero=np.array(3, np.uint8),
    b_zero=np.array([1, 0, 0, 2, 5], np.int8),
)
def matmul_integer(
    a: Value, b: Value, a_zero: Value | None, b_zero: Value | None, m: Node
) -> Value:
    """matmul_integer(a, b) -> sum of int(float(a_i) @ float(b_i)) over parts of K, each exact."""
    if a.const is not None and b.const is not None:
        raise Skip("both operands are constants")
    left, right = shape_of(a), shape_of(b)
    if len(left) < 2 or len(right) < 2 or not isinstance(left[-1], int):
        raise Skip("an operand is a vector, or its inner dimension is not known")
    if a.dtype.name not in ("int8", "uint8") or b.dtype.name not in ("int8", "uint8"):
        raise Skip(f"the operands are {a.dtype} and {b.dtype}")
    if a_zero is not None and shape_of(a_zero) not in ((), (1,)):
        raise Skip("each row of a has its own zero point")
    if b_zero is not None and len(shape_of(b_zero)) > 1:
        raise Skip("the matrices of b have their own zero points")
    inner, part = left[-1], EXACT // (largest(a, a_zero) * largest(b, b_zero))
    whole = _shifted(a, a_zero), _shifted(b, b_zero)
    total = None
    for start in range(0, inner, part):
        x, w = whole
        if inner > part:
            x, w = (_cut(v, start, min(start + part, inner), axis)
                    for v, axis in ((x, len(left) - 1), (w, len(right) - 2)))  # fmt: skip
        product = OPS["Cast"](OPS["MatMul"](x, w), to="int32")
        total = product if total is None else OPS["Add"](total, product)
    if total is None:
        raise Skip("the inner dimension is 0")
    return total


def largest(v: Value, zero: Value | Array | None) -> int:
    """A bound of |v - zero|, not below 1."""
    info = np.iinfo(v.dtype)
    most = max(-info.min, info.max) if zero is None else info.max - info.min
    known = zero.const if isinstance(zero, Value) else zero
    if v.const is not None and (zero is None or known is not None):
        shift = 0 if known is None else np.asarray(known, np.int64)
        most = int(np.max(np.abs(v.const.astype(np.int64) - shift), initial=1))
    return max(most, 1)


def _shifted(v: Value, zero: Value | None) -> Any:
    if _is_zero(zero):
        return _float(v)
    assert zero is not None
    if v.const is not None and zero.const is not None:
        return _float(v) - _float(zero)
    return OPS["Sub"](_float(v), _float(zero))


def _cut(v: Any, start: int, end: int, axis: int) -> Any:
    if isinstance(v, np.ndarray):
        return v[(slice(None),) * axis + (slice(start, end),)]
    return OPS["Slice"](v, *(np.array([n], np.int64) for n in (start, end, axis)))
