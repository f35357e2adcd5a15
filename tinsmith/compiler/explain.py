"""Why each node runs as it does: what was fused and not, which kernels were candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tinsmith.passes.report import Report
from tinsmith.plan.place import Placed
from tinsmith.plan.planner import Built
from tinsmith.rewrite import Refusal


def explain_steps(built: Built, reports: Sequence[Report] = ()) -> dict[str, str]:
    """Text for each step, by its name and by the names of the nodes that are fused into it or went
    into those."""
    found: dict[str, str] = {}
    gone = _gone(reports)
    notes = _by_node(note for report in reports for note in report.notes)
    refusals = _by_node(r for report in reports for r in report.refusals)
    for step in built.placed:
        lines = [f"{step.name}: {step.op} -> {step.kernel}"]
        if step.origin:
            lines.append(f"  origin     {step.origin}")
        names = _inner(step)
        if names:
            lines.append(f"  fused      {', '.join(names.values())}")
        held = {was: rule for n in (step.name, *names) for was, rule in gone.get(n, ())}
        if held:
            lines.append(f"  took in    {', '.join(f'{n} ({rule})' for n, rule in held.items())}")
        if step.choice is not None and step.site is not None and step.node is not None:
            lines.append(f"  chosen     {step.kernel} {step.choice.detail}".rstrip())
            lines.append(f"  estimated  {step.choice.cost * 1e6:.1f} us on one core")
            if step.region:
                lines.append(f"  in turns   {step.turns} turns, each with its part of the batch")
            if step.measured is not None and step.measured.note:
                lines.append(f"  measured   {step.measured.note}")
            reads = ", ".join(
                "-" if t is None else f"{t.name} {t.settled.layout}" for t in step.reads
            )
            lines.append(f"  reads      {reads}")
            lines.append(
                f"  writes     {', '.join(f'{t.name} {t.settled.layout}' for t in step.writes)}"
            )
        if step.reason:
            lines.append(f"  because    {step.reason}")
        lines += [f"  candidate  {c}" for c in step.candidates]
        for note in _of(notes, (step.name, *names)):
            lines.append(f"  note       {note.rule}: {note.reason}")
        mine = [(r.rule, r.reason) for r in _of(refusals, (step.name, *names))]
        lines += [f"  not        {rule}: {reason}" for rule, reason in dict.fromkeys(mine)]
        text = "\n".join(lines)
        for key in (step.name, *names, *names.values(), *held):
            found.setdefault(key, text)
    return found


Told = Mapping[str, Sequence[tuple[int, Refusal]]]
"""What passes told, by node, each with its place in the order in which they told it."""


def _by_node(told: Iterable[Refusal]) -> Told:
    found: dict[str, list[tuple[int, Refusal]]] = {}
    for place, one in enumerate(told):
        found.setdefault(one.node, []).append((place, one))
    return found


def _of(told: Told, names: Iterable[str]) -> list[Refusal]:
    """What was told of any of these nodes, in its order."""
    mine = {place: one for name in names for place, one in told.get(name, ())}
    return [mine[place] for place in sorted(mine)]


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
        node = work.pop()
        if node.op.name in ("Fused", "Block"):
            work.extend(reversed(node.attrs["body"].nodes))
        elif node is not step.node:
            found[node.name] = f"{node.op.name} {node.origin.name or node.name}"
    return found
