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
    """An array for the weight `name` of a model whose file holds none; the same for the same seed
    and name.

    two axes or more  normal, of variance 2 / fan-in: values keep their size through layer and ReLU
    fewer axes        uniform, within NEAR of 0, or of 1 for a `scale` (or a variance)
    integers          0

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
