"""Quantisation as elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Type, Value
from tinsmith.graph.types import name_of
from tinsmith.ops import OPS
from tinsmith.ops.precision import HALVES
from tinsmith.ops.quant import divided_in
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, opt, p
from tinsmith.sizes import has_sizes

rules = RuleSet("lower-quant", "Quantising and dequantising become elementwise arithmetic.")
register("machine")(rules)

FLOAT32 = np.dtype(np.float32)
HELD = HALVES | {"float32"}
SMALL = ("int8", "uint8", "int16", "uint16")


def _along(v: Value, x: Value, axis: int, block_size: int) -> Value | Array:
    """Scales or zero points v as float32, in a shape that broadcasts to x: one number, or one for
    each index on `axis`. The result is an array if v is a constant. Raises Skip for blocks."""
    shape, dims = shape_of(v), np.zeros(0, np.int64)
    if shape not in ((), (1,)):
        if block_size:
            raise Skip(f"it is quantised in blocks of {block_size}")
        rank = len(shape_of(x))
        dims = np.ones(rank, np.int64)
        dims[axis % rank] = -1
    v = floated(v)
    return v if shape == () else OPS["Reshape"](v, dims)


def known(v: Value | Array | None) -> Any:
    """v as an input for a new node: the array of a constant; any other value, a constant that holds
    a `Size` (known only in a call), an array and None as they are. Operators that get arrays alone
    give an array, and add no node."""
    of = v.const if isinstance(v, Value) else None
    return v if of is None or has_sizes(of) else of


def floated(v: Value | Array) -> Any:
    """v as float32, as an operand: an array if it is a constant or an array, else v or its Cast."""
    v = known(v)
    return v if v.dtype == FLOAT32 else OPS["Cast"](v, to="float32")


def nonzero(zero: Value | None) -> Value | None:
    """The zero points `zero`; None if there are none, or all are known to be 0."""
    if zero is None or zero.const is None:
        return zero
    return zero if (zero.const.item() if zero.const.size == 1 else zero.const.any()) else None


def narrowed(
    x: Value, zero: Value | Array | None, low: np.dtype[Any], factor: Any = None, term: Any = None
) -> Value:
    """saturate(round(x * factor + term) + zero), of type `low`. An array `zero` of zeros is left
    out."""
    if isinstance(zero, np.ndarray) and not zero.any():
        zero = None
    place = None if zero is None else floated(zero)
    return OPS["Requantize"](x, factor, term, place, to=name_of(low))


def given(dtype: str, *shape: int) -> Callable[[Graph, Any], Value]:
    """An entry for the sample of a rule: an input of this element type and shape."""
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
    if name_of(x.dtype) not in (*SMALL, "int32"):
        raise Skip(f"x is {x.dtype}")
    if (zero := nonzero(zero)) is not None and x.dtype == np.int32:
        raise Skip("x is int32, with a zero point")
    place = None if zero is None else _along(zero, x, q.axis, q.block_size)
    return OPS["Rescale"](x, _along(scale, x, q.axis, q.block_size), None, place)


@rules.rule(
    p.QuantizeLinear("x", "scale", opt("zero")).named("q"),
    scale=np.array([0.5, 0.01, 3], np.float32),
    zero=np.array([1, 2, 30], np.uint8),
)
def quantize(x: Value, scale: Value, zero: Value | None, q: Node) -> Value:
    """quantise(x, s, z) -> round(x / s) + float(z) as an integer, which saturates. Where it divides
    in a half type, x, s and x / s are rounded to that: the quotient is then as of that type."""
    low, real = q.output.dtype, divided_in(scale, q.precision)
    if name_of(low) not in SMALL or scale.dtype != FLOAT32 or name_of(real) not in HELD:
        raise Skip(f"the result is {low}, the scale {scale.dtype}, the quotient {real}")
    if x.dtype != FLOAT32 and x.dtype != np.int32:
        raise Skip(f"x is {x.dtype}")
    divisor = _held(_along(scale, x, q.axis, q.block_size), real)
    y = _held(OPS["Div"](_held(floated(x), real), divisor), real)
    return narrowed(y, None if zero is None else _along(zero, x, q.axis, q.block_size), low)


def _held(v: Value | Array, real: np.dtype[Any]) -> Any:
    """v, of float32, rounded to the type `real`, which may be float32 itself."""
    if isinstance(v, np.ndarray):
        return v.astype(real).astype(FLOAT32)
    made = v.producer
    if real == FLOAT32 or (
        made and "conversion" in made.op.traits and made.operand(0).dtype == real
    ):
        return v
    return OPS["RoundTo"](v, kind=real.name)


@rules.rule(p.DynamicQuantizeLinear("x"), x=given("float32", 3, 5))
def dynamic_quantize(x: Value) -> tuple[Value, ...]:
    """dynamic_quantise(x) -> quantise(x, s, z), s, z, with s = (high - low) / 255 and z = round(
    -low / s), high being the greatest number of x and 0, low the least (s = 1/255 if x is 0)."""
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
    place = OPS["Max"](OPS["Div"](OPS["Neg"](low), scale), zero)
    place = OPS["Round"](OPS["Min"](place, np.float32(255)))
    y = narrowed(OPS["Div"](x, scale), place, np.dtype(np.uint8))
    return y, scale, OPS["Cast"](place, to="uint8")
