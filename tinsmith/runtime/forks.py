"""Forks of the process while other threads compile: the child has their locks, but not them.

In such a child, what takes locks (Tinsmith's, those of imports, LLVM's) raises ForkError instead of
waiting for ever. What is compiled, and was run by the thread that forks, runs.
"""

from __future__ import annotations

import os
from _thread import RLock, get_ident

from tinsmith.errors import ForkError

_locks: dict[int, RLock] = {}  # of each thread, which holds it while it is at such work
_lost = False


def working() -> RLock:
    """`with working():` around what takes locks, imports, or calls LLVM; may be nested. An
    interrupt leaves a lock of C's taken or not, with someone to give it back.
    """
    if _lost:
        raise ForkError(
            "this process was forked while another thread of its parent compiled a model, and "
            "cannot compile: fork before or after that, or start processes by 'spawn'"
        )
    return _locks.setdefault(get_ident(), RLock())


def _in_child() -> None:
    global _lost
    own = _locks.pop(get_ident(), None)
    _lost = _lost or not all(lock.acquire(False) for lock in _locks.values())
    _locks.clear()
    if own is not None:
        _locks[get_ident()] = own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
