"""Why each node runs as it does: what was fused and not, which kernels were candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinsmith.kernels.select import Candidate
from tinsmith.passes.report import Report
from tinsmith.plan.place import Placed
from tinsmith.plan.planner import Built
from tinsmith.plan.tensors import Tensor
from tinsmith.runtime.explanation import Explanation


def explain_steps(built: Built, reports: Sequence[Report] = ()) -> list[Explanation]:
    """What is told of each step, which goes by its own name and those of the nodes that are fused
    into it or went into those."""
    gone = _gone(reports)
    return [_explained(step, reports, gone) for step in built.placed]


def _explained(
    step: Placed, reports: Sequence[Report], gone: Mapping[str, list[tuple[str, str]]]
) -> Explanation:
    names = _inner(step)
    own = (step.name, *names)
    held = {was: rule for n in own for was, rule in gone.get(n, ())}
    chosen: dict[str, Any] = {}
    if step.choice is not None and step.site is not None and step.node is not None:
        chosen = {
            "detail": step.choice.detail,
            "estimated_us": step.choice.cost * 1e6,
            "turns": step.turns if step.region else 0,
            "measured": step.measured.note if step.measured is not None else "",
            "reads": [_tensor(t) for t in step.reads],
            "writes": [_tensor(t) for t in step.writes],
        }
    refusals = (r for report in reports for r in report.refusals)
    refused = dict.fromkeys((r.rule, r.reason) for r in refusals if r.node in own)
    return Explanation(
        step.name,
        step.op,
        step.kernel,
        because=step.reason,
        origin=str(step.origin),
        fused=list(names.values()),
        took_in=[{"node": n, "rule": rule} for n, rule in held.items()],
        candidates=[_candidate(c) for c in step.candidates],
        notes=[
            {"rule": n.rule, "reason": n.reason} for r in reports for n in r.notes if n.node in own
        ],
        refused=[{"rule": rule, "reason": reason} for rule, reason in refused],
        aliases=[*names, *names.values(), *held],
        **chosen,
    )


def _tensor(t: Tensor | None) -> dict[str, Any]:
    return {"name": t and t.name, "layout": t and str(t.settled.layout)}


def _candidate(c: Candidate) -> dict[str, Any]:
    made = c.choice
    return {
        "kernel": c.kernel,
        "tier": c.tier.name.lower(),
        "estimated_us": None if made is None else made.cost * 1e6,
        "says": c.reason if made is None else made.detail,
    }


def _gone(reports: Sequence[Report]) -> dict[str, list[tuple[str, str]]]:
    """The nodes of the model that rules put into others, and the rules, by the node where they are
    now."""
    absorbed = {name: to for report in reports for name, to in report.absorbed.items()}
    found: dict[str, list[tuple[str, str]]] = {}
    for name, (rule, heir) in absorbed.items():
        seen = {name}
        while heir in absorbed and heir not in seen:
            seen.add(heir)
            heir = absorbed[heir][1]
        found.setdefault(heir, []).append((name, rule))
    return found


def _inner(step: Placed) -> dict[str, str]:
    """The nodes inside a step's node, at any depth, by name."""
    found: dict[str, str] = {}
    work = [] if step.node is None else [step.node]
    while work:
        node = work.pop(0)
        if node.op.name in ("Fused", "Block"):
            work = [*node.attrs["body"].nodes, *work]
        elif node is not step.node:
            found[node.name] = f"{node.op.name} {node.origin.name or node.name}"
    return found
