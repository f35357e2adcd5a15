"""Progress of long work: reported to a function of the caller, or in a line on the terminal.

Code that works calls `tell`; `reported` sets the listener. Each thread has its own listener.
"""

from __future__ import annotations

import sys
import time
from _thread import _local as Local
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tinsmith.errors import OptionError

Listener = Callable[[int, int, str], object]
PATIENCE = 0.3
"""Seconds of work before the terminal shows a line."""
PAUSE = 0.05
"""Seconds at least between two changes of the line: terminals are slow."""

_local = Local()


def tell(done: int, total: int, what: str) -> None:
    """Tell this thread's listener, if there is one, that `done` of `total` parts of `what` are
    done. Raises what the listener raises."""
    listener = getattr(_local, "listener", None)
    if listener is not None:
        listener(done, total, what)


def check_progress(progress: object) -> None:
    """Raise OptionError unless `progress` is a function, None or False."""
    if progress is not None and progress is not False and not callable(progress):
        raise OptionError(
            f"progress must be a function (done, total, what), None or False, not {progress!r}"
        )


@contextmanager
def reported(
    progress: Listener | bool | None, title: str, patience: float = PATIENCE
) -> Iterator[None]:
    """A context in which `tell` has the listener `progress`: a function (done, total, what); False
    for none; None for the one that is set already, else, if standard error is a terminal, a line
    there that begins with `title` and appears after `patience` seconds."""
    outer = listener = getattr(_local, "listener", None)
    line = None
    if progress is None:
        if outer is None and sys.stderr is not None and sys.stderr.isatty():
            line = listener = _Line(title, patience)
    else:
        listener = _Steadfast(progress) if callable(progress) else None
    try:
        _local.listener = listener
        yield
    finally:
        _local.listener = outer
        if line is not None:
            line.clear()


class _Steadfast:
    """A listener that calls the caller's function. If that raises an error, which means
    that the work is to end, every later call raises it again: code in between may have caught
    it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._error: BaseException | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._function(done, total, what)
        except BaseException as error:
            self._error = error
            raise


class _Line:
    """A listener that shows progress in the last line of the terminal; `clear` erases the line."""

    def __init__(self, title: str, patience: float) -> None:
        self._title, self._shown = title, False
        self._next = time.monotonic() + patience
        if patience <= 0:
            self._show(title)

    def __call__(self, done: int, total: int, what: str) -> None:
        if time.monotonic() >= self._next:
            self._show(f"{self._title}: {what} {done} of {total}")

    def _show(self, text: str) -> None:
        from shutil import get_terminal_size

        shown = [c if c.isprintable() else "?" for c in text]  # models name themselves
        text = "".join(shown[: get_terminal_size().columns - 1])
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()
        self._shown, self._next = True, time.monotonic() + PAUSE

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
