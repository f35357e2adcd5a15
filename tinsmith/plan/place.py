"""Chooses kernel and layouts for every node, and adds the conversions between layouts.

Greedy in topological order: each node gets the choice of the best tier that costs least, with the
conversions that its operands need. Views cost nothing; nor do concat and split, if the parts can
lie inside the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from tinsmith.conditions import meet
from tinsmith.graph import Graph, Node, Value
from tinsmith.kernels._kernel import CPU, KERNELS, Tier
from tinsmith.kernels.counted import with_room
from tinsmith.kernels.layout import PLAIN, Layout
from tinsmith.kernels.select import REFERENCE, UNPROVEN, Candidate, forced
from tinsmith.plan.blocks import ONE_BY_ONE, judge
from tinsmith.plan.gate import is_native
from tinsmith.plan.micro_batch import MicroBatch, part_in, whole_of
from tinsmith.plan.offers import best_of, offer_of, rivals_of
from tinsmith.plan.parts import free_concat, free_split
from tinsmith.plan.placed import Placed
from tinsmith.plan.placement import Placement, dims_of
from tinsmith.plan.tensors import Tensor
from tinsmith.progress import tell
from tinsmith.sizes import as_numbers


def place(
    placement: Placement,
    graph: Graph,
    micro_batches: Iterable[MicroBatch],
    settled: Callable[[Placed], None],
) -> list[Placed]:
    """Choose a kernel and layouts for every node of a graph, and return the steps, conversions
    included; the tensors of its outputs are appended to `placement.outputs`. `micro_batches` are
    the runs of nodes that compute the batch in parts. `settled` is called with each step, in
    order, as soon as no later node can change its layouts."""
    placement.begin(graph)
    results = set(graph.outputs)
    starts = {micro_batch.nodes[0]: micro_batch for micro_batch in micro_batches}
    done: set[Node] = set()
    settling = Settling(placement, graph, settled)
    for number, node in enumerate(graph.nodes):
        tell(number, len(graph), "steps")
        if node in done:
            continue
        nodes = [node]
        if node in starts:
            nodes = starts[node].nodes
            _place_micro_batches(placement, starts[node], results)
            done.update(nodes)
        else:
            place_node(placement, node, results)
        settling.after(nodes)
    for i, v in enumerate(graph.outputs):
        placement.outputs.append(placement.deliver(v, i))
    settling.finish()
    return placement.steps


def place_node(placement: Placement, node: Node, results: set[Value]) -> None:
    """Add the steps of one node: by another backend (Part), once for each set of sizes, as a block,
    without work (views, and parts inside a whole), or by its best kernel or its reference; if its
    sizes are not proven (`Gate.follows`), by a kernel that checks them or its reference. `results`
    are the values that leave the program."""
    if node.op.name == "Part":
        name = node.attrs["backend"]
        why = f"the backend {name!r} computes it"
        if name == CPU:
            why = "a program of its own computes it, once its sizes are known"
        _place_reference(placement, node, [], why, name)
    elif node in placement.once_nodes:
        _place_once(placement, node)
    elif not placement.gate.follows(node):
        place_native(placement, node, results, proven=False)
    elif node.op.name == "Block":
        _place_block(placement, node, results)
    elif not (_place_view(placement, node) or _place_parts(placement, node)):
        place_native(placement, node, results)


def _place_once(placement: Placement, node: Node) -> None:
    """Add the step of a node that its reference computes once for each set of sizes. Its operands
    are constants or results of other such nodes; its results lie in the space "made"."""
    reads: list[Tensor | None] = []
    for v in node.inputs:
        if v is None or v in placement.once:
            reads.append(None if v is None else placement.homes[v])
        else:
            reads.append(Tensor(v.name, v.dtype, v.dims, space="python", array=v.const))
    writes = []
    for v in node.outputs:
        writes.append(Tensor(v.name, v.dtype, v.dims, space="made"))
        placement.set(v, writes[-1])
        placement.once.add(v)
    placement.steps.append(
        Placed(node.name, node.op.name, "once", "once", str(node.origin), node, reads=reads,
               writes=writes)
    )  # fmt: skip


def _place_view(placement: Placement, node: Node) -> bool:
    """Place a node of the trait `view` without work: its result shares the input's memory, if that
    is plain, or blocked with the elements in the same order, without gaps; else the memory of a
    plain copy, which is made first. Returns False, with nothing done, if that cannot be or a kernel
    is forced for the node."""
    if "view" not in node.op.traits or len(node.outputs) != 1:
        return False
    x, y = node.inputs[0], node.output
    if x is None or x.const is not None or not (is_native(x) and is_native(y)):
        return False
    if forced(node.name, node.op.name, placement.overrides):
        return False
    home = placement.homes[x]
    if not home.is_static:
        return False
    if home.block:
        whole = home.dims[1] % home.block == 0 or home.dims[0] == 1
        gapless = whole and prod(home.dims[2:]) == 1
        home = home if gapless and not home.has_halo else placement.copy(x, x.dims, PLAIN)
        home.pin()
    placement.set(y, Tensor(y.name, y.dtype, y.dims, parent=home, space=home.space))
    placement.steps.append(Placed(node.name, node.op.name, "view", "view", str(node.origin), node))
    return True


def _place_parts(placement: Placement, node: Node) -> bool:
    """Place a node that joins or cuts (Concat, Split, Slice) so that parts lie inside the whole;
    inputs of a Concat that cannot are copied into it. Returns False, with nothing done, if no part
    can lie so, or a kernel is forced for the node."""
    if (
        "move" not in node.op.traits
        or forced(node.name, node.op.name, placement.overrides)
        or not all(v is None or is_native(v) for v in (*node.inputs, *node.outputs))
    ):
        return False
    parts = free_split(node, placement.homes) or free_concat(node, placement.homes)
    if parts is None:
        return False
    for value, tensor in parts.aliases:
        placement.set(value, tensor)
    if node.output not in placement.homes:
        placement.set(node.output, parts.whole)
    for value, start in parts.pending:
        whole = parts.whole
        dest = Tensor(
            f"{value.name}.part", value.dtype, value.dims, whole.block, parent=whole, part=start
        )
        source = placement.read(value, Layout(whole.block), value.dims)
        placement.convert(value, source, dest)
    placement.steps.append(
        Placed(node.name, node.op.name, "view", "in place", str(node.origin), node)
    )
    return True


def place_native(
    placement: Placement, node: Node, results: set[Value], proven: bool = True
) -> None:
    """Add the step that computes one node: by the best kernel, or by the operator's reference where
    no kernel takes it. If the node's sizes are only declared, not `proven`, or its results have a
    count that only the run tells (`with_room`), only kernels that check sizes are considered.
    `results` as in `place_node`."""
    force = forced(node.name, node.op.name, placement.overrides)
    room = with_room(node)
    offered, checks = (room.node, True) if room else (node, not proven)
    site, found, reason, computed, arrays = offer_of(placement, offered, force, checks)
    rivals = rivals_of(placement, site, found, results) if site is not None else []
    best, measured = best_of(placement, site, rivals) if site is not None else (None, None)
    if best is None or best.choice is None or site is None:
        unproven = "" if proven or found else UNPROVEN
        _place_reference(placement, node, found, reason or unproven)
        return
    choice = best.choice
    meet(best.conditions)
    reads: list[Tensor | None] = []
    for i, (value, layout) in enumerate(zip(site.operands, choice.reads, strict=True)):
        if value is None or layout is None:
            reads.append(None)
            continue
        dims = value.dims
        if i >= len(site.inputs):
            dims = (1,) * (len(site.out.dims) - len(dims)) + dims
        reads.append(placement.read(value, layout, dims))
    writes = []
    for value, layout in zip(site.outputs, choice.writes, strict=True):
        tensor = Tensor(value.name, value.dtype, value.dims, layout.block)
        placement.set(value, tensor)
        writes.append(tensor)
    if choice.by_channels:
        placement.by_channels.update(site.outputs)
    placement.steps.append(
        Placed(
            node.name,
            node.op.name,
            "native",
            best.kernel,
            str(node.origin),
            node,
            site,
            choice,
            reads,
            writes,
            found,
            rivals=rivals,
            measured=measured,
            computed=computed,
            counted=room is not None,
            stated=room.stated if room else -1,
            arrays=arrays,
        )
    )
    for value, tensor in zip(node.outputs, writes, strict=False) if room else ():
        _take(placement, value, tensor)


def _take(placement: Placement, value: Value, room: Tensor) -> None:
    """Set the tensor of `value`, a result whose size only the run tells (NonZero): its node writes
    as many elements as it finds to the beginning of `room`, which has space for the most there may
    be. If the model states the size, a step copies them to a tensor of that size. If not, the
    tensor has no dims, and only reference steps can read it."""
    if not value.type.is_static:
        placement.set(value, Tensor(value.name, value.dtype, (), space="python"))
        return
    tensor = Tensor(value.name, value.dtype, value.dims)
    placement.convert(value, Tensor(room.name, value.dtype, value.dims, parent=room), tensor)
    placement.set(value, tensor)


def _place_reference(
    placement: Placement, node: Node, found: list[Candidate], reason: str, kernel: str = REFERENCE
) -> None:
    """Add the step of a node that its reference computes, or the backend that `kernel` names. Its
    operands are plain. `reason` says why no kernel does; if it is "", the reasons of the
    candidates `found` are joined."""
    reads: list[Tensor | None] = []
    for v in node.inputs:
        if v is None:
            reads.append(None)
        elif v.const is not None and not is_native(v):
            array = as_numbers(v.const, v.dtype)
            reads.append(Tensor(v.name, v.dtype, dims_of(v), space="python", array=array))
        else:
            reads.append(placement.read(v, PLAIN, dims_of(v)))
    writes = []
    for v in node.outputs:
        native = is_native(v) and v.type.size > 0
        tensor = Tensor(v.name, v.dtype, dims_of(v), space="arena" if native else "python")
        placement.set(v, tensor)
        writes.append(tensor)
    if not reason:
        reason = (
            "; ".join(f"{c.kernel}: {c.reason}" for c in found if c.reason)
            or "no kernel is registered"
        )
    placement.steps.append(
        Placed(node.name, node.op.name, "reference", kernel, str(node.origin), node,
               reads=reads, writes=writes, candidates=found, reason=reason)
    )  # fmt: skip


def _place_block(placement: Placement, node: Node, results: set[Value]) -> None:
    """Place a Block node as one step, or the nodes of its body one by one, as `judge` says. For
    `explain`, the way that was not taken is added to the steps' candidates, with the reason.
    `results` as in `place_node`."""
    verdict = judge(placement, node)
    first = len(placement.steps)
    if verdict.together:
        place_native(placement, node, results)
        alone = Candidate(ONE_BY_ONE, Tier.SHAPED, None, verdict.reason)
        placement.steps[-1].candidates.append(alone)
        return
    body = node.attrs["body"]
    inner = dict(zip(body.inputs, node.inputs, strict=True))
    placement.rename(inner)
    kept = results | {b for b, v in zip(body.outputs, node.outputs, strict=True) if v in results}
    for n in body.nodes:
        place_node(placement, n, kept)
    placement.rename({outer: v for v, outer in inner.items() if outer is not None})
    placement.rename(dict(zip(node.outputs, body.outputs, strict=True)))
    name = next(iter(k.name for k in KERNELS.rows() if k.op == "Block"), "Block")
    for step in placement.steps[first:]:
        if step.kind != "view" and step.node is not None:
            step.candidates.append(Candidate(name, Tier.SHAPED, None, verdict.reason))


def _place_micro_batches(
    placement: Placement, micro_batch: MicroBatch, results: set[Value]
) -> None:
    """Add the steps of a run of nodes that computes in micro-batches: the steps for one part of the
    batch, planned for one thread and marked as a region with a new number. Tensors that only
    these steps see are marked likewise, as they then lie in each thread's workspace."""
    first = len(placement.steps)
    region = 1 + max((s.region for s in placement.steps), default=0)
    for outer, inner in micro_batch.cut.items():
        placement.set(inner, part_in(placement.homes[outer], inner))
    placement.rename({inner: outer for outer, inner in micro_batch.whole.items()})
    leaving = {micro_batch.results[v] for v in micro_batch.results if v in results}
    threads = placement.threads
    placement.share(1)
    for node in micro_batch.body.nodes:
        place_node(placement, node, leaving)
    for outer, inner in micro_batch.results.items():
        plain = inner in leaving and not outer.uses
        placement.set(outer, whole_of(placement, outer, inner, plain))
    placement.share(threads)
    for step in placement.steps[first:]:
        step.region, step.micro_batches = region, micro_batch.micro_batches
        for t in step.writes:
            if t.root.space == "arena" and t.lies_inside:
                t.root.region = region


class Settling:
    """Calls `take` with each step of a placement, in order, as soon as its tensors are settled: its
    code can then be generated while later nodes are placed.

    A reader may widen a tensor's halo, or let it lie inside another one. So a tensor is
    settled when all readers of all values that share its memory have been placed.
    """

    def __init__(self, placement: Placement, graph: Graph, take: Callable[[Placed], None]) -> None:
        self._placement, self._take = placement, take
        self._closing: dict[Node, list[Value]] = {}
        last = {v: n for n in graph.nodes for v in n.inputs if v is not None and v.const is None}
        for v, n in last.items():
            self._closing.setdefault(n, []).append(v)
        self._read = last.keys()
        self._open = {v for v in graph.inputs if v in last}
        self._awaited: Value | None = None
        self._done = 0

    def after(self, nodes: Iterable[Node]) -> None:
        """Call this whenever further `nodes` of the graph, in order, have been placed. Settles
        steps in order, up to the first one that has a tensor in memory that a later node will
        read."""
        for n in nodes:
            self._open.update(v for v in n.outputs if v in self._read)
            self._open.difference_update(self._closing.get(n, ()))
        if self._awaited in self._open:
            return
        self._awaited = None
        roots = {t.root: v for v in self._open for t in self._placement.tensors(v)}
        for step in self._placement.steps[self._done :]:
            for t in step.tensors:
                self._awaited = self._awaited or roots.get(t.root)
            if self._awaited is not None:
                return
            self._settle(step)

    def finish(self) -> None:
        """Settle all remaining steps: all nodes have been placed."""
        for step in self._placement.steps[self._done :]:
            self._settle(step)

    def _settle(self, step: Placed) -> None:
        for t in step.tensors:
            t.settle()
        self._take(step)
        self._done += 1
