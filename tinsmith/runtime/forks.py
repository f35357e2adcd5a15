"""Safety of `fork` while other threads compile: the child inherits their locks, which nobody
releases there.

In such a child, code that takes locks (Tinsmith's, of imports, LLVM's) raises ForkError instead of
waiting for ever. Programs that the forking thread has run before still run.
"""

from __future__ import annotations

import os
from _thread import RLock, get_ident

from tinsmith.errors import ForkError

_locks: dict[int, RLock] = {}  # thread -> its lock, held while it does such work
_lost = False  # whether this process is such a child


def working() -> RLock:
    """Return the context, `with working():`, for all code that takes locks, imports, or calls LLVM.
    It may be nested. Raises ForkError in a child if another thread was in it at the fork."""
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
