"""What a plan has in its arena at each step, and what an engine without a plan would need.

The plan says when each tensor begins and ends to live; so nothing has to run for this.
"""

from __future__ import annotations

from typing import NamedTuple

from tinsmith.plan.memory import align
from tinsmith.plan.plan import Plan


class Row(NamedTuple):
    """One step: its number, name, operator and kernel; the bytes of the arena that are in use
    while it runs; those that begin to be with it (results, and memory for the step alone); and the
    bytes of workspace that all threads use for it."""

    step: int
    name: str
    op: str
    kernel: str
    alive: int
    made: int
    workspace: int


def timeline(plan: Plan) -> list[Row]:
    """The steps in order, without those that do nothing. The greatest `alive` is the plan's lower
    bound."""
    alive = [0] * (len(plan.steps) + 2)
    made = [0] * (len(plan.steps) + 1)
    for nbytes, start, end in plan.buffers:
        made[start] += align(nbytes)
        alive[start] += align(nbytes)
        alive[end + 1] -= align(nbytes)
    rows: list[Row] = []
    now = 0
    spaces = plan.workspaces or (0,) * len(plan.steps)
    for i, (step, space) in enumerate(zip(plan.steps, spaces, strict=True)):
        now += alive[i]
        if step.kind != "view":
            used = space * plan.threads if step.kind == "native" else 0
            rows.append(Row(i, step.name, step.op, step.kernel, now, made[i], used))
    return rows
