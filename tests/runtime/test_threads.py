"""Teams of threads: late workers, and the end of the process."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from tests.fresh import said
from tinsmith.codegen import sync_block as sync
from tinsmith.codegen.builder import Module
from tinsmith.codegen.library import load_library
from tinsmith.codegen.sync import add_await, team_text
from tinsmith.codegen.target import host
from tinsmith.runtime import threads
from tinsmith.runtime.threads import Team

JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_keep: list[object] = []
NOTHING = "define void @nothing(ptr %a, i64 %t) #0 {\n  ret void\n}\nattributes #0"


@pytest.fixture(scope="module")
def address() -> Callable[[str], int]:
    """The functions of a team, and a job that does nothing."""
    text = team_text(host()).replace("attributes #0", NOTHING)
    return load_library({"team": text}, host()).address


def run(team: Team, address: Callable[[str], int], counters: np.ndarray) -> None:
    team.run(address("nothing"), 0, counters.ctypes.data, counters.size, None)


def test_jobs_clear_their_counters_and_a_team_stops(address: Callable[[str], int]) -> None:
    team, counters = Team(3, address), np.ones(16, np.int64)
    for _ in range(200):
        run(team, address, counters)
        assert not counters.any()
        counters[:] = 1
    workers = list(team.crew.workers)
    team.stop()
    assert len(workers) == 2 and not any(t.is_alive() for t in workers)


def together(team: Team, came: list[int], leave: threading.Event | None = None) -> None:
    """A job that ends when the worker of a team of two has come in as well; it stays until `leave`
    is set."""
    expected = len(came) + 1

    def body(_: int, thread: int) -> None:
        if thread == 0:
            _until(lambda: len(came) >= expected)
            return
        came.append(thread)
        if leave is not None:
            leave.wait(10)

    job = JOB(body)
    _keep.append(job)  # a worker may be on its way out
    team.run(ctypes.cast(job, ctypes.c_void_p).value or 0, 0, 0, 0, job)


def test_a_post_that_comes_late_is_no_job(address: Callable[[str], int]) -> None:
    team, came = Team(2, address), list[int]()
    flag = team.crew._block[sync.FLAGS + 64 : sync.FLAGS + 68].view(np.int32)
    post = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
        int(team.crew._block[sync.POST : sync.POST + 8].view(np.int64)[0])
    )
    for job in range(1, 4):
        together(team, came)
        _until(lambda: flag[0] == 1)
        assert len(came) == job
        flag[0] = 0  # as a submitter does that was set aside before it looked who sleeps
        post(team.address + sync.SEMAPHORES + 64)
        _until(lambda: flag[0] == 1)
        assert len(came) == job, "the worker did the job again"
    team.stop()


def _until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)


def late_team(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> tuple[Team, threading.Thread]:
    """A team of two, and its worker, which has not started."""
    late: list[threading.Thread] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: late.append(self))
        team = Team(2, address)
    (worker,) = late
    return team, worker


def test_a_worker_that_comes_when_a_job_is_over_misses_it(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    team, worker = late_team(address, monkeypatch)
    counters, came = np.ones(8, np.int64), list[int]()
    for _ in range(3):
        run(team, address, counters)  # thread 0 does them all, and waits for nobody
        team.settle(team.jobs)
    worker.start()
    for job in range(1, 4):
        together(team, came)
        assert len(came) == job
    team.stop()
    assert not worker.is_alive()


def test_a_worker_inside_is_waited_for(address: Callable[[str], int]) -> None:
    team, leave = Team(2, address), threading.Event()
    together(team, [], leave)
    counters = np.ones(8, np.int64)
    waiting = [
        threading.Thread(target=team.settle, args=(team.jobs,), daemon=True),  # another team's turn
        threading.Thread(target=run, args=(team, address, counters), daemon=True),
    ]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(0.2)
        assert thread.is_alive() and counters.all(), "the worker is still inside"
    leave.set()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    team.settle(team.jobs - 1)
    team.stop()


def test_stop_reaches_a_worker_that_comes_late(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    team, worker = late_team(address, monkeypatch)
    run(team, address, np.ones(8, np.int64))
    stopper = threading.Thread(target=team.stop, daemon=True)
    stopper.start()
    stopper.join(10)
    assert not stopper.is_alive(), "stop waits for a worker that has not come"
    assert id(team.crew.raw) in threads._abandoned
    worker.start()
    worker.join(10)
    assert not worker.is_alive()


def test_a_team_may_be_stopped_again_before_its_worker_comes(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    team, worker = late_team(address, monkeypatch)
    workers = list(team.crew.workers)
    team.stop()
    team.crew.workers = workers  # as if the first stop had been interrupted
    team.stop()
    worker.start()
    worker.join(10)
    assert not worker.is_alive()


def test_a_team_keeps_no_owner_that_nobody_is_inside(address: Callable[[str], int]) -> None:
    class Owner:
        pass

    with threads.Lease(2, address) as team:
        owner = Owner()
        gone = weakref.ref(owner)
        counters = np.ones(8, np.int64)
        team.run(address("nothing"), 0, counters.ctypes.data, counters.size, owner)
        team.settle(team.jobs)
        del owner
    assert gone() is None


def test_a_team_larger_than_the_machine_never_spins(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 1)
    team, counter = Team(2, address), np.zeros(1, np.int64)
    module = Module(host())
    add_await(module)
    library = load_library({"await": module.text()}, host())
    wait = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library.address("await"))
    timer = threading.Timer(0.05, lambda: counter.fill(1))
    timer.start()
    wait(counter.ctypes.data, 1, team.address)
    assert counter[0] == 1
    assert team.crew._block[sync.PATIENCE : sync.PATIENCE + 4].view(np.int32)[0] == 0
    team.stop()


def test_a_forked_child_waits_for_none_of_its_parents_workers(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is inside while its process forks is inside for ever in the child's memory."""
    team, leave = Team(2, address), threading.Event()
    together(team, [], leave)
    with monkeypatch.context() as patch, threads.Lease(2, address) as leased:
        patch.setattr(threads, "_process", -1)
        team.settle(team.jobs)
    assert leased not in threads._free.get(2, [])
    leave.set()
    team.stop()
    leased.stop()


def test_a_burst_of_callers_leaves_few_teams(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_free", {})
    monkeypatch.setattr(threads, "KEPT", 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    with contextlib.ExitStack() as leases:
        teams = [leases.enter_context(threads.Lease(2, address)) for _ in range(5)]
        workers = [thread for team in teams for thread in team.crew.workers]
    assert len(threads._free[2]) == 2
    assert sum(thread.is_alive() for thread in workers) == 2
    threads._stop_all()
    assert not any(thread.is_alive() for thread in workers)


def test_nobody_gets_a_team_that_is_being_stopped(
    address: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the process daemon threads may run on: jobs of a stopped team do nothing."""
    stopped = []

    def stop(team: Team) -> None:
        assert not any(team in teams for teams in free.values())
        stopped.append(team)

    free = {2: [Team(2, address), Team(2, address)], 3: [Team(3, address)]}
    everyone = [team for teams in free.values() for team in teams]
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_free", free)
        patch.setattr(Team, "stop", stop)
        threads._stop_all()
    assert set(stopped) == set(everyone)
    for team in everyone:
        team.stop()


def test_memory_of_workers_outlives_an_interrupted_stop(address: Callable[[str], int]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    team = Team(2, address)
    submit, team.crew.submit = team.crew.submit, interrupted
    with pytest.raises(KeyboardInterrupt):
        team.stop()
    assert id(team.crew.raw) in threads._abandoned
    assert any(kept is team.crew.code for kept in threads._abandoned[id(team.crew.raw)])
    team.crew.submit = submit
    (worker,) = team.crew.workers
    team.stop()
    assert not worker.is_alive() and id(team.crew.raw) not in threads._abandoned


def test_processes_end_while_teams_are_parked_or_busy() -> None:
    code = """
import sys, threading, numpy as np, tinsmith as ts
from tests.models import array, residual
from tinsmith.plan import planner
planner.WORTH_DIVIDING = 0.0
net = ts.compile(residual(), threads=3)
x = array(1, 3, 12, 12)
net(x)
def forever():
    while True:
        net(x)
if sys.argv[1] == "busy":
    threading.Thread(target=forever, daemon=True).start()
"""
    for how in ("parked", "busy"):
        said(code, how, timeout=60)
