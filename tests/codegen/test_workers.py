"""Calls on other threads: results, errors, closing, and interrupts at any moment."""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from tests.interrupts import STRIKES, run
from tinsmith.codegen import workers
from tinsmith.codegen.workers import Call, Workers, begin
from tinsmith.errors import Cancelled, TargetError


def threads_left(count: int) -> int:
    """Threads beyond `count`, once those that are about to end had time to."""
    end = time.monotonic() + 5
    while _thread._count() > count and time.monotonic() < end:
        time.sleep(0.001)
    return _thread._count() - count


def test_calls_in_order_and_their_errors() -> None:
    before, pool = _thread._count(), Workers(1)
    made: list[int] = []
    calls = [pool.submit(made.append, n) for n in range(50)]
    broken = pool.submit(divmod, 1, 0)
    assert [call.result() for call in calls] == [None] * 50 and made == list(range(50))
    with pytest.raises(ZeroDivisionError):
        broken.result()
    assert pool.submit(max, 3, 7).result() == 7
    pool.close()
    assert not threads_left(before)


def test_close_drops_what_nobody_began_and_waits_for_what_runs() -> None:
    before, pool = _thread._count(), Workers(2)
    go, began, made = threading.Event(), threading.Semaphore(0), list[int]()

    def slow(number: int) -> None:
        began.release()
        go.wait()
        made.append(number)

    calls = [pool.submit(slow, n) for n in range(6)]
    began.acquire(), began.acquire()
    assert calls[5].cancel() and not calls[0].cancel() and not calls[5].cancel()
    threading.Timer(0.05, go.set).start()
    pool.close()
    assert sorted(made) == [0, 1]
    assert not threads_left(before)


def test_who_waits_for_what_was_cancelled_is_told() -> None:
    pool, go = Workers(1), threading.Event()
    pool.submit(go.wait)
    dropped = pool.submit(abs, -1)
    assert dropped.cancel()
    go.set()
    with pytest.raises(Cancelled, match="before it began"):
        dropped.result()
    assert pool.submit(abs, -1).result() == 1
    for _ in range(100):
        call = Workers(1).submit(abs, -1)  # its pool goes
        with contextlib.suppress(Cancelled):
            assert call.result() == 1


class Value:
    pass


def test_a_pool_keeps_neither_calls_that_have_ended_nor_those_that_it_drops() -> None:
    pool, go = Workers(1), threading.Event()
    value = pool.submit(Value).result()
    gone = [weakref.ref(value)]
    del value
    pool.submit(go.wait)
    waiting = Value()
    gone.append(weakref.ref(waiting))
    pool.submit(id, waiting)
    del waiting
    assert gone[1]() is not None
    go.set()
    pool.close()
    assert [ref() for ref in gone] == [None, None]


def test_the_end_of_the_process_waits_for_a_call_or_keeps_it_from_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    monkeypatch.setattr(workers, "_exits", workers._exits)
    exits = workers._exits
    early, late = Call(made.append, 1), Call(made.append, 2)
    claim = early._claim

    def acquire(blocking: bool) -> bool:  # the process ends just before its thread begins it
        early._claim = claim
        workers._at_exit()
        return claim.acquire(blocking)

    early._claim = SimpleNamespace(acquire=acquire)
    for call in (early, late):
        call.run(exits)
        with pytest.raises(Cancelled):
            call.result()
    assert not made and not workers._running
    assert begin(abs, -3).result() == 3, "what comes later may still make calls"


def test_threads_of_a_pool_that_nobody_holds_end() -> None:
    before, pool = _thread._count(), Workers(3)
    for call in [pool.submit(abs, -n) for n in range(9)]:
        call.result()
    del pool
    assert not threads_left(before)


def test_threads_start_when_there_are_calls_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(*arguments: object) -> None:
        started.append(_thread.start_new_thread(*arguments))

    monkeypatch.setattr(workers, "start_new_thread", start)
    pool, go = Workers(3), threading.Event()
    counts = [len(started)]
    for _ in range(4):
        pool.submit(go.wait)
        counts.append(len(started))
    go.set()
    pool.close()
    assert counts == [0, 1, 2, 3, 3]


def test_a_thread_that_has_nothing_to_do_makes_the_next_call() -> None:
    pool = Workers(64)
    idents = set()
    for _ in range(20):
        idents.add(pool.submit(threading.get_ident).result())
        time.sleep(0.002)
    pool.close()
    assert len(idents) < 10


def test_a_system_that_gives_fewer_threads_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([True, False])

    def start(*arguments: object) -> int:
        if not next(given, False):
            raise RuntimeError("can't start new thread")
        return _thread.start_new_thread(*arguments)

    monkeypatch.setattr(workers, "start_new_thread", start)
    pool = Workers(4)
    assert [call.result() for call in [pool.submit(abs, -n) for n in range(9)]] == list(range(9))
    pool.close()
    with pytest.raises(TargetError, match="gives no further thread"):
        Workers(4).submit(abs, 1)
    with pytest.raises(TargetError, match="gives no further thread"):
        begin(abs, 1)


INTERRUPTED = (
    STRIKES
    + """
import random, sys
from tinsmith.codegen.workers import Workers, begin

pauses = random.Random(0)
sys.setswitchinterval(1e-6)  # else interrupts strike where the main thread waits
strike(lambda: pauses.random() * 0.002)
caught, end, left = 0, time.monotonic() + 3, _thread._count()
while time.monotonic() < end:
    pool = None
    try:
        armed = True
        pool = Workers(2)
        for call in [pool.submit(abs, -n) for n in range(40)]:
            call.result()
        begin(abs, -1).result()
        armed = False
    except KeyboardInterrupt:
        caught += 1
    if pool is not None:
        pool.close()
del pool
while _thread._count() > left and time.monotonic() < end + 5:
    time.sleep(0.01)
assert _thread._count() == left, _thread._count()
print(caught)
"""
)


def test_interrupts_leave_no_thread_waiting() -> None:
    assert int(run(INTERRUPTED)) > 100


def test_an_import_that_was_interrupted_stops_no_other(tmp_path, monkeypatch) -> None:
    """Ctrl-C in `importlib` may leave the lock of all imports with the thread that it struck."""
    import _imp

    (tmp_path / "imported_by_a_worker.py").write_text("found = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    _imp.acquire_lock()
    try:
        call = begin(lambda: __import__("imported_by_a_worker").found)
        assert call.result() == 7
    finally:
        if _imp.lock_held():
            _imp.release_lock()
