"""Notes of a net on slow programs, most of whose work is done by references in numpy."""

from __future__ import annotations

from collections.abc import Mapping

from tinsmith.errors import FEW, counted
from tinsmith.graph import Node
from tinsmith.graph.uses import sources_of
from tinsmith.kernels.select import REFERENCE, forced
from tinsmith.plan.planner import Built
from tinsmith.plan.state import flops_of

MOST = 0.5
"""The fraction of operations, or of steps, by reference beyond which there is a note."""


def slow_notes(built: Built, overrides: Mapping[str, str]) -> list[str]:
    """Return notes on steps that run by reference although `overrides` do not ask for it: a line
    for each step that holds graphs (If, Loop, Scan), and one for all others, if they do more than
    MOST of the known operations, or those of them with unknown sizes are more than MOST of the
    steps."""
    steps = [s for s in built.placed if s.kind != "view" and s.node is not None]
    slow = {
        s.node: s.reason
        for s in steps
        if s.kernel == REFERENCE and s.node and not forced(s.name, s.op, overrides)
    }
    holding = {n: sum(map(len, n.graphs.values())) for n in slow if n.graphs}
    said = [_holding(n, count) for n, count in holding.items() if count]
    rest = [n for n in slow if n not in holding]
    if not rest:
        return said
    work = {s.node: flops_of(s.node) for s in steps if s.node and s.node.is_static}
    total, part = sum(work.values()), sum(work.get(n, 0.0) for n in rest)
    unsized = sum(n not in work for n in rest)
    if part > MOST * total:
        of = f", {part / total:.0%} of the operations,"
    elif unsized > MOST * len(steps):
        of = ", mostly of sizes that only a run tells,"
    else:
        return said
    rest.sort(key=lambda n: -work.get(n, 0.0))
    names = dict.fromkeys(n.op.name for n in rest)
    few = ", ".join([*names][:FEW]) + (", ..." if len(names) > FEW else "")
    why = f"{rest[0].op.name} {rest[0].name!r}: {slow[rest[0]]}"
    text = f"{counted(len(rest), 'step')}{of} in numpy, by reference: {few}"
    return [*said, f"{text}; net.explain() says why ({why})"]


def _holding(node: Node, count: int) -> str:
    """Return the note on a step that holds graphs of `count` nodes. For an If that only scalar
    inputs decide, it says how to fix these."""
    text = (
        f"{node.op.name} {node.name!r} runs the {counted(count, 'node')} of its graphs in numpy, "
        "by reference: generated code has neither branches nor loops"
    )
    asked = sources_of(node.inputs[:1])
    small = [v.name for v in asked if v.type.is_static and v.type.size == 1]
    if "branch" in node.op.traits and asked and len(small) == len(asked):
        values = ", ".join(f"{n!r}: VALUE" for n in small)
        options = " ".join(f"--fix {n}=VALUE" for n in small)
        text += f"; compile(..., fixed={{{values}}}), or {options}, takes one branch for good"
    return text
