"""Packing weights in the transform domain, U = G w G^T."""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.matrix import DEPTH
from tinsmith.graph import Array
from tinsmith.kernels import narrow
from tinsmith.kernels.winograd.matrices import floats
from tinsmith.kernels.winograd.tiling import WinogradPlan

SMALL = 4 << 16  # multiplications of one BLAS call, few enough that it starts no threads; estimated


def pack(w: Array, plan: WinogradPlan) -> Array:
    """Return the weights [K, C, r_h, r_w] as U[position][panel][channel][lane of the panel], flat:
    float32, or words of 24-bit weights (`kernels/narrow.py`) in place of channels.

    Computed in float64, rounded once. Padding channels and padding outputs are zeros.
    """
    channels, taps = w.shape[1], w.shape[2] * w.shape[3]
    both = np.kron(floats(plan.rows.g), floats(plan.cols.g))
    lanes = plan.vectors * plan.width
    packed = np.empty((plan.positions, plan.panel_rows * plan.outputs * plan.width), np.float32)
    for panel in range(plan.panels):
        first = panel * lanes
        count = min(lanes, plan.outputs * plan.width - first)
        wide = np.zeros((taps, plan.depth, count))
        part = w[first : first + count].reshape(-1, channels, taps)
        wide[:, :channels, : len(part)] = part.transpose(2, 1, 0)
        out = packed[:, first * plan.panel_rows : (first + count) * plan.panel_rows]
        if plan.words:
            made = np.empty((plan.positions, plan.depth * count))
            _transform(both, wide.reshape(taps, -1), made)
            out[:] = narrow.pack(made.reshape(plan.positions, plan.depth, count)).reshape(out.shape)
        else:
            _transform(both, wide.reshape(taps, -1), out)
    return packed.reshape(-1)


def _transform(both: Array, taps: Array, out: Array) -> None:
    """Write both @ taps to `out`, in pieces of at most SMALL multiplications."""
    step = max(64, SMALL // both.size)
    for at in range(0, taps.shape[1], step):
        out[:, at : at + step] = both @ taps[:, at : at + step]


def packed_bytes(plan: WinogradPlan) -> int:
    """Return the bytes of the packed weights of a plan, also where they are split or taps."""
    if plan.of_taps:
        return 4 * plan.geo.taps * plan.depth * plan.outputs * plan.width
    depth = DEPTH * plan.product.blocks if plan.split else plan.panel_rows
    return 4 * plan.positions * depth * plan.outputs * plan.width
