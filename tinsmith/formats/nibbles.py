"""Elements of 4 and 2 bits, which files keep several to a byte, lowest bits first."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph.types import name_of

Array = np.ndarray[Any, Any]
BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}


def packed_size(dtype: np.dtype[Any], count: int) -> int:
    """How many bytes `count` elements of a type take in a file, those of 4 and 2 bits packed."""
    bits = BITS.get(name_of(dtype), 8 * dtype.itemsize)
    return -(-count * bits // 8)


def packed(flat: Array) -> Array:
    """Elements of a type of `BITS`, as bytes."""
    bits = BITS[flat.dtype.name]
    each, size = 8 // bits, packed_size(flat.dtype, flat.size)
    codes = np.zeros(size * each, np.uint8)
    codes[: flat.size] = flat.view(np.uint8) & ((1 << bits) - 1)
    moved = codes.reshape(size, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(moved, axis=1).astype(np.uint8)


def unpacked(data: Array, dtype: np.dtype[Any], count: int) -> Array:
    """The first `count` elements of type `dtype` (of 4 or 2 bits) that are packed in the bytes
    `data`, lowest bits first: an array with a byte for each."""
    bits = BITS[dtype.name]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("float"):
        return codes.view(dtype)
    if dtype.name.startswith("int"):
        sign = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ sign) - sign).astype(dtype)
    return codes.astype(dtype)
