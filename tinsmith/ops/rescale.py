"""What quantising and dequantising come down to in compiled graphs: rescaling, requantising, and
tables of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type, Value, dtype_of
from tinsmith.graph.types import name_of
from tinsmith.ops._dims import broadcast
from tinsmith.ops._op import OPS, need, op
from tinsmith.ops.precision import HALVES

WHOLE = ("int8", "uint8", "int16", "uint16", "int32")
"""What Requantize may give."""
RESCALED = ("float32", *WHOLE)
"""What Rescale may take."""
BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
ENTRIES = 256  # of a table for all bytes


@op("elementwise", "rescales")
def Rescale(x, factor, bias=None, zero=None):
    """y = (float32(x) - zero) * factor + bias; zero and bias are 0 if they are absent"""
    y = x.astype(np.float32)
    y = (y if zero is None else y - zero) * factor
    return y if bias is None else y + bias


@Rescale.type
def _(x, factor, bias=None, zero=None):
    _check_floats(factor, bias, zero)
    need(name_of(x.dtype) in RESCALED, "x must be of {}, it is {}", ", ".join(RESCALED), x.dtype)
    return _stretched(x, factor, bias, zero, to=np.dtype(np.float32))


@op("elementwise", "rescales")
def Requantize(x, factor=None, bias=None, zero=None, *, to):
    """y = saturate(round(float32(x) * factor + bias) + zero) of the integer type `to`, halves to
    even; factor is 1, bias and zero are 0 if they are absent"""
    y = x.astype(np.float32)
    y = y if factor is None else y * factor
    y = np.rint(y if bias is None else y + bias)
    return OPS["Cast"].reference(y if zero is None else y + zero, to=to)


@Requantize.type
def _(x, factor=None, bias=None, zero=None, *, to):
    _check_floats(factor, bias, zero)
    need(name_of(x.dtype) in ("float32", "int32"), "x must be float32 or int32: {}", x.dtype)
    need(to in WHOLE, "to must be one of {}, it is {}", ", ".join(WHOLE), to)
    return _stretched(x, factor, bias, zero, to=np.dtype(to))


@op("elementwise")
def RoundTo(x, *, kind):
    """y = float32(x rounded to the half type `kind`); x is float32"""
    return x.astype(dtype_of(kind)).astype(np.float32)


@RoundTo.type
def _(x, *, kind):
    need(kind in HALVES, "kind must be one of {}, it is {}", ", ".join(sorted(HALVES)), kind)
    _check_floats(x)
    return x.type


def _check_floats(*values: Value | None) -> None:
    for v in values:
        need(v is None or v.dtype == np.float32, "x, a factor or a term is not float32")


def _stretched(*values: Value | None, to: np.dtype[Any]) -> Type:
    return Type(to, broadcast(*[v.type.shape for v in values if v is not None]))


def check_bytes(**values: Value) -> None:
    """In a type rule: raise TypeRuleError unless all `values` are int8 or uint8."""
    for name, v in values.items():
        kind = v.dtype
        need(kind in BYTES, "{} must be int8 or uint8, it is {}", name, kind)


@op("table")
def ByteTable(x, table):
    """y = table[x mod 256]: any function of one byte, by a table of its 256 results"""
    return table[x.view(np.uint8)]


@ByteTable.type
def _(x, table):
    check_bytes(x=x, table=table)
    need(table.shape in (None, (ENTRIES,)), f"table has the shape {table.shape}, not ({ENTRIES},)")
    return x.type.like(dtype=table.dtype)


ByteTable.cost(lambda x, table: 0)
