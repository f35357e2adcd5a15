"""Calls on other threads such that Ctrl-C in a waiting thread leaves no lock held.

Python raises KeyboardInterrupt between any two calls of the main thread, also in the Python code of
`threading` and `concurrent.futures`: a condition that was just acquired then stays locked for ever.
Here the main thread only takes C's locks: an interrupt comes before the lock is taken, or while
somebody is there to release it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from _imp import lock_held, release_lock
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tinsmith.errors import Cancelled, TargetError

if TYPE_CHECKING:
    from queue import SimpleQueue

T = TypeVar("T")


class _End(weakref.ref[Any]):
    """Calls `call`, a C function, when `owner` is no longer referenced. No Python code runs then,
    in which KeyboardInterrupt could be raised and lost, as in a Python finalizer."""

    __slots__ = ("call",)

    def __new__(cls, owner: object, call: Callable[[], object]) -> _End:
        self = super().__new__(cls, owner, _begin)
        self.call = call
        return self


_begin = methodcaller("call")


class Call(Generic[T]):
    """A call of a function that one thread makes and any thread may wait for. Thread-safe."""

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._function: Callable[[], T] | None = partial(function, *arguments)
        self._claim, self._done = allocate_lock(), allocate_lock()
        self._done.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def cancel(self) -> bool:
        """Keep the call from beginning; False if it has begun, or was cancelled before. A cancelled
        call ends, with Cancelled, when its thread reaches it."""
        return self._claim.acquire(False)

    def run(self, exits: int) -> None:
        """Make the call and keep its result or error: the error Cancelled, without a call, if it
        was cancelled, or if the process has begun to end (`_exits` is no longer `exits`). Called
        once, on a thread that no interrupt strikes."""
        _running[id(self)] = self  # first: `_at_exit` finds it, or has counted before it is begun
        function, self._function = cast("Callable[[], T]", self._function), None
        try:
            if exits != _exits or not self._claim.acquire(False):
                raise Cancelled("a call on another thread was cancelled before it began")
            self._value = function()
        except BaseException as error:
            self._error = error
        finally:
            del function, _running[id(self)]
            self._done.release()

    def wait(self) -> None:
        """Wait until the call has ended, or, if it was cancelled, until its thread has reached
        it."""
        free_imports()
        with self._done:
            pass

    def result(self) -> T:
        """Wait for the call and return what the function returned. Raises what the function raised,
        or Cancelled."""
        self.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class Together(Generic[T]):
    """A context that threads share: `begin()` runs when the first thread enters it, `end` with the
    result of `begin` when the last one has left."""

    def __init__(self, begin: Callable[[], T], end: Callable[[T], object]) -> None:
        self._begin, self._end = begin, end
        self._lock, self._users = allocate_lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._begun = self._begin()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._end(self._begun)


def free_imports() -> None:
    """Release Python's lock of all imports, if this thread has it although it imports nothing:
    Ctrl-C inside `importlib` may leave it taken, and other threads that import then wait for
    ever."""
    while lock_held():
        try:
            release_lock()
        except RuntimeError:  # another thread has it, which is importing
            return


class _Line:
    """The queue of calls of a pool (`Workers`). The pool's threads hold the queue, not the pool:
    they end when nobody holds the pool."""

    def __init__(self, pool: Workers) -> None:
        from queue import SimpleQueue  # the code of a stored program runs without

        self.queue: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self.open: deque[None] = deque()  # one for each call that has not ended
        self.ends: list[LockType] = []  # locked while their threads are there
        self.closed = False
        self.pool = _End(pool, partial(self.queue.put, None))

    def serve(self, exits: int) -> None:
        end = allocate_lock()
        with end:
            self.ends.append(end)
            while (call := self.queue.get()) is not None:
                if self.closed or self.pool() is None:
                    call.cancel()
                call.run(exits)
                self.open.pop()
                del call  # and with it its value: the next may be long in coming
            self.queue.put(None)  # for the next thread

    def close(self) -> None:
        self.closed = True
        self.queue.put(None)


class Workers:
    """Up to `threads` threads, which start when there are calls for them, and begin the calls in
    the order of submission until `close`, or until nobody holds the object.

    Submit and close from one thread at a time.
    """

    def __init__(self, threads: int) -> None:
        self._line = _Line(self)
        self._threads, self._started = threads, 0

    def submit(self, function: Callable[..., T], *arguments: Any) -> Call[T]:
        """Queue a call of `function` for one of the threads, and return the call at once. Raises
        TargetError if the system gives not even one thread."""
        call = Call(function, *arguments)
        self._line.open.append(None)
        if self._started < min(self._threads, len(self._line.open)):
            self._start()
        self._line.queue.put(call)
        return call

    def _start(self) -> None:
        try:
            _start(self._line.serve, _exits)
            self._started += 1  # last: an interrupt may only make one more than are counted
        except TargetError:  # fewer do the same
            if not self._started:
                raise

    def close(self) -> None:
        """Cancel the calls that have not begun, and wait until the threads have ended."""
        self._line.close()
        free_imports()
        for end in list(self._line.ends):  # a thread that is still to come begins no call
            with end:
                pass


def begin(function: Callable[..., T], *arguments: Any) -> Call[T]:
    """Start a call on a thread of its own, and return it. Raises TargetError if the system gives no
    thread."""
    call = Call(function, *arguments)
    _start(call.run, _exits)
    return call


def after(owner: object, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function on a thread of its own once nobody holds `owner`, unless the process ends.

    If the system gives no thread, the function is not called.
    """
    key = next(_numbers)
    _ends[key] = _End(owner, partial(start_new_thread, _ended, (key, function, arguments)))


def _ended(end: int, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    _ends.pop(end, None)
    function(*arguments)


def _start(function: Callable[..., None], *arguments: Any) -> None:
    try:
        start_new_thread(function, arguments)
    except RuntimeError as error:
        raise TargetError(f"the system gives no further thread: {error}") from error


_ends: dict[int, _End] = {}
_numbers = count()
_running: dict[int, Call[Any]] = {}
_exits = 0  # how often the process has begun to end


def _at_exit() -> None:
    """At exit, forget what `after` would call, and wait for running calls, which may be inside
    LLVM: that must not be unloaded meanwhile. Later exit functions may still compile, where Python
    starts threads then (3.12 does not)."""
    global _exits
    _exits += 1
    _ends.clear()
    for call in list(_running.values()):
        if not call.cancel():
            call.wait()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
