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
    """Finds shapes that are called often with a program for free sizes, so that they get programs
    of their own. `Session.left` counts the calls of a session down; the call that takes it to 0
    goes through `run`. Sessions belong to one thread, so that each thread counts its own calls.
    Thread-safe.

    ask     (shape, seconds of a call) -> the shape's own program, or after how many calls to ask
    settle  waits until no programs are being made
    """

    def __init__(
        self, ask: Callable[[Signature, float], Program | Again], settle: Callable[[], None]
    ) -> None:
        self._ask, self.settle = ask, settle
        self._calls: dict[Signature, int] = {}

    def begin(self, session: Session, signature: Signature) -> None:
        """Set `session.left` of a new session of a program for free sizes. Each session that a
        shape has had counts as one call, as sessions are dropped and made anew where there are many
        shapes."""
        if len(self._calls) >= KNOWN:
            self._calls.clear()
        self._calls[signature] = calls = self._calls.get(signature, 0) + 1
        session.left = max(OFTEN - calls, 0) + 1

    def run(
        self, session: Session, signature: Signature, arrays: Sequence[Array],
        into: Sequence[Array | None] | None,
    ) -> tuple[list[Array], Program | None]:  # fmt: skip
        """(results, program): the results of a call, and the shape's own program, once there is
        one, with which to go on; else None, and `session.left` says when to ask again."""
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
