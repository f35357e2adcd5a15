"""The direction of a run in time: forwards or backwards through its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tinsmith.graph import Value
from tinsmith.passes.recurrent.chains import Run
from tinsmith.passes.recurrent.places import Source
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Course:
    """A run and its direction in time: time is the order of the inputs' indices, through which a
    run may go backwards (`reverse`). `parts` has for each input of a step its source at each time,
    in the order of time."""

    run: Run
    reverse: bool
    parts: tuple[tuple[Source, ...], ...]

    def time(self, step: int) -> int:
        return len(self.run.cells) - 1 - step if self.reverse else step

    @property
    def inputs(self) -> list[Source]:
        states = [s for s in (self.run.h, self.run.c) if s is not None]
        return [s for part in self.parts for s in part] + states


Times = dict[Value, tuple[int, int]]
"""Result of a step -> (id of its run, its time in that run)."""


def course_of(run: Run, times: Times) -> Course:
    """The course of a run: backwards in time if an input is read from its last index to its first,
    and none from first to last. `times` has the results of the runs before this one; those of this
    one are added."""
    parts = tuple(zip(*run.inputs, strict=True))
    ways = {_way(p, times) for p in parts}
    reverse = -1 in ways and 1 not in ways
    course = Course(run, reverse, tuple(p[::-1] for p in parts) if reverse else parts)
    for step, cell in enumerate(run.cells):
        times.update((v, (id(run), course.time(step))) for v in cell.h_out)
    return course


def _way(sources: Sequence[Source], times: Times) -> int:
    """1 if the sources of one input, step by step, are consecutive indices of one value, or results
    of one run at consecutive times (`times`); -1 if they are so backwards; else 0."""
    if one_value(sources):
        places = [s.index for s in sources]
    else:
        found = [times.get(s.value, (-1, 0)) for s in sources]
        if len({run for run, _ in found}) != 1 or found[0][0] == -1:
            return 0
        places = [time for _, time in found]
    steps = {b - a for a, b in pairwise(places)}
    return steps.pop() if steps in ({1}, {-1}) else 0


def one_value(sources: Sequence[Source]) -> bool:
    return sources[0].axis is not None and (len({(s.value, s.axis, s.width) for s in sources}) == 1)
