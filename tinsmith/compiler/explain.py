"""Why each node runs as it does: what was fused and not, which kernels were candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinsmith.backends import BACKENDS
from tinsmith.kernels.select import Candidate
from tinsmith.ops.control import Part
from tinsmith.passes.report import Report
from tinsmith.plan.place import Placed
from tinsmith.plan.planner import Built
from tinsmith.plan.tensors import Tensor
from tinsmith.rewrite import Refusal
from tinsmith.runtime.explanation import Explanation

Said = Mapping[str, Sequence[tuple[int, Refusal]]]
"""Notes or refusals of passes: name of a node -> pairs (position among all, note)."""


def explain_steps(built: Built, reports: Sequence[Report] = ()) -> list[Explanation]:
    """Return an `Explanation` of each placed step, in order. `reports`: what the passes before did,
    of all stages."""
    gone = _gone(reports)
    notes = _by_node(note for report in reports for note in report.notes)
    refusals = _by_node(r for report in reports for r in report.refusals)
    return [_explained(step, gone, notes, refusals) for step in built.placed]


def _explained(
    step: Placed, gone: Mapping[str, list[tuple[str, str]]], notes: Said, refusals: Said
) -> Explanation:
    names = _inner(step)
    own = (step.name, *names)
    held = {was: rule for n in own for was, rule in gone.get(n, ())}
    chosen: dict[str, Any] = {}
    if step.choice is not None and step.site is not None and step.node is not None:
        chosen = {
            "detail": step.choice.detail,
            "estimated_us": step.choice.cost * 1e6,
            "micro_batches": step.micro_batches if step.region else 0,
            "measured": step.measured.note if step.measured is not None else "",
            "reads": [_tensor(t) for t in step.reads],
            "writes": [_tensor(t) for t in step.writes],
        }
    elif step.node is not None and step.node.op is Part:
        chosen = {"detail": BACKENDS[step.kernel].explain(step.node.attrs["body"])}
    refused = dict.fromkeys((r.rule, r.reason) for r in _of(refusals, own))
    return Explanation(
        step.name, step.op, step.kernel, because=step.reason, origin=str(step.origin),
        fused=list(names.values()), took_in=[{"node": n, "rule": rule} for n, rule in held.items()],
        candidates=[_candidate(c) for c in step.candidates],
        notes=[{"rule": n.rule, "reason": n.reason} for n in _of(notes, own)],
        refused=[{"rule": rule, "reason": reason} for rule, reason in refused],
        aliases=[*names, *names.values(), *held], **chosen,
    )  # fmt: skip


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


def _by_node(told: Iterable[Refusal]) -> Said:
    found: dict[str, list[tuple[int, Refusal]]] = {}
    for place, one in enumerate(told):
        found.setdefault(one.node, []).append((place, one))
    return found


def _of(told: Said, names: Iterable[str]) -> list[Refusal]:
    """Return what passes recorded in `told` about the nodes `names`, in the order of recording."""
    mine = {place: one for name in names for place, one in told.get(name, ())}
    return [mine[place] for place in sorted(mine)]


def _gone(reports: Sequence[Report]) -> dict[str, list[tuple[str, str]]]:
    """Return the nodes that rules merged into others: name of the remaining node -> pairs (name of
    the merged node, rule). Chains of merges are followed to the node that remains."""
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
    """Return the nodes fused inside a step's node, at any depth: name -> "Relu relu_1", operator
    and name in the model."""
    found: dict[str, str] = {}
    work = [] if step.node is None else [step.node]
    while work:
        node = work.pop()
        if "region" in node.op.traits:
            work.extend(reversed(node.attrs["body"].nodes))
        elif node is not step.node:
            found[node.name] = f"{node.op.name} {node.origin.name or node.name}"
    return found
