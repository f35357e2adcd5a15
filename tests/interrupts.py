"""Programs of their own that are interrupted again and again, as by Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys

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
