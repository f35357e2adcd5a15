"""Constants whose sums, and products of sums with data as large, stay finite."""

from __future__ import annotations

from typing import Any

import numpy as np

LARGE = 1e15
"""From here on: algorithms that add up data, weights, or both before they multiply take factors of
1e4 at most besides, so that no product overflows below."""


def are_moderate(w: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are smaller than LARGE: none is infinite or NaN."""
    return bool(np.min(w) > -LARGE and np.max(w) < LARGE)
