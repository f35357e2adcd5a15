"""Stops Python's cyclic garbage collector while a model is compiled.

Graphs are large and cyclic: the collector would go through them again and again in vain, as they
are in use.
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
    """Decorator: switch Python's garbage collector off while the function runs, if it was on. Of
    several threads in such functions, the one that entered first switches it on again when it
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
    """On the first call in a process, move all objects into the collector's oldest generation: else
    it would search what the first compilation made, where garbage is not to be expected, as soon as
    it is on. Not if there are frozen objects (`gc.freeze`): the move would unfreeze them."""
    global _first
    if _first and not gc.get_freeze_count():
        try:
            gc.freeze()
        finally:
            gc.unfreeze()
    _first = False
