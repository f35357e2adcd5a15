"""Arrays for results, whose memory is reused once the caller has dropped all references to it.

Large arrays from the allocator are new pages, each of which costs a page fault when it is first
written: more than computing what is written. So a session keeps the memory of its last results, and
uses it again if only the session still refers to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tinsmith.runtime.memory import LINE

Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 15
"""Smaller results come from the allocator, which keeps pages of that size. Estimated."""
KEPT = 2
"""For how many values of one result memory is kept: callers hold the last one while the next is
computed. Estimated."""


def _references(kept: Sequence[Any], at: int) -> int:
    return sys.getrefcount(kept[at])


ALONE = _references([object()], 0) if hasattr(sys, "getrefcount") else -1
"""The count that `_references` gives for an object to which only the list refers."""


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
        """A function that gives an uninitialised array in memory that nobody else refers to, or
        raises MemoryError."""
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
