"""Bounds under which constants and data, their sums, and products of such sums stay finite."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 1e15
"""Elements must be smaller. Algorithms that add up data or weights before they multiply scale each
by less than 1e4, so that products of such sums (1e19 times 1e19) are finite in float32."""


def are_moderate(w: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are below LARGE in magnitude; False if one is infinite or NaN."""
    return bool(np.min(w) > -LARGE and np.max(w) < LARGE)


def are_finite(w: np.ndarray[Any, Any]) -> bool:
    """Whether no element is infinite or NaN, so that their products with zeros are zeros."""
    return bool(np.isfinite(w).all())
