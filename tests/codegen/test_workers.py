"""Calls on other threads: results, errors, closing, and interrupts at any moment."""

from __future__ import annotations

import _thread
import threading
import time

import pytest

from tests.interrupts import STRIKES, run
from tinsmith.codegen import workers
from tinsmith.codegen.workers import Workers, begin
from tinsmith.errors import TargetError


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


def test_threads_of_a_pool_that_nobody_holds_end() -> None:
    before = _thread._count()
    Workers(3)
    assert not threads_left(before)


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
        Workers(4)
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
