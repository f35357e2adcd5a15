"""Steps that run programs of their own: their sizes are known when what is before them has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinsmith.runtime.program import Program


class LaterStep:
    """What computes a step whose program is found, or made, when its sizes are known."""

    def run(self, arrays: Sequence[Any], cycles: dict[int, int] | None) -> tuple[Any, ...]:
        """The results, in memory that nothing else refers to, for arrays that lie there until it
        returns; the cycles of steps are added as `Session.run` does it."""
        raise NotImplementedError


class Cycles(dict[int, int]):
    """Cycles by the `id` of a step. `later`: the programs that steps have run, which hold more;
    `counter`: the cycle counter when it was last read."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = 0
        self.later: dict[LaterStep, Program] = {}
