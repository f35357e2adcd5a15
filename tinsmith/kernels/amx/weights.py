"""Weights as pairs of bfloat16, in the order in which registers are loaded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinsmith.codegen.matrix import DEPTH, SIDE
from tinsmith.kernels._kernel import Site, Skip

Array = np.ndarray[Any, Any]

LARGEST = 1e33  # so that no sum of weights, as Winograd's transforms make, overflows
STRETCH = 1 << 14  # elements


def halves(x: Array) -> tuple[Array, Array]:
    """The bits of two bfloat16, high and low, whose sum each float32 is (see
    `codegen.matrix.halve`); arrays are gone through in stretches that caches hold."""
    flat, half = x.reshape(-1), np.uint32(0x8000)
    high, low = np.empty(flat.shape, np.uint16), np.empty(flat.shape, np.uint16)
    for at in range(0, flat.size, STRETCH):
        part = flat[at : at + STRETCH]
        near = part.view(np.uint32) + half
        np.right_shift(near, 16, out=high[at : at + STRETCH], casting="unsafe")
        near &= np.uint32(0xFFFF0000)
        rest = (part - near.view(np.float32)).view(np.uint32) + half
        np.right_shift(rest, 16, out=low[at : at + STRETCH], casting="unsafe")
    return high.reshape(x.shape), low.reshape(x.shape)


def pack(w: Array) -> Array:
    """[K, C, *taps] as [panel][channel block][tap][low, high][vector of the panel] of registers.

    A panel has 32 outputs, the last perhaps 16. Outputs and channels that do not exist are zeros.
    """
    k, c, *taps = w.shape
    packed, at = np.empty(packed_bytes(k, c, math.prod(taps)) // 2, np.uint16), 0
    for part in registers(w):
        both = packed[at : at + 2 * part.size].reshape(*part.shape[:3], 2, *part.shape[3:])
        high, low = halves(part)
        both[..., 0, :, :], both[..., 1, :, :] = low, high
        at += both.size
    return packed


def registers(w: Array) -> list[Array]:
    """[K, C, *taps] as [panel][channel block][tap][vector of the panel][what a register holds], of
    the panels of two vectors and of the last, where that has one."""
    w = w.reshape(*w.shape[:2], -1)
    k, c, taps = w.shape
    outputs, blocks = -(-k // SIDE), -(-c // DEPTH)
    wide = w
    if w.shape[:2] != (outputs * SIDE, blocks * DEPTH):
        wide = np.zeros((outputs * SIDE, blocks * DEPTH, taps), w.dtype)
        wide[:k, :c] = w
    split, whole = wide.reshape(outputs, SIDE, blocks, DEPTH // 2, 2, taps), outputs // 2 * 2
    found = []
    for vectors, part in ((2, split[:whole]), (1, split[whole:])):
        panels = part.reshape(-1, vectors, *part.shape[1:]).transpose(0, 3, 6, 1, 4, 2, 5)
        if panels.size:
            found.append(np.ascontiguousarray(panels).reshape(*panels.shape[:4], SIDE * DEPTH))
    return found


def pack_columns(w: Array) -> Array:
    """A (k, n) matrix as `pack` has it."""
    return pack(w.T)


def packed_bytes(outputs: int, channels: int, taps: int) -> int:
    """What `pack` gives takes."""
    return 4 * -(-outputs // SIDE) * SIDE * -(-channels // DEPTH) * DEPTH * taps


def can_be_split(w: Array) -> bool:
    """Whether no weight is so large that `halves` overflows, or infinite."""
    return bool(np.all(np.abs(w) < np.float32(LARGEST)))


def need_default_precision(site: Site) -> None:
    """Raise Skip unless the site may be computed by halves."""
    if site.precision != "default":
        raise Skip(f"precision is {site.precision}: products of halves are right to 2^-15 only")


def need_halves(site: Site, w: Array) -> None:
    """Raise Skip unless the site may be computed by halves of these weights."""
    need_default_precision(site)
    if not can_be_split(w):
        raise Skip(f"some weights are not below {LARGEST}")
