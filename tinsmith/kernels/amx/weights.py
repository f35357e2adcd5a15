"""Weights as pairs of bfloat16, in the order in which registers are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.matrix import DEPTH, LARGEST, SIDE
from tinsmith.kernels._kernel import Skip

Array = np.ndarray[Any, Any]


def rounded(x: Array) -> Array:
    """The bits of the nearest bfloat16 of finite float32, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def halves(x: Array) -> tuple[Array, Array]:
    """The bits of two bfloat16, high and low, whose sum each finite float32 is (see
    `codegen.matrix.halve`)."""
    high = rounded(x)
    return high, rounded(x - (high.astype(np.uint32) << 16).view(np.float32))


def pack(w: Array) -> Array:
    """[K, C, *taps] as [panel][channel block][tap][low, high][vector of the panel] of registers.

    A panel has 32 outputs, the last perhaps 16. Outputs and channels that do not exist are zeros.
    """
    w = w.reshape(*w.shape[:2], -1)
    k, c, taps = w.shape
    outputs, blocks = -(-k // SIDE), -(-c // DEPTH)
    wide = np.zeros((outputs * SIDE, blocks * DEPTH, taps), np.float32)
    wide[:k, :c] = w
    parts = np.stack(halves(wide)[::-1])  # [part][output][channel][tap]
    parts = parts.reshape(2, outputs, SIDE, blocks, DEPTH // 2, 2, taps)
    whole = outputs // 2 * 2

    def panels(chunk: Array, vectors: int) -> Array:
        chunk = chunk.reshape(2, -1, vectors, *chunk.shape[2:])
        # part, panel, vector, column, block, row, pair, tap
        return chunk.transpose(1, 4, 7, 0, 2, 5, 3, 6).reshape(-1)

    return np.concatenate([panels(parts[:, :whole], 2), panels(parts[:, whole:], 1)])


def pack_columns(w: Array) -> Array:
    """A (k, n) matrix as `pack` has it."""
    return pack(w.T)


def packed_bytes(outputs: int, channels: int, taps: int) -> int:
    """What `pack` gives takes."""
    return 4 * -(-outputs // SIDE) * SIDE * -(-channels // DEPTH) * DEPTH * taps


def can_be_split(w: Array) -> bool:
    """Whether all weights are finite as bfloat16: infinity has no low half."""
    return bool(np.all(np.abs(w) < np.float32(LARGEST)))


def need_finite(w: Array) -> None:
    if not can_be_split(w):
        raise Skip("some weights are not finite as bfloat16")
