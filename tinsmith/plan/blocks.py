"""Blocks: several anchors that one kernel computes, or that are placed one by one.

The cost model decides, unless an override does; `explain` shows both costs.
"""

from __future__ import annotations

from tinsmith.codegen.target import foreign_time
from tinsmith.errors import CodegenError
from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import KERNELS, Choice, Skip
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.select import candidates, forced, left_out
from tinsmith.kernels.trace import make_site
from tinsmith.ops.control import fused_body
from tinsmith.plan.placement import Placement
from tinsmith.records import dataclass

EXPOSED = 1.2
"""The factor on the time to write and read what leaves L2, which arithmetic does not hide.
Estimated."""
MARGIN = 0.98
"""A block must be estimated to take less than this share of the time of its nodes one by one: those
have more kernels to choose from. Estimated."""
SMALL_MARGIN = 1.1
"""The same with `memory="small"`: the tensors inside a block need no memory. Estimated."""
ONE_BY_ONE = "one by one"


@dataclass(frozen=True)
class Verdict:
    """How a block runs: as one kernel (`together`) or node by node; and why."""

    together: bool
    reason: str


def judge(placement: Placement, node: Node) -> Verdict:
    """Decide whether one kernel computes a Block node. The first that applies: yes, if an override
    forces a kernel of blocks; no, if one forces something else for the block or one of its nodes,
    or no kernel takes the block; yes, if a node has no kernel of its own, or the best kernel's cost
    is below MARGIN (or SMALL_MARGIN) times that of the nodes one by one."""
    body = node.attrs["body"]
    force = forced(node.name, "Block", placement.overrides)
    if force is not None and force in KERNELS and KERNELS[force].op == "Block":
        return Verdict(True, "forced")
    if force or any(_is_forced(n, placement) for n in body.nodes):
        return Verdict(False, "one of its nodes is forced")
    try:
        found = candidates(placement.site(node), without=left_out(placement.overrides))
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
    body = fused_body(node)
    inner = [] if body is None else body.nodes
    return any(forced(n.name, n.op.name, placement.overrides) for n in (node, *inner))


def one_by_one(placement: Placement, node: Node) -> float:
    """The estimated seconds of a block whose nodes are computed one after the other, each by its
    cheapest kernel, with what is lost between two of them (`_between`). Raises Skip if a node has
    no kernel."""
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
    """Seconds that are lost between two kernels and are in the cost of neither: writing and reading
    what does not stay in L2 of a result of `nbytes` bytes, and, with several threads, waiting for
    all of them and reading what another has written."""
    target, threads = placement.target, placement.threads
    wait = EXPOSED * 2 * max(0, nbytes - target.l2 // 2) / target.l3_bandwidth
    if threads == 1:
        return wait
    foreign = nbytes * (threads - 1) / threads  # bytes that another thread wrote, over all threads
    return wait + target.wait + foreign_time(target, foreign / threads)


def _cheapest(placement: Placement, node: Node, layouts: dict[Value, Layout]) -> Choice:
    """The choice of the best tier that costs least, for a node of a block whose operands lie in
    these `layouts`. Raises Skip, with the kernels' reasons, if no kernel takes the node."""
    try:
        site = make_site(node, placement.target, placement.precision)
        site.layouts, site.threads = layouts, placement.threads
        found = candidates(site, without=left_out(placement.overrides))
    except (Skip, CodegenError) as why:
        raise Skip(f"{node.name}: {why}") from why
    able = [(-c.tier, c.choice.cost, i) for i, c in enumerate(found) if c.choice is not None]
    best = found[min(able)[2]].choice if able else None
    if best is None:
        reasons = "; ".join(f"{c.kernel}: {c.reason}" for c in found)
        raise Skip(f"{node.name}: {reasons or 'no kernel is registered'}")
    return best
