"""Steps whose sizes depend on data, as a session sees them: they run programs of their own, found
or compiled when their inputs have been computed (`compiler/later.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.runtime.program import Program


class LaterStep:
    """The interface of a step whose sizes depend on data; `compiler.later.Later` implements it."""

    def run(self, arrays: Sequence[Any], cycles: Cycles | None) -> tuple[Any, ...]:
        """Return the step's results as new arrays; the caller leaves `arrays`, its inputs,
        unchanged meanwhile. The times of the steps of the program that it runs are added to
        `cycles`, as by `Session.run` (None: no times)."""
        raise NotImplementedError


class Cycles(dict[int, int]):
    """The times of a profiled run: `id` of a step -> its time, as `Session.run` adds it. `later`:
    each `LaterStep` -> the program that it has run last, whose steps are here, too; `counter`: the
    cycle counter when the run's last native code ended. Its differences between runs, over the
    seconds between them, give cycles per second."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.later: dict[LaterStep, Program] = {}
