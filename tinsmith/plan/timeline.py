"""What a plan has in its arena at each step, and what an engine without a plan would need.

The plan says when each tensor begins and ends to live; so nothing has to run for this.
"""

from __future__ import annotations

from typing import NamedTuple

from tinsmith.plan.memory import align
from tinsmith.plan.plan import Plan


class Row(NamedTuple):
    """One step of a plan: its number in `Plan.steps`, name, operator and kernel; and bytes.

    alive      of the arena that are in use while the step runs
    made       of the arena that come into use with it: its results and its scratch
    workspace  that it uses, of all threads together
    """

    step: int
    name: str
    op: str
    kernel: str
    alive: int
    made: int
    workspace: int


def timeline(plan: Plan) -> list[Row]:
    """A `Row` for each step of a plan, in order, without views. The greatest `alive` is the plan's
    lower bound."""
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
