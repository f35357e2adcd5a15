"""Finds signatures that are called often with a program for free sizes, so that they get programs
of their own (`compiler/takeover.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from tinsmith.errors import ForkError
from tinsmith.graph import Array
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program
from tinsmith.runtime.session import Session

Again = int
"""The number of calls of a signature after which to ask again; NEVER: not any more."""
NEVER: Again = -1
OFTEN = 32
"""Calls after which a signature counts as frequent. Estimated."""
KNOWN = 1024
"""Signatures whose calls are counted, at most. Estimated."""


class Often:
    """Counts the calls of a program for free sizes, by signature. `Session.left` counts those of a
    session down; the call that takes it to 0 goes through `run`. A session belongs to one thread,
    so each thread counts its own calls. Thread-safe.

    ask     (signature, seconds of a call) -> its own program, or the calls after which to ask again
    settle  waits until no programs are being compiled
    """

    def __init__(
        self, ask: Callable[[Signature, float], Program | Again], settle: Callable[[], None]
    ) -> None:
        self._ask, self.settle = ask, settle
        self._calls: dict[Signature, int] = {}

    def begin(self, session: Session, signature: Signature) -> None:
        """Set `session.left` of a new session of a program for free sizes. Earlier sessions of the
        signature, dropped where there are many signatures, count as one call each."""
        if len(self._calls) >= KNOWN:
            self._calls.clear()
        self._calls[signature] = calls = self._calls.get(signature, 0) + 1
        session.left = max(OFTEN - calls, 0) + 1

    def run(
        self, session: Session, signature: Signature, arrays: Sequence[Array],
        into: Sequence[Array | None] | None,
    ) -> tuple[list[Array], Program | None]:  # fmt: skip
        """Run and return (results, program): the signature's own program for later calls, if it is
        ready; else None, and `session.left` is set to the calls after which to ask again."""
        session.left = 1  # if this call fails, the next one asks
        begun = perf_counter()
        results = session.run_checked(arrays, into=into)
        try:
            found = self._ask(signature, perf_counter() - begun)
        except ForkError:  # a forked child that cannot compile, only run
            found = NEVER
        if isinstance(found, Program):
            return results, found
        session.left = found
        return results, None
