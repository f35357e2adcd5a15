"""Programs that take over from the one for free sizes: which shapes get one, and that nothing waits
for it, breaks by it, or outlives it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.transformer import feeds, transformer
from tinsmith.compiler import takeover
from tinsmith.errors import Cancelled, DataError, PlanError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime import often
from tinsmith.runtime.net import Net

FIRST, COMMON, RARE = (2, 7), (3, 9), (4, 31)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shapes come often after few calls."""
    monkeypatch.setattr(often, "OFTEN", 6)
    monkeypatch.setattr(takeover, "OFTEN", 6)
    monkeypatch.setattr(takeover, "POLL", 2)
    yield


@pytest.fixture
def net() -> Net:
    return opened()


def opened(**options: Any) -> Net:
    """A net whose programs cost nothing, so that calls alone count."""
    made = ts.compile(ts.load(transformer()), threads=1, **{"cache": False, **options})
    called(made, FIRST, 1)
    if made._often is not None:
        takeover_of(made).price = 0.0
    return made


class Maker:
    """A method that fails in place of another; the table holds the object."""

    alive: ClassVar[list[Maker]] = []

    def __init__(self, make: Any) -> None:
        self._make = make
        self.alive.append(self)

    def make(self, signature: Any) -> Any:
        return self._make(signature)


def takeover_of(net: Net) -> Any:
    return net._often._ask.__self__._takeover  # type: ignore[union-attr]


def called(net: Net, sizes: tuple[int, int], times: int) -> bool:
    """Whether the program for free sizes computes these ones, after so many calls of right
    results."""
    given = feeds(*sizes)
    want = REFERENCE(**given)["hidden"]
    for _ in range(times):
        np.testing.assert_allclose(net(**given)["hidden"], want, atol=2e-5, rtol=1e-4)
    return net.session(net._takes.signature(net._takes.arrays((), given))).program.is_sized


REFERENCE = ts.compile(ts.load(transformer()), backend="numpy")


def test_a_shape_that_comes_often_gets_a_program_of_its_own(net: Net) -> None:
    assert called(net, COMMON, 6)
    net.settle()
    assert not called(net, COMMON, 5)
    assert called(net, RARE, 2)
    assert [p.is_sized for p in net._programs.kept().values()] == [False, False, True]
    assert not net.program_for(**feeds(*COMMON)).takes
    assert not net.notes


def test_calls_count_when_other_shapes_come_between(net: Net) -> None:
    """More of them than sessions are kept for."""
    for _ in range(7):
        called(net, COMMON, 1)
        for t in range(11, 29):
            net(**feeds(2, t))
    net.settle()
    for _ in range(3):
        own = not called(net, COMMON, 1)
    assert own


@pytest.mark.parametrize("shapes", ["free", "fixed"])
def test_other_policies_make_none(shapes: str) -> None:
    net = opened(shapes=shapes)
    assert called(net, COMMON, 20) == (shapes == "free")
    net.settle()
    assert called(net, COMMON, 20) == (shapes == "free")


def test_cheap_calls_wait_until_they_have_cost_as_much(net: Net) -> None:
    takeover_of(net).price = 1e6
    assert called(net, COMMON, 40)
    net.settle()
    assert called(net, COMMON, 10)


def test_only_so_many_shapes_get_one(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "MOST_OWN", 2)
    own = []
    for t in (10, 11, 12, 13):
        called(net, (2, t), 7)
        net.settle()
        own.append(not called(net, (2, t), 5))
    assert own == [True, True, False, False]


def test_threads_take_it_over_each_for_itself(net: Net) -> None:
    called(net, COMMON, 7)
    found, ready = [], threading.Barrier(3)

    def work() -> None:
        called(net, COMMON, 3)
        ready.wait(60)
        net.settle()
        found.append(called(net, COMMON, 12))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [False] * 3


def test_a_program_that_cannot_be_made_is_noted(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise PlanError("it is too large")

    monkeypatch.setattr(takeover_of(net), "_make", Maker(fail).make)
    assert called(net, COMMON, 7)
    net.settle()
    assert called(net, COMMON, 20)
    [note] = net.notes
    assert "no program of its own" in note and "it is too large" in note


def test_any_error_ends_its_job(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an operator of a user; other shapes get programs afterwards."""
    make = takeover_of(net)._make

    def fail(_: Any) -> Any:
        raise KeyError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(takeover_of(net), "_make", Maker(fail).make)
        called(net, COMMON, 7)
        net.settle()
    called(net, COMMON, 4)
    assert "a bug" in net.notes[0] and takeover_of(net)._make == make
    called(net, RARE, 7)
    net.settle()
    assert not called(net, RARE, 5)


def test_a_call_that_fails_is_asked_for_again() -> None:
    graph = Graph("picked")
    x = graph.input("x", Type(np.dtype("float32"), ("n", 8)))
    places = graph.input("places", Type(np.dtype("int64"), ("k",)))
    graph.outputs = [OPS["Gather"](x, places, axis=0)]
    net = ts.compile(graph, cache=False, threads=1)

    def call(n: int, place: int) -> bool:
        arrays = np.ones((n, 8), np.float32), np.full(3, place)
        net(*arrays)
        return net.session(tuple(a.shape for a in arrays)).program.is_sized

    call(2, 0)
    takeover_of(net).price = 0.0
    assert all(call(5, 1) for _ in range(5))
    with pytest.raises(DataError):
        call(5, 99)
    for _ in range(3):
        call(5, 1)
    net.settle()
    assert not [call(5, 1) for _ in range(5)][-1]


def test_nets_that_nobody_keeps_get_none() -> None:
    net = opened()
    line, job = takeover._line, takeover._Job(takeover_of(net)._make, ((3, 9), (3, 9)))
    del net
    gc.collect()
    job.run(line._listen)
    assert job.ended and job.take() is None


def test_forks_in_a_row_end_it(net: Net) -> None:
    job = takeover._Job(takeover_of(net)._make, ((3, 9), (3, 9)))

    def stop(*_: Any) -> None:
        raise Cancelled("the process forked")

    for _ in range(takeover.TRIES - 1):
        with pytest.raises(Cancelled):
            job.run(stop)
    job.run(stop)
    assert job.ended and "forked" in job.why


def test_a_fork_stops_it_and_the_parent_goes_on(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child may compile: no lock is held by a thread that it does not have."""
    begun, make = threading.Event(), takeover_of(net)._make

    def told(signature: Any) -> Any:
        begun.set()
        return make(signature)

    monkeypatch.setattr(takeover_of(net), "_make", Maker(told).make)
    called(net, COMMON, 7)
    assert begun.wait(60)
    child = os.fork()
    if not child:
        try:
            right = called(net, COMMON, 9)
            other = ts.compile(ts.load(transformer()), cache=False)
            os._exit(0 if right and not called(other, RARE, 1) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    net.settle()
    assert not called(net, COMMON, 5)


def test_it_is_stored_and_a_new_start_runs_it(tmp_path: Path) -> None:
    onnx.save(transformer(), tmp_path / "encoder.onnx")
    code = """
import sys, tinsmith as ts
from tests.transformer import feeds
from tinsmith.compiler import takeover
from tinsmith.runtime import often
often.OFTEN = takeover.OFTEN = 4
net = ts.compile(sys.argv[1], threads=1)
for n, t in [(2, 7), *[(3, 9)] * int(sys.argv[2])]:
    net(**feeds(n, t))
    net._often._ask.__self__._takeover.price = 0
if sys.argv[3] == "wait":
    net.settle()
print(net.program().is_sized, "llvmlite" in sys.modules)
"""

    def start(calls: int, how: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "encoder.onnx"), str(calls), how],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, "TINSMITH_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.strip()

    assert start(1, "") == "True True"
    assert start(9, "").startswith("True")  # the process ends while it is made
    assert start(9, "wait").startswith("True")
    assert start(1, "") == "False False"
