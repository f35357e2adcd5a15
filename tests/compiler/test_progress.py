"""How far a compilation has come: to a function, on a terminal, or to nobody."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.models import digits, residual
from tinsmith import progress
from tinsmith.errors import OptionError
from tinsmith.progress import reported, tell

WHAT = ["reading", "passes", "steps", "kernels"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error is one for the rest of the test (a fixture's would be replaced before it)."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


@pytest.mark.parametrize("graph", [True, False])
def test_a_function_hears_of_everything_on_the_compiling_thread(graph: bool) -> None:
    heard: list[tuple[int, int, str]] = []
    threads = set()

    def listen(done: int, total: int, what: str) -> None:
        heard.append((done, total, what))
        threads.add(threading.get_ident())

    net = ts.compile(residual() if graph else digits(), cache=False, threads=2, progress=listen)
    if not graph:
        assert "kernels" not in {what for _, _, what in heard}
        net(np.zeros((2, 1, 8, 8), np.float32))
    assert list(dict.fromkeys(w for _, _, w in heard)) == WHAT[graph:]
    assert all(0 <= done < total for done, total, _ in heard)
    assert threads == {threading.get_ident()}
    told = len(heard)
    x = [np.zeros(t.dims if graph else (2, 1, 8, 8), np.float32) for t in net.inputs.values()]
    net(*x)
    assert len(heard) == told


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
@pytest.mark.parametrize("at", WHAT)
def test_what_a_function_raises_ends_the_compilation(
    at: str, error: type[BaseException], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    x = np.ones((2, 1, 8, 8), np.float32)
    stop = True

    def listen(done: int, total: int, what: str) -> None:
        if what == at and stop:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        ts.compile(digits(), progress=listen)(x)
    stop = False
    want = ts.compile(digits(), backend="numpy")(x)
    np.testing.assert_allclose(ts.compile(digits(), progress=listen)(x), want, atol=1e-5)


def test_a_terminal_hears_of_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with reported(None, "compiling m", patience=0.0):
        ts.compile(residual(), cache=False)
    said = screen.getvalue().split("\r\x1b[2K")
    assert said[:2] == ["", "compiling m"] and said[-1] == ""
    assert any(line.startswith("compiling m: steps 1 of ") for line in said)


@pytest.mark.parametrize("given", [False, None])
def test_nobody_hears_of_what_is_short_or_not_to_be_told(
    given: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal(monkeypatch)
    if given is None:
        monkeypatch.setattr(progress, "PATIENCE", 1e9)
    with reported(given, "compiling m", progress.PATIENCE):
        tell(0, 1, "steps")
    ts.compile(residual(), cache=False, progress=False)
    assert screen.getvalue() == ""


def test_nothing_is_said_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with reported(None, "compiling m", patience=0.0):
        ts.compile(residual(), cache=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [True, 5, "bar"])
def test_what_cannot_listen_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="progress must be a function"):
        ts.compile(residual(), progress=wrong)
