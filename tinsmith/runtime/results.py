"""Memory in which sessions run, and arrays for results.

The allocator gives large arrays in new pages, and the first write to each page costs a page fault:
more than computing the elements. So a session keeps the memory of its last results, and uses it
again once the caller has dropped all references to it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from tinsmith.runtime.memory import LINE, aligned

if TYPE_CHECKING:
    from tinsmith.runtime.session import Session

Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 15
"""Smaller results come from the allocator, which keeps pages of that size. Estimated."""
KEPT = 2
"""Arrays of one result whose memory is kept: callers hold the last one while the next is computed.
Estimated."""
SPARE = 16
"""Memory for a result that has grown gets 1 / SPARE more, so that results that grow with each call
seldom need new memory. Estimated."""


def _references(kept: Sequence[Any], at: int) -> int:
    return sys.getrefcount(kept[at])


ALONE = _references([object()], 0) if hasattr(sys, "getrefcount") else -1
"""The count that `_references` returns for an object to which only the list refers; -1 where Python
does not tell."""


class Kept:
    """Memory of earlier arrays of one result, which is used again once the caller has dropped them:
    byte arrays, and in each the index of its first aligned byte. Use from one thread at a time."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.starts: list[int] = []

    def room(self, nbytes: int) -> tuple[Array, int]:
        """Return (bytes, start): a byte array to which nobody else refers, and an aligned index
        from which it has `nbytes`. Memory that was too small is replaced by somewhat more than
        asked for (SPARE)."""
        for at, start in enumerate(self.starts):
            if _references(self.arrays, at) == ALONE:
                if self.arrays[at].nbytes < nbytes + LINE:
                    self.arrays[at], self.starts[at] = _bytes(nbytes + nbytes // SPARE)
                    start = self.starts[at]
                return self.arrays[at], start
        raw, start = _bytes(nbytes)
        if ALONE > 0 and len(self.arrays) < KEPT:
            self.arrays.append(raw)
            self.starts.append(start)
        return raw, start


def _bytes(nbytes: int) -> tuple[Array, int]:
    """Return a new byte array, and the aligned index from which it has `nbytes`."""
    raw = np.empty(nbytes + LINE, np.uint8)
    return raw, -raw.__array_interface__["data"][0] % LINE


class Results:
    """Makes the arrays of one result of a session, of fixed dims and dtype. Use from one thread at
    a time. Sessions of one thread for different sizes may share `kept`."""

    def __init__(self, dims: Sequence[int], dtype: np.dtype[Any], kept: Kept | None = None) -> None:
        self.dims, self.dtype = tuple(dims), dtype
        self.bytes = prod(self.dims) * dtype.itemsize
        self.kept = kept or Kept()

    @property
    def nbytes(self) -> int:
        """Bytes of kept memory, whether a caller uses it or not."""
        return sum(raw.nbytes for raw in self.kept.arrays)

    @property
    def maker(self) -> Callable[[], Array]:
        """A function that returns an uninitialised array to which nobody else refers. It raises
        MemoryError."""
        small = self.bytes < LEAST_BYTES
        return partial(np.empty, self.dims, self.dtype) if small else self._array

    def _array(self) -> Array:
        raw, start = self.kept.room(self.bytes)
        return raw[start : start + self.bytes].view(self.dtype).reshape(self.dims)


class RunMemory:
    """Arena, workspace, and memory for results, of one session; or, if `shared`, of all sessions
    that one thread runs, one at a time, for different sizes: then it is as large as the largest
    needs. `busy` while one of them runs."""

    def __init__(self, shared: bool = False) -> None:
        self.thread = get_ident() if shared else None
        self.busy = False
        self.arena = self.workspace = np.empty(0, np.uint8)
        self.sessions: WeakSet[Session] = WeakSet()
        self._kept: dict[int, Kept] = {}

    @property
    def foreign(self) -> bool:
        """Whether this memory is shared by sessions of a thread other than the calling one."""
        return self.thread is not None and self.thread != get_ident()

    def kept(self, result: int) -> Kept:
        """Return the memory of a result, by the number of the output."""
        return self._kept.setdefault(result, Kept())

    def fit(self, arena: int, workspace: int) -> None:
        """Enlarge arena and workspace to at least these bytes; they never shrink. The sessions'
        tables get the new addresses, so none may be running."""
        grown = [len(self.arena) < arena, len(self.workspace) < workspace]
        if not any(grown):
            return
        if grown[0]:
            self.arena = self.arena[:0]
            self.arena = aligned(arena)  # its plan has spare bytes already
        if grown[1]:
            spare = workspace // SPARE if len(self.workspace) else 0
            self.workspace = self.workspace[:0]
            self.workspace = aligned(workspace + spare)
        for session in self.sessions:
            session.find_memory()
