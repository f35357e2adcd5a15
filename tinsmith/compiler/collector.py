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
    """A function that does the same while Python's search for cyclic garbage is off. Where several
    threads are in such functions, the one that came first turns the search on again when it
    leaves."""

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
    """What there is after the first of such functions is old: no search for it begins at once."""
    global _first
    if _first and not gc.get_freeze_count():
        try:
            gc.freeze()
        finally:
            gc.unfreeze()
    _first = False
