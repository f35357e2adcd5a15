"""Constants and data that are finite, and whose sums, and products of sums, stay so."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 1e15
"""Larger elements might overflow: algorithms that add up data or weights before they multiply them
scale each by less than 1e4, so that products of smaller ones are finite."""


def are_moderate(w: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are smaller than LARGE in magnitude: none is infinite or NaN."""
    return bool(np.min(w) > -LARGE and np.max(w) < LARGE)


def are_finite(w: np.ndarray[Any, Any]) -> bool:
    """Whether no element is infinite or NaN: zeros may be multiplied by it."""
    return bool(np.isfinite(w).all())
