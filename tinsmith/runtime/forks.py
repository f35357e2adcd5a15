"""Forks of the process while other threads compile: the child has their locks, but not them.

In such a child, what takes locks (Tinsmith's, those of imports, LLVM's) raises ForkError instead of
waiting for ever. What is compiled, and was run by the thread that forks, runs.
"""

from __future__ import annotations

import os
import threading
from collections import Counter

from tinsmith.errors import ForkError


class Work:
    """`with WORK:` around what takes locks, imports, or calls LLVM; may be nested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self._lost = False

    def __enter__(self) -> None:
        if self._lost:
            raise ForkError(
                "this process was forked while another thread of its parent compiled a model, and "
                "cannot compile: fork before or after that, or start processes by 'spawn'"
            )
        with self._lock:
            self._threads[threading.get_ident()] += 1

    def __exit__(self, *_: object) -> None:
        own = threading.get_ident()
        with self._lock:
            self._threads[own] -= 1
            if not self._threads[own]:
                del self._threads[own]

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        self._lock.release()

    def in_child(self) -> None:
        own = threading.get_ident()
        self._lost = self._lost or bool(self._threads.keys() - {own})
        self._threads = Counter({t: n for t, n in self._threads.items() if t == own})
        self._lock.release()


WORK = Work()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=WORK.before_fork, after_in_parent=WORK.after_fork, after_in_child=WORK.in_child
    )
