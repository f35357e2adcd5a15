"""Packs and unpacks elements of 4 and 2 bits: files keep several in a byte, from its lowest bits
on; arrays have a byte for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array
from tinsmith.graph.types import name_of

BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}


def packed_size(dtype: np.dtype[Any], count: int) -> int:
    """The bytes that `count` elements take in a file, those of 4 and 2 bits packed."""
    bits = BITS.get(name_of(dtype), 8 * dtype.itemsize)
    return -(-count * bits // 8)


def packed(array: Array) -> Array:
    """The elements of an array as flat bytes (uint8) of a file, those of 4 and 2 bits packed."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if array.dtype.name not in BITS:
        return codes
    bits = BITS[array.dtype.name]
    each, size = 8 // bits, packed_size(array.dtype, array.size)
    filled = np.zeros(size * each, np.uint8)
    filled[: array.size] = codes & ((1 << bits) - 1)
    moved = filled.reshape(size, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(moved, axis=1).astype(np.uint8)


def unpacked(data: Array, dtype: np.dtype[Any], count: int) -> Array:
    """Unpack the first `count` elements of `dtype`, a type in `BITS`, from bytes (uint8)."""
    bits = BITS[dtype.name]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.name.startswith("float"):
        return codes.view(dtype)
    if dtype.name.startswith("int"):
        sign = 1 << (bits - 1)
        return ((codes.astype(np.int8) ^ sign) - sign).astype(dtype)
    return codes.astype(dtype)
