"""Python's search for cyclic garbage, which stands still while a model is compiled.

Graphs are large and cyclic: the search would look through all of them again and again, and find
nothing, as they are in use. Nor is there anything to find when the first model is compiled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_first = True


def still(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: switch Python's search for cyclic garbage off while the function runs, if it was
    on. Where several threads are in such functions, the one that came first switches it on again
    when it leaves."""

    @wraps(function)
    def undisturbed(*args: P.args, **kwargs: P.kwargs) -> R:
        was = gc.isenabled()
        try:
            gc.disable()
            return function(*args, **kwargs)
        finally:  # not `__exit__`, which an interrupt may keep from beginning
            if was:
                try:
                    _age()
                finally:
                    gc.enable()

    return undisturbed


def _age() -> None:
    """Before the search is switched on again, once in a process: make all present objects old for
    it, so that it does not begin with all that was just made."""
    global _first
    if _first and not gc.get_freeze_count():
        try:
            gc.freeze()
        finally:
            gc.unfreeze()
    _first = False
