"""Memory in which sessions run, and arrays for results.

The memory of results is reused once the caller has dropped all references to it.

Large arrays from the allocator are new pages, each of which costs a page fault when it is first
written: more than computing what is written. So a session keeps the memory of its last results, and
uses it again if only the session still refers to it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tinsmith.runtime.memory import LINE, aligned

Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 15
"""Smaller results come from the allocator, which keeps pages of that size. Estimated."""
KEPT = 2
"""For how many values of one result memory is kept: callers hold the last one while the next is
computed. Estimated."""


SPARE = 16
"""Where memory grows, one part in so many is added: what grows with each call then gets new memory
in few of them. Estimated."""
UNTOUCHED = 4 << 20
"""Bytes up to which memory for a result that grows is twice as large as it must be: pages of it
that nobody writes take no memory of the machine. Estimated."""


def _references(kept: Sequence[Any], at: int) -> int:
    return sys.getrefcount(kept[at])


ALONE = _references([object()], 0) if hasattr(sys, "getrefcount") else -1
"""The count that `_references` gives for an object to which only the list refers."""


class Kept:
    """Memory of earlier arrays of one result, which is used again once the caller has let go of
    them. Use from one thread at a time."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.starts: list[int] = []

    def room(self, nbytes: int) -> tuple[Array, int]:
        """(bytes, start): a byte array to which nobody else refers, and the aligned index from
        which it has `nbytes`. New memory, in place of some that was too small, is larger than
        asked for, since results may grow from call to call."""
        for at, start in enumerate(self.starts):
            if _references(self.arrays, at) == ALONE:
                if self.arrays[at].nbytes < nbytes + LINE:
                    spare = max(nbytes // SPARE, min(nbytes, UNTOUCHED))
                    self.arrays[at], self.starts[at] = _bytes(nbytes + spare)
                    start = self.starts[at]
                return self.arrays[at], start
        raw, start = _bytes(nbytes)
        if ALONE > 0 and len(self.arrays) < KEPT:
            self.arrays.append(raw)
            self.starts.append(start)
        return raw, start


def _bytes(nbytes: int) -> tuple[Array, int]:
    try:
        raw = np.empty(nbytes + LINE, np.uint8)
    except ValueError as error:  # more than can be addressed
        raise MemoryError(f"{nbytes} bytes for a result") from error
    return raw, -raw.__array_interface__["data"][0] % LINE


def _array(kept: Kept, nbytes: int, dims: Sequence[int], dtype: np.dtype[Any]) -> Array:
    raw, start = kept.room(nbytes)
    return raw[start : start + nbytes].view(dtype).reshape(dims)


class RunMemory:
    """An arena, a workspace, and memory for results: of one session, or, if `shared`, of all
    sessions that one thread runs, one at a time, for different sizes; then it is as large as the
    largest needs. `busy` while one of them runs."""

    def __init__(self, shared: bool = False) -> None:
        self.thread = get_ident() if shared else None
        self.busy = False
        self.arena = self.workspace = np.empty(0, np.uint8)
        self.version = 0
        """A number that changes where the arena or the workspace do."""
        self._kept: dict[int, Kept] = {}

    @property
    def foreign(self) -> bool:
        """Whether it belongs to another thread than the calling one."""
        return self.thread is not None and self.thread != get_ident()

    def maker(
        self, result: int, dims: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[], Array]:
        """A function that gives an uninitialised array for a result, by its number, in memory that
        nobody else refers to, or raises MemoryError."""
        nbytes = prod(dims) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return partial(np.empty, dims, dtype)
        kept = self._kept.get(result)
        if kept is None:
            kept = self._kept[result] = Kept()
        return partial(_array, kept, nbytes, dims, dtype)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for results, whether a caller holds them or not."""
        return sum(raw.nbytes for kept in self._kept.values() for raw in kept.arrays)

    def fit(self, arena: int, workspace: int) -> None:
        """Make arena and workspace at least so many bytes large; they never shrink. No session may
        be running: each compares `version` before its next run."""
        smaller, narrower = len(self.arena) < arena, len(self.workspace) < workspace
        if not (smaller or narrower):
            return
        self.version += 1  # before it: an interrupt may end it
        if smaller:
            self.arena = self.arena[:0]
            self.arena = aligned(arena)  # the places in it have what is to spare
        if narrower:
            spare = workspace // SPARE if len(self.workspace) else 0
            self.workspace = self.workspace[:0]
            self.workspace = aligned(workspace + spare)
        self.version += 1  # after it: a session may have run meanwhile, in a signal handler
