"""Arrays for results, whose memory is used again once the caller has let go of all of them.

Large arrays from the allocator are new pages, each of which costs a fault when it is first written:
more than computing what is written there. So a session keeps the memory of its last results, and
gives it out again where only the session itself refers to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 15
"""Smaller results come from the allocator, which has their pages."""
KEPT = 2
"""Memory for so many values of one result: callers hold the last one while the next is made."""
LINE = 64


def _references(kept: Sequence[Any], at: int) -> int:
    return sys.getrefcount(kept[at])


ALONE = _references([object()], 0) if hasattr(sys, "getrefcount") else -1
"""What `_references` says of an object that only the list refers to."""


class Results:
    """Memory for one result of a session. Use from one thread at a time."""

    def __init__(self, dims: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.dims, self.dtype = tuple(dims), dtype
        self.bytes = prod(self.dims) * dtype.itemsize
        self._kept: list[Array] = []
        self._starts: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, whether a caller holds them or not."""
        return sum(raw.nbytes for raw in self._kept)

    @property
    def maker(self) -> Callable[[], Array]:
        """What gives an uninitialised array, of memory that nobody else refers to, or raises
        MemoryError."""
        small = self.bytes < LEAST_BYTES
        return partial(np.empty, self.dims, self.dtype) if small else self._array

    def _array(self) -> Array:
        for at, start in enumerate(self._starts):
            if _references(self._kept, at) == ALONE:
                return self._view(self._kept[at], start)
        raw = np.empty(self.bytes + LINE, np.uint8)
        start = -raw.__array_interface__["data"][0] % LINE
        if ALONE > 0 and len(self._kept) < KEPT:
            self._kept.append(raw)
            self._starts.append(start)
        return self._view(raw, start)

    def _view(self, raw: Array, start: int) -> Array:
        return raw[start : start + self.bytes].view(self.dtype).reshape(self.dims)
