"""Calls on other threads that leave nothing locked where Ctrl-C strikes who waits for them.

Python raises KeyboardInterrupt between any two calls of the main thread, also inside `threading`
and `concurrent.futures`: these are written in Python, and a condition that was just taken then
stays locked, so that the thread that wants it next never ends. Here the main thread takes C's locks
alone, which an interrupt either finds taken, with someone to give them back, or not yet.
"""

from __future__ import annotations

import atexit
import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from tinsmith.errors import TargetError

T = TypeVar("T")


class Call(Generic[T]):
    """A call that one thread makes and any may wait for. Safe between threads."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._function: Callable[[], T] | None = partial(function, *arguments)
        self._claim, self._done = allocate_lock(), allocate_lock()
        self._done.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def cancel(self) -> bool:
        """Whether nobody has begun it, and nobody will."""
        return self._claim.acquire(False)

    def run(self) -> None:
        """Make the call, unless it was begun or cancelled."""
        if not self._claim.acquire(False):
            return
        _running[id(self)] = self
        function, self._function = cast("Callable[[], T]", self._function), None
        try:
            self._value = function()
        except BaseException as error:
            self._error = error
        finally:
            del function, _running[id(self)]
            self._done.release()

    def wait(self) -> None:
        """Return when it has ended; it must not be cancelled."""
        with self._done:
            pass

    def result(self) -> T:
        """What it returned, once it has; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class Workers:
    """Threads that make calls in the order of their submission, until `close`; those of an object
    that nobody holds end by themselves. Raises TargetError where the system gives none.

    Submit and close from one thread at a time.
    """

    def __init__(self, threads: int) -> None:
        self._queue: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._calls: list[Call[Any]] = []
        self._ends: list[LockType] = []  # locked while their threads are there
        for _ in range(threads):
            end = allocate_lock()
            end.acquire()
            self._ends.append(end)  # first: an interrupt may come once the thread is there
            try:
                _start(_serve, self._queue, end)
            except TargetError:
                self._ends.pop()
                if not self._ends:
                    raise
                return  # fewer do the same

    def submit(self, function: Callable[..., T], *arguments: Any) -> Call[T]:
        call = Call(function, *arguments)
        self._calls.append(call)
        self._queue.put(call)
        return call

    def close(self) -> None:
        """Drop the calls that nobody has begun; returns when the others have ended."""
        self._drop()
        for end in self._ends:
            with end:
                pass

    def _drop(self) -> None:
        for call in self._calls:
            call.cancel()
        for _ in self._ends:
            self._queue.put(None)

    def __del__(self) -> None:
        self._drop()


def begin(function: Callable[..., T], *arguments: Any) -> Call[T]:
    """A call that a thread of its own makes. Raises TargetError where the system gives none."""
    call = Call(function, *arguments)
    _start(call.run)
    return call


def _start(function: Callable[..., None], *arguments: Any) -> None:
    try:
        start_new_thread(function, arguments)
    except RuntimeError as error:
        raise TargetError(f"the system gives no further thread: {error}") from error


def _serve(queue: SimpleQueue[Call[Any] | None], end: LockType) -> None:
    born = _exits
    try:
        while (call := queue.get()) is not None and born == _exits:
            call.run()
            del call  # and with it its value: the next may be long in coming
    finally:
        end.release()


_running: dict[int, Call[Any]] = {}
_exits = 0


def _at_exit() -> None:
    """What runs may be inside LLVM, which must not be unloaded meanwhile. Other functions that were
    registered to run at exit may come later, and compile."""
    global _exits
    _exits += 1
    for call in list(_running.values()):
        call.wait()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
