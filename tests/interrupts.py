"""Programs of their own, and functions, that are interrupted again and again, as by Ctrl-C."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

STRIKES = """
import _thread, signal, threading, time

armed = False  # set it where an interrupt may come; it is raised once

def struck(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def strike(pause):
    def interrupt():
        while True:
            time.sleep(pause())
            _thread.interrupt_main()

    signal.signal(signal.SIGINT, struck)
    threading.Thread(target=interrupt, daemon=True).start()
"""


def run(code: str, *arguments: object, timeout: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "TINSMITH_CACHE": "off"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def interrupted() -> None:
    raise KeyboardInterrupt


def strikes(
    function: Callable[[], object], strike: Callable[[], object] = interrupted
) -> Iterator[int]:
    """Call a function again and again, and interrupt it at its first moment, its second, and so on
    until it ends before, or call `strike` there, as a signal handler is called: wherever Python
    looks for signals, which it does as a function begins and as one that is written in C returns.
    What falls into a finalizer is lost there: it must not come again in another test, which is what
    the command line's hook is for."""
    hook = sys.unraisablehook

    def lost(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            hook(dropped)

    for moment in itertools.count():
        left = moment

        def look(_: object, event: str, __: object) -> None:
            nonlocal left
            if event in ("call", "c_return"):
                left -= 1
                if left == -1:
                    strike()

        try:
            sys.unraisablehook = lost
            sys.setprofile(look)
            function()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
            sys.unraisablehook = hook
        if left >= 0:
            return
        yield moment
