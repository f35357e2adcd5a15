"""Keeps a Ctrl-C from getting lost on its way through other code, once this module is imported.

A hook sends the signal again where the interpreter drops the error in a callback (such as those of
`import`), after which the command would go on. A handler notes that the signal came, so that
`kept` can tell an error that C code raised in its place (`PyCapsule_Import` raises ImportError).
Some C code (`TextIOWrapper` looking for a codec) drops errors without calling the hook: then the
user has to press again."""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PAUSE = 0.05
"""Seconds until the signal is sent again; the callback has ended then."""

_others = sys.unraisablehook

_came = threading.Event()
"""Set when a SIGINT came."""


@contextmanager
def kept() -> Iterator[None]:
    """In this block, an error raised after a Ctrl-C is a KeyboardInterrupt, whatever it was."""
    try:
        yield
    except Exception:
        if _came.is_set():
            raise KeyboardInterrupt from None
        raise


def _note(number: int, frame: Any) -> None:
    _came.set()
    signal.default_int_handler(number, frame)


def _again(dropped: Any) -> None:
    """The hook for errors that the interpreter drops: sends SIGINT again for a KeyboardInterrupt;
    other errors go to the hook that was there before."""
    if dropped.exc_type is KeyboardInterrupt:
        with suppress(RuntimeError):  # the interpreter ends
            start_new_thread(_strike, ())  # `threading` takes locks that the main thread may hold
    else:
        _others(dropped)


def _strike() -> None:
    time.sleep(PAUSE)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


sys.unraisablehook = _again
with suppress(ValueError):  # only the main thread may
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _note)
