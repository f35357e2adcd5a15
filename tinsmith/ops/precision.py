"""In which precision references compute: halves in float32, everything else as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph.types import name_of

HALVES = frozenset({"float16", "bfloat16"})


def is_half(dtype: np.dtype[Any]) -> bool:
    return name_of(dtype) in HALVES


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is a floating-point one, those of `ml_dtypes` included."""
    return dtype.kind == "f" or name_of(dtype).startswith(("bfloat", "float"))


def widen(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float16 and bfloat16 as float32; any other array unchanged."""
    return x.astype(np.float32) if is_half(x.dtype) else x
