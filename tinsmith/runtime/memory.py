"""The memory of a session, aligned to cache lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.errors import OutOfMemory, size_text

Array = np.ndarray[Any, Any]

LINE = 64  # bytes of a cache line


def aligned(nbytes: int, *, zeroed: bool = False) -> Array:
    """Uninitialised bytes from a 64-byte boundary on; zeros if `zeroed`. Raises OutOfMemory if they
    cannot be had."""
    try:
        raw = (np.zeros if zeroed else np.empty)(nbytes + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise OutOfMemory(
            f"{size_text(nbytes)} of memory cannot be had for this model's tensors; "
            "run it with a smaller batch or smaller inputs"
        ) from error
    shift = -raw.ctypes.data % LINE
    return raw[shift : shift + nbytes]
