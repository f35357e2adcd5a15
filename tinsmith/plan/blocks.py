"""Blocks: several anchors that one kernel computes, or that are placed one by one.

The two are compared by the cost model; `explain` shows both. Where an override names a node of a
block or its operator, the nodes are placed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinsmith.errors import CodegenError
from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import KERNELS, Skip, Tier
from tinsmith.kernels.select import Candidate, candidates, forced
from tinsmith.kernels.trace import make_site

if TYPE_CHECKING:
    from tinsmith.plan.place import Placer

EXPOSED = 1.2  # of the time to write and read what leaves L2; arithmetic does not hide it
FOREIGN = 16e9  # bytes a second that a core reads of what another core has written
MARGIN = 0.98
"""A block must be estimated faster by this: kernels of their own have more ways to be chosen."""
SMALL_MARGIN = 1.1
"""With `memory="small"` it may be slower by this: what lies inside takes no room."""
ONE_BY_ONE = "one by one"


@dataclass(frozen=True)
class Verdict:
    """How a block runs: as one (`together`), or node by node; and why."""

    together: bool
    reason: str


def judge(placer: Placer, node: Node) -> Verdict:
    """Whether a Block node is computed by one kernel."""
    body = node.attrs["body"]
    force = forced(node.name, "Block", placer.overrides)
    if force is not None and force in KERNELS and KERNELS[force].op == "Block":
        return Verdict(True, "forced")
    if force or any(_is_forced(n, placer) for n in body.nodes):
        return Verdict(False, "one of its nodes is forced")
    try:
        found = candidates(placer.site(node))
    except (Skip, CodegenError) as skip:
        return Verdict(False, str(skip))
    costs = [c.choice.cost for c in found if c.choice is not None]
    if not costs:
        return Verdict(False, "; ".join(c.reason for c in found) or "no kernel is registered")
    apart = one_by_one(placer, node)
    if apart is None:
        return Verdict(True, "some of its nodes have no kernel of their own")
    text = f"{min(costs) * 1e6:.1f} us together, {apart * 1e6:.1f} us one by one"
    margin = SMALL_MARGIN if placer.small else MARGIN
    return Verdict(min(costs) < margin * apart, text)


def _is_forced(node: Node, placer: Placer) -> bool:
    inner = node.attrs["body"].nodes if node.op.name == "Fused" else []
    return any(forced(n.name, n.op.name, placer.overrides) for n in (node, *inner))


def one_by_one(placer: Placer, node: Node) -> float | None:
    """The cost of a block's nodes in kernels of their own, or None where one has none."""
    body = node.attrs["body"]
    layouts = dict(zip(body.inputs, map(placer.layout, node.inputs), strict=True))
    total = 0.0
    for n in body.nodes:
        try:
            site = make_site(n, placer.target, placer.precision)
            site.layouts, site.threads = layouts, placer.threads
            best = _cheapest(candidates(site))
        except (Skip, CodegenError):
            return None
        if best is None or best.choice is None:
            return None
        total += best.choice.cost
        if n.output not in body.outputs:
            total += _between(placer, n.output.type.nbytes)
        layouts |= dict(zip(n.outputs, best.choice.writes, strict=True))
    return total


def _between(placer: Placer, nbytes: int) -> float:
    """What the costs of two kernels do not tell: a result that leaves L2 before it is read is
    awaited by both; threads wait for each other between the two, and read what others wrote."""
    target, threads = placer.target, placer.threads
    wait = EXPOSED * 2 * max(0, nbytes - target.l2 // 2) / target.l3_bandwidth
    if threads == 1:
        return wait
    foreign = nbytes * (threads - 1) / threads  # shared by all threads
    return wait + target.wait + foreign / threads / FOREIGN


def _cheapest(found: Iterable[Candidate]) -> Candidate | None:
    able = [c for c in found if c.choice is not None]
    return min(able, key=lambda c: (-c.tier, c.choice.cost), default=None)  # type: ignore[union-attr]


def place_block(placer: Placer, node: Node, results: set[Value]) -> None:
    """Place a Block node as one step, or the nodes of its body."""
    verdict = judge(placer, node)
    first = len(placer.steps)
    if verdict.together:
        placer.place_native(node, results)
        placer.steps[-1].candidates.append(Candidate(ONE_BY_ONE, Tier.SHAPED, None, verdict.reason))
        return
    body = node.attrs["body"]
    inner = dict(zip(body.inputs, node.inputs, strict=True))
    placer.rename(inner)
    kept = results | {b for b, v in zip(body.outputs, node.outputs, strict=True) if v in results}
    for n in body.nodes:
        placer.place_node(n, kept)
    placer.rename({outer: v for v, outer in inner.items() if outer is not None})
    placer.rename(dict(zip(node.outputs, body.outputs, strict=True)))
    name = next(iter(k.name for k in KERNELS.rows() if k.op == "Block"), "Block")
    for step in placer.steps[first:]:
        if step.kind != "view" and step.node is not None:
            step.candidates.append(Candidate(name, Tier.SHAPED, None, verdict.reason))
