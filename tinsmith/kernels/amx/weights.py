"""Weights as pairs of bfloat16, in the order in which registers are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.kernels._kernel import Site, Skip

Array = np.ndarray[Any, Any]

SPLITTER = np.float32(2**16 + 1)
LARGEST = 1e33  # so that no product by SPLITTER overflows
PIECE = 1 << 15  # elements


def halves(x: Array) -> tuple[Array, Array]:
    """The bits of two bfloat16, high and low, whose sum each is (see `codegen.matrix.halve`).

    65537 x - (65537 x - x) rounds to the 8 bits that are left of 24 (T. J. Dekker, 1971); arrays
    are gone through in pieces that caches hold.
    """
    flat = x.reshape(-1)
    high, low = np.empty(flat.shape, np.uint16), np.empty(flat.shape, np.uint16)
    for at in range(0, flat.size, PIECE):
        part = flat[at : at + PIECE]
        for out in (high, low):
            wide = part * SPLITTER
            near = wide - (wide - part)
            out[at : at + PIECE] = near.view(np.uint16)[1::2]
            part = part - near
    return high.reshape(x.shape), low.reshape(x.shape)


def pack(w: Array) -> Array:
    """[K, C, *taps] as [panel][channel block][tap][low, high][vector of the panel] of registers.

    A panel has 32 outputs, the last perhaps 16. Outputs and channels that do not exist are zeros.
    """
    w = w.reshape(*w.shape[:2], -1)
    k, c, taps = w.shape
    outputs, blocks = -(-k // SIDE), -(-c // DEPTH)
    parts = np.zeros((2, outputs * SIDE, taps, blocks * DEPTH), np.uint16)
    for part, half in zip(parts, halves(w)[::-1], strict=True):
        part[:k, :, :c] = half.transpose(0, 2, 1)
    # [part][vector][column][tap][block][pair of channels]
    pairs = parts.view(np.uint32).reshape(2, outputs, SIDE, taps, blocks, DEPTH // 2)
    packed, whole, at = np.empty(pairs.size, np.uint32), outputs // 2 * 2, 0
    for vectors, chunk in ((2, pairs[:, :whole]), (1, pairs[:, whole:])):
        panels = chunk.reshape(2, -1, vectors, *chunk.shape[2:]).transpose(1, 5, 4, 0, 2, 6, 3)
        packed[at : at + chunk.size].reshape(panels.shape)[...] = panels
        at += chunk.size
    return packed.view(np.uint16)


def pack_columns(w: Array) -> Array:
    """A (k, n) matrix as `pack` has it."""
    return pack(w.T)


def packed_bytes(outputs: int, channels: int, taps: int) -> int:
    """What `pack` gives takes."""
    return 4 * -(-outputs // SIDE) * SIDE * -(-channels // DEPTH) * DEPTH * taps


def can_be_split(w: Array) -> bool:
    """Whether no weight is so large that `halves` overflows, or infinite."""
    return bool(np.all(np.abs(w) < np.float32(LARGEST)))


def need_halves(site: Site, w: Array) -> None:
    """Raise Skip unless the site may be computed by halves of these weights."""
    if site.precision != "default":
        raise Skip(f"precision is {site.precision}: halves leave an error of 2^-15")
    if not can_be_split(w):
        raise Skip(f"some weights are not below {LARGEST}")
