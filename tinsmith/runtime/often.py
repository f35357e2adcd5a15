"""Which shapes come often, of those that a program for free sizes computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from tinsmith.errors import ForkError
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program
from tinsmith.runtime.session import Session

Array = np.ndarray[Any, Any]
Again = int
"""After how many more calls of a shape to ask again."""
NEVER: Again = -1
OFTEN = 32
"""The least number of calls of a shape that is often. Estimated."""
KNOWN = 1024
"""For how many shapes calls are counted. Estimated."""


class Often:
    """Counts the calls of each shape. `Session.left` says after how many calls of a session a call
    is to go through `run`; the counts of several threads are their own. Thread-safe.

    ask     told a shape, and how long a call takes: its own program, or when to ask again
    settle  waits until no programs are being made
    """

    def __init__(
        self, ask: Callable[[Signature, float], Program | Again], settle: Callable[[], None]
    ) -> None:
        self._ask, self.settle = ask, settle
        self._calls: dict[Signature, int] = {}

    def begin(self, session: Session, signature: Signature) -> None:
        """A session of a program for free sizes begins to be called with a shape. Sessions go when
        there are many; what was called comes back here."""
        if len(self._calls) >= KNOWN:
            self._calls.clear()
        self._calls[signature] = calls = self._calls.get(signature, 0) + 1
        session.left = max(OFTEN - calls, 0) + 1

    def run(
        self, session: Session, signature: Signature, arrays: Sequence[Array],
        into: Sequence[Array | None] | None,
    ) -> tuple[list[Array], Program | None]:  # fmt: skip
        """The results of a call, and the program that is to compute this shape from now on, if it
        is another."""
        session.left = 1  # if this call fails, the next one asks
        begun = perf_counter()
        results = session.run_checked(arrays, into=into)
        try:
            found = self._ask(signature, perf_counter() - begun)
        except ForkError:  # a child that cannot compile, but run what is there
            found = NEVER
        if isinstance(found, Program):
            return results, found
        session.left = found
        return results, None
