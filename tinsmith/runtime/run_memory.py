"""Memory in which sessions run: sessions of one thread for different sizes may share it."""

from __future__ import annotations

from _thread import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from tinsmith.runtime.memory import aligned
from tinsmith.runtime.results import Kept

if TYPE_CHECKING:
    from tinsmith.runtime.session import Session

Array = np.ndarray[Any, Any]

SPARE = 16
"""Memory that is outgrown becomes larger than asked for, by one part in so many: sizes that grow
with each call then get new memory in few of them. Estimated."""


class RunMemory:
    """An arena, a workspace, and memory for results: of one session, or, if `shared`, of all
    sessions that one thread runs, one at a time, for different sizes; then it is as large as the
    largest needs. `busy` while one of them runs."""

    def __init__(self, shared: bool = False) -> None:
        self.thread = get_ident() if shared else None
        self.busy = False
        self.arena = self.workspace = np.empty(0, np.uint8)
        self.sessions: WeakSet[Session] = WeakSet()
        self._kept: dict[int, Kept] = {}

    @property
    def foreign(self) -> bool:
        """Whether it belongs to another thread than the calling one."""
        return self.thread is not None and self.thread != get_ident()

    def kept(self, result: int) -> Kept:
        """The memory of a result, by its number."""
        return self._kept.setdefault(result, Kept())

    def fit(self, arena: int, workspace: int) -> None:
        """Make arena and workspace at least so many bytes large; they never shrink. No session may
        be running: all sessions are told where the memory is now."""
        grown = [len(self.arena) < arena, len(self.workspace) < workspace]
        if not any(grown):
            return
        if grown[0]:
            self.arena = self.arena[:0]
            self.arena = aligned(arena)  # the places in it have what is to spare
        if grown[1]:
            spare = workspace // SPARE if len(self.workspace) else 0
            self.workspace = self.workspace[:0]
            self.workspace = aligned(workspace + spare)
        for session in self.sessions:
            session.find_memory()
