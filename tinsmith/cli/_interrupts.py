"""Ctrl-C comes again where it fell into a callback of the interpreter (such as those of `import`),
which drops what is raised in it: the command would go on."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

PAUSE = 0.05
"""Seconds until it comes again, when the callback is over."""

_others = sys.unraisablehook


def _again(dropped: Any) -> None:
    if dropped.exc_type is KeyboardInterrupt:
        main = threading.main_thread().ident
        threading.Timer(PAUSE, signal.pthread_kill, (main, signal.SIGINT)).start()
    else:
        _others(dropped)


sys.unraisablehook = _again
