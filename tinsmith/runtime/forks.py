"""Forks of the process while other threads compile: the child inherits locks, but not their owners.

In such a child, whatever takes locks (Tinsmith's, of imports, LLVM's) raises ForkError rather than
wait for ever. What was compiled already, and was run by the thread that forks, still runs.
"""

from __future__ import annotations

import os
from _thread import RLock, get_ident

from tinsmith.errors import ForkError

_locks: dict[int, RLock] = {}  # of each thread, held while it does such work
_lost = False


def working() -> RLock:
    """`with working():` around whatever takes locks, imports, or calls LLVM. May be nested. An
    interrupt cannot leave the lock held: it is one of C's (see `codegen/workers.py`).
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
