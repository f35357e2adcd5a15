"""Products with constant weights that are kept in few bits: whole numbers in blocks, or halves."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Type
from tinsmith.ops._op import need, op
from tinsmith.ops.matmul import matmul_shape, product_flops
from tinsmith.ops.precision import is_half
from tinsmith.ops.quant import LOW

Array = np.ndarray[Any, Any]


def decoded(w: Array, scale: Array | None, zero: Array | None, block_size: int) -> Array:
    """The weights [k, n] of a SmallMatMul as float32: (w - zero) * scale, with a row of scales and
    zeros for each `block_size` rows of w, or for all if it is 0; w itself without scales."""
    real = w.astype(np.float32)
    if scale is None:
        return real
    each = block_size or max(1, len(w))
    if zero is not None:
        real -= np.repeat(zero.astype(np.float32), each, axis=0)[: len(w)]
    return real * np.repeat(scale.astype(np.float32), each, axis=0)[: len(w)]


@op("anchor")
def SmallMatMul(a, w, scale=None, zero=None, *, block_size=0):
    """y = a @ ((w - zero) * scale), a [...,m,k] float32, w [k,n] whole numbers or halves

    scale and zero have a row of n for each block_size rows of w; of 0, one row. Halves have none.
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
