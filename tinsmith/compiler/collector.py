"""Python's search for cyclic garbage, which stands still while a model is compiled.

Graphs are large and cyclic: the search would look through all of them again and again, and find
nothing, as they are in use. Nor is there anything to find when the first model is compiled.
"""

from __future__ import annotations

import gc
import threading


class _Collector:
    """As a context manager: no search until every thread that is inside has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._was, self._first = 0, False, True

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._was = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was:
                if self._first and not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()  # what there is, is old now: no search for it begins at once
                self._first = False
                gc.enable()


COLLECTOR = _Collector()
