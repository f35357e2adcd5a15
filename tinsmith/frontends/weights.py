"""Seeded random weights for models whose files hold none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.graph import dtype_of

NEAR = 0.1
"""How far scales are from 1 and offsets from 0, so that values keep their size through layers."""


def random_weights(
    seed: int, name: str, shape: Sequence[int], dtype: str, *, scale: bool = False
) -> np.ndarray[Any, Any]:
    """Weights for a model whose file holds none: the same for each seed and name.

    two axes or more  normal, with a variance that keeps that of what they multiply through a ReLU
    fewer axes        near 0; near 1 for a `scale` or a variance
    whole numbers     0

    Raises BudgetExceeded.
    """
    kind = dtype_of(dtype)
    budget.check("constants", prod(shape) * kind.itemsize, f"random weights for {name!r}")
    if kind.kind in "iub":
        return np.zeros(shape, kind)
    rng = np.random.default_rng([seed, *name.encode()])
    if len(shape) < 2:
        made = rng.uniform(-NEAR, NEAR, shape) + scale
    else:
        made = rng.standard_normal(shape, np.float32) * np.sqrt(2 / max(prod(shape[1:]), 1))
    return made.astype(kind)
