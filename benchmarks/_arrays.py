"""A model's inputs, what they should give, and how far from that an engine's outputs are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def beside(base: Path, suffix: str) -> Path:
    """BASE with a suffix; the name of a model may have points, as in `resnet18.u8s8`."""
    return base.with_name(base.name + suffix)


def read(base: Path) -> tuple[dict[str, Array], list[Array]]:
    """BASE.npz: inputs by name (x, or x0, x1, ...), and outputs in order (y, or y0, y1, ...)."""
    with np.load(beside(base, ".npz")) as data:
        inputs = {n: np.ascontiguousarray(data[n]) for n in data.files if n.startswith("x")}
        return inputs, [data[n] for n in data.files if n.startswith("y")]


def error_of(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The worst max|y - want| / max|want|; infinite where shapes or NaNs differ."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        if b.size:
            scale = float(np.nanmax(np.abs(b.astype(np.float64)))) or 1.0
            off = np.abs(a.astype(np.float64) - b.astype(np.float64))
            worst = max(worst, float(np.nanmax(off)) / scale)
    return worst
