"""Memory in which sessions run, and arrays for results.

Large arrays come in new pages, and the first write to each costs a page fault: more than computing
its elements. So a session keeps the memory of its last results, and uses it again once the caller
has dropped all references to it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Array
from tinsmith.runtime.memory import LINE, aligned

LEAST_BYTES = 1 << 15
"""Smaller results come from the allocator, which keeps pages of that size. Estimated."""
KEPT = 2
"""Arrays of one result whose memory is kept: callers hold the last one while the next is computed.
Estimated."""
SPARE = 16
"""Memory that grows gets 1 / SPARE more, so that what grows with each call seldom needs new memory.
Estimated."""
UNTOUCHED = 4 << 20
"""Bytes up to which memory for a result that grows is made twice as large as needed: pages that are
never written take no memory of the machine. Estimated."""


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
        self.used: list[int] = []
        """The most bytes of each that an array had: the rest was never written, and takes none."""

    def room(self, nbytes: int) -> tuple[Array, int]:
        """Find memory for a result of `nbytes`. Returns (array, start): an array of bytes to which
        no caller refers, and the index of its first aligned byte; at least `nbytes` follow. A kept
        array that is too small is replaced by a larger one than asked for, as results may grow from
        call to call (SPARE, UNTOUCHED). Raises MemoryError."""
        for at, start in enumerate(self.starts):
            if _references(self.arrays, at) == ALONE:
                if self.arrays[at].nbytes < nbytes + LINE:
                    spare = max(nbytes // SPARE, min(nbytes, UNTOUCHED))
                    self.arrays[at], self.starts[at] = _bytes(nbytes + spare)
                    start, self.used[at] = self.starts[at], 0
                self.used[at] = max(self.used[at], nbytes)
                return self.arrays[at], start
        raw, start = _bytes(nbytes)
        if ALONE > 0 and len(self.arrays) < KEPT:
            self.arrays.append(raw)
            self.starts.append(start)
            self.used.append(nbytes)
        return raw, start


def _bytes(nbytes: int) -> tuple[Array, int]:
    """Return a new byte array, and the aligned index from which it has `nbytes`."""
    try:
        raw = np.empty(nbytes + LINE, np.uint8)
    except ValueError as error:  # more than can be addressed
        raise MemoryError(f"{nbytes} bytes for a result") from error
    return raw, -raw.__array_interface__["data"][0] % LINE


def _array(kept: Kept, nbytes: int, dims: Sequence[int], dtype: np.dtype[Any]) -> Array:
    raw, start = kept.room(nbytes)
    return raw[start : start + nbytes].view(dtype).reshape(dims)


class RunMemory:
    """Arena, workspace, and memory for results, of one session; or, if `shared`, of all sessions
    that one thread runs, one at a time, for different sizes: then it is as large as the largest
    needs. `busy` while one of them runs."""

    def __init__(self, shared: bool = False) -> None:
        self.thread = get_ident() if shared else None
        self.busy = False
        self.arena = self.workspace = np.empty(0, np.uint8)
        self.version = 0
        """The number of times that the arena or the workspace has been replaced."""
        self._kept: dict[int, Kept] = {}

    @property
    def foreign(self) -> bool:
        """Whether this memory is shared by sessions of a thread other than the calling one."""
        return self.thread is not None and self.thread != get_ident()

    def maker(
        self, result: int, dims: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[], Array]:
        """Return a function () that makes an uninitialised array for output number `result`, to
        whose memory nobody else refers, or raises MemoryError."""
        nbytes = prod(dims) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return partial(np.empty, dims, dtype)
        kept = self._kept.get(result)
        if kept is None:
            kept = self._kept[result] = Kept()
        return partial(_array, kept, nbytes, dims, dtype)

    @property
    def kept_bytes(self) -> int:
        """Bytes used of the memory kept for results, whether a caller holds them or not."""
        return sum(used for kept in self._kept.values() for used in kept.used)

    def fit(self, arena: int, workspace: int) -> None:
        """Enlarge arena and workspace to at least these bytes; they never shrink. No session may be
        running. Counts up `version`, by which sessions see before a run that memory has moved.
        Raises OutOfMemory."""
        smaller, narrower = len(self.arena) < arena, len(self.workspace) < workspace
        if not (smaller or narrower):
            return
        self.version += 1  # before it: an interrupt may end it
        if smaller:
            self.arena = self.arena[:0]
            self.arena = aligned(arena)  # its plan has spare bytes already
        if narrower:
            spare = workspace // SPARE if len(self.workspace) else 0
            self.workspace = self.workspace[:0]
            self.workspace = aligned(workspace + spare)
        self.version += 1  # after it: a session may have run meanwhile, in a signal handler
