"""Ctrl-C comes again where it fell into a callback of the interpreter (such as those of `import`),
which drops what is raised in it: the command would go on. C code that calls Python and takes any
error for a "no" (`TextIOWrapper` looking for a codec) still loses one: press again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread
from contextlib import suppress
from typing import Any

PAUSE = 0.05
"""Seconds until it comes again, when the callback is over."""

_others = sys.unraisablehook


def _again(dropped: Any) -> None:
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
