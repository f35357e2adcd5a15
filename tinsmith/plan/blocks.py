"""Blocks: several anchors that one kernel computes, or that are placed one by one.

The two are compared by the cost model; `explain` shows both. Where an override names a node of a
block or its operator, the nodes are placed one by one.
"""

from __future__ import annotations

from tinsmith.codegen.target import foreign_time
from tinsmith.errors import CodegenError
from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import KERNELS, Choice, Skip
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.select import candidates, forced
from tinsmith.kernels.trace import make_site
from tinsmith.plan.placement import Placement
from tinsmith.records import dataclass

EXPOSED = 1.2  # of the time to write and read what leaves L2; arithmetic does not hide it
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


def judge(placement: Placement, node: Node) -> Verdict:
    """Whether a Block node is computed by one kernel."""
    body = node.attrs["body"]
    force = forced(node.name, "Block", placement.overrides)
    if force is not None and force in KERNELS and KERNELS[force].op == "Block":
        return Verdict(True, "forced")
    if force or any(_is_forced(n, placement) for n in body.nodes):
        return Verdict(False, "one of its nodes is forced")
    try:
        found = candidates(placement.site(node))
    except (Skip, CodegenError) as skip:
        return Verdict(False, str(skip))
    costs = [c.choice.cost for c in found if c.choice is not None]
    if not costs:
        return Verdict(False, "; ".join(c.reason for c in found) or "no kernel is registered")
    try:
        apart = one_by_one(placement, node)
    except Skip as why:
        return Verdict(True, f"not all of its nodes have kernels of their own: {why}")
    text = f"{min(costs) * 1e6:.1f} us together, {apart * 1e6:.1f} us one by one"
    margin = SMALL_MARGIN if placement.small else MARGIN
    return Verdict(min(costs) < margin * apart, text)


def _is_forced(node: Node, placement: Placement) -> bool:
    inner = node.attrs["body"].nodes if node.op.name == "Fused" else []
    return any(forced(n.name, n.op.name, placement.overrides) for n in (node, *inner))


def one_by_one(placement: Placement, node: Node) -> float:
    """The cost of a block's nodes in kernels of their own. Raises Skip where one has none."""
    body = node.attrs["body"]
    layouts = dict(zip(body.inputs, map(placement.layout, node.inputs), strict=True))
    total = 0.0
    for n in body.nodes:
        best = _cheapest(placement, n, layouts)
        total += best.cost
        if n.output not in body.outputs:
            total += _between(placement, n.output.type.nbytes)
        layouts |= dict(zip(n.outputs, best.writes, strict=True))
    return total


def _between(placement: Placement, nbytes: int) -> float:
    """What the costs of two kernels do not tell: a result that leaves L2 before it is read is
    awaited by both; threads wait for each other between the two, and read what others wrote."""
    target, threads = placement.target, placement.threads
    wait = EXPOSED * 2 * max(0, nbytes - target.l2 // 2) / target.l3_bandwidth
    if threads == 1:
        return wait
    foreign = nbytes * (threads - 1) / threads  # shared by all threads
    return wait + target.wait + foreign_time(target, foreign / threads)


def _cheapest(placement: Placement, node: Node, layouts: dict[Value, Layout]) -> Choice:
    """The best choice for a node of a block. Raises Skip where there is none."""
    try:
        site = make_site(node, placement.target, placement.precision)
        site.layouts, site.threads = layouts, placement.threads
        found = candidates(site)
    except (Skip, CodegenError) as why:
        raise Skip(f"{node.name}: {why}") from why
    able = [(-c.tier, c.choice.cost, i) for i, c in enumerate(found) if c.choice is not None]
    best = found[min(able)[2]].choice if able else None
    if best is None:
        reasons = "; ".join(f"{c.kernel}: {c.reason}" for c in found)
        raise Skip(f"{node.name}: {reasons or 'no kernel is registered'}")
    return best
