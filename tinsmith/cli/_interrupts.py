"""Repeats a Ctrl-C that the interpreter drops in a callback (such as those of `import`), after
which the command would go on. Importing this module sets a hook that sends the signal again. Some C
code (`TextIOWrapper` looking for a codec) drops errors without calling the hook: then the user has
to press again."""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread
from contextlib import suppress
from typing import Any

PAUSE = 0.05
"""Seconds until the signal is sent again; the callback has ended then."""

_others = sys.unraisablehook


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
