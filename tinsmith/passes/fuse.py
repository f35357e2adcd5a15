"""Elementwise chains become one node, or the last instructions of the node that feeds them."""

from __future__ import annotations

import heapq

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.graph.types import name_of
from tinsmith.ops import OPS
from tinsmith.passes.conv import NORM, affine, batch_norm
from tinsmith.passes.facts import BYTES, shape_of
from tinsmith.passes.manager import Context, register
from tinsmith.passes.regions import enclose
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip

lower = RuleSet("lower-norm", "Stored-statistics norms become a factor and a term.")
register("machine")(lower)


@lower.rule(batch_norm("x"), tolerance=2e-5, x=(2, 4, 3, 4), **NORM)
def lower_batchnorm(x: Value, bn: Node) -> Value:
    """bn(x) -> x * k + (shift - mean * k), with k = scale / sqrt(var + eps)."""
    k, t = affine(bn)
    tail = (1,) * max(len(shape_of(x)) - 2, 0)
    if len(shape_of(x)) < 2 or not (np.all(np.isfinite(k)) and np.all(np.isfinite(t))):
        raise Skip("x has no channel axis, or the factors are not finite")
    y = OPS["Mul"](x, k.astype(x.dtype).reshape(-1, *tail))
    return OPS["Add"](y, t.astype(x.dtype).reshape(-1, *tail))


@register("machine")
@dataclass(frozen=True)
class FuseElementwise:
    """An anchor and the elementwise nodes after it, or elementwise nodes alone, become Fused.

    These nodes are a region. It has one result, which is read outside or is a graph output. All its
    nodes have the result's shape and one element type, except conversions between float32 and
    bytes, and nodes after a product of bytes, whose sums are int32. Constants of one element lie in
    the body of the Fused node; other constants and values are its inputs.

    max_nodes: how many nodes a region may have.
    anchors: operators that count as anchors besides those with the trait `anchor`.
    """

    max_nodes: int = 64
    anchors: tuple[str, ...] = ()

    def run(self, graph: Graph, context: Context) -> int:
        graph.sweep()
        order = {node: i for i, node in enumerate(graph.nodes)}
        outputs = set(graph.outputs)
        taken: set[Node] = set()
        regions: list[list[Node]] = []
        for node in reversed(graph.nodes):
            if self._is_anchor(node) and node not in taken:
                region = self._after(node, order, outputs, taken)
                if len(region) > 1:
                    taken.update(region)
                    regions.append(region)
                elif node.output.uses:
                    context.refuse("fuse-elementwise", node.name, _why_not(node, outputs, taken))
        for region in regions:
            self._before(region, outputs, taken)
        for node in reversed(graph.nodes):
            if node not in taken and _is_elementwise(node):
                region = [node]
                self._before(region, outputs, taken)
                if len(region) > 1:
                    taken.update(region)
                    regions.append(region)
        for region in regions:
            region = sorted(region, key=order.__getitem__)
            anchor = next((n for n in region if "elementwise" not in n.op.traits), region[0])
            enclose(graph, "Fused", region, anchor, 1)
        return len(regions)

    def _is_anchor(self, node: Node) -> bool:
        return "anchor" in node.op.traits or node.op.name in self.anchors

    def _after(
        self, anchor: Node, order: dict[Node, int], outputs: set[Value], taken: set[Node]
    ) -> list[Node]:
        """The largest region of an anchor and elementwise nodes after it, in graph order, of which
        one value is read outside, that of the last node; else the anchor alone. So no node outside
        can lie between two of its nodes. `order` has the index of each node in the graph's order,
        `taken` the nodes of other regions."""
        out = anchor.output
        if any(v.uses or v in outputs for v in anchor.outputs[1:]):
            return [anchor]
        region: dict[Node, None] = {anchor: None}
        ends, best = {anchor}, 1
        heap = [(order[u], u) for u in set(out.uses)]
        heapq.heapify(heap)
        queued = set(out.uses)
        while heap and len(region) < self.max_nodes:
            node = heapq.heappop(heap)[1]
            if node in taken or not _follows(node, anchor):
                continue
            region[node] = None
            for user in node.output.uses:
                if user not in queued:
                    queued.add(user)
                    heapq.heappush(heap, (order[user], user))
            ends.add(node)
            read = {v.producer for v in node.inputs if v is not None}
            ends -= {n for n in (node, *(ends & read)) if not _leaves(n, region, outputs)}
            if len(ends) == 1 and _may_end(next(iter(ends)), anchor):
                best = len(region)
        return list(region)[:best]

    def _before(self, region: list[Node], outputs: set[Value], taken: set[Node]) -> None:
        """Add to a region (and to `taken`) the elementwise nodes before it whose results only its
        elementwise nodes read, then the nodes before these, and so on, up to `max_nodes`. Nodes
        whose results the anchor reads stay outside: they must be complete before it starts."""
        result = region[-1].output
        work = [n for n in region if not self._is_anchor(n)]
        inside = set(work)
        while work:
            node = work.pop(0)
            for v in dict.fromkeys(node.inputs):
                producer = None if v is None else v.producer
                if producer is None or producer in inside or producer in taken:
                    continue
                if len(region) >= self.max_nodes or not _fits(producer, result):
                    continue
                if producer.output in outputs or not inside.issuperset(producer.output.uses):
                    continue
                inside.add(producer)
                taken.add(producer)
                region.insert(0, producer)
                work.append(producer)


MIXED = (*BYTES, "float32")
"""Element types between which a region may convert."""


def _is_elementwise(node: Node) -> bool:
    """Whether a node may be in a region: it is elementwise, of known rank, with one floating-point
    type for all inputs and the output, or leads from bytes to float32 or back."""
    if "elementwise" not in node.op.traits or len(node.outputs) != 1:
        return False
    dtype = node.output.dtype
    x = node.inputs[0] if node.op.traits & {"conversion", "rescales"} else None
    if x is not None and node.output.shape is not None:
        kinds = {name_of(dtype), name_of(x.dtype)}
        if "float32" in kinds and kinds < set(MIXED):
            return True
    if dtype.kind not in "fV" or node.output.shape is None:
        return False
    return all(v is None or v.dtype == dtype for v in node.inputs)


def _fits(node: Node, result: Value) -> bool:
    """Whether a node may be in the region whose result is `result`: it is elementwise
    (`_is_elementwise`), of the same shape, and of the same type or both of MIXED."""
    dtypes = {name_of(node.output.dtype), name_of(result.dtype)}
    return (
        _is_elementwise(node) and (len(dtypes) == 1 or dtypes <= set(MIXED))
        and result.shape is not None and node.output.shape == result.shape
    )  # fmt: skip


AFTER_BYTES = (*BYTES, "int16", "uint16", "int32", "float32", "bool")
"""Element types in the elementwise nodes that finish a product of bytes, after its int32 sums."""


def _follows(node: Node, anchor: Node) -> bool:
    """Whether a node may be part of the elementwise tail that an anchor's kernel computes on its
    results: it is elementwise, of their shape and type (`_fits`). Behind sums of products of bytes,
    which are int32, its inputs and output may be of any type in AFTER_BYTES."""
    out = anchor.output
    if out.dtype != np.int32 or any(
        [v is not None and name_of(v.dtype) not in BYTES for v in anchor.inputs]
    ):
        return _fits(node, out)
    if "elementwise" not in node.op.traits or len(node.outputs) != 1:
        return False
    kinds = {name_of(v.dtype) for v in (node.output, *node.inputs) if v is not None}
    return kinds <= set(AFTER_BYTES) and out.shape is not None and node.output.shape == out.shape


def _may_end(node: Node, anchor: Node) -> bool:
    """Whether a node may be the last of a fused tail: the anchor's kernel can store its type: the
    anchor's own, any if that is int32, bytes if the anchor `narrows`."""
    kind, own = node.output.dtype, anchor.output.dtype
    return kind == own or own == np.int32 or ("narrows" in anchor.op.traits and kind.name in BYTES)


def _leaves(node: Node, region: dict[Node, None], outputs: set[Value]) -> bool:
    out = node.output
    return out in outputs or any(u not in region for u in out.uses)


def _why_not(node: Node, outputs: set[Value], taken: set[Node]) -> str:
    """A text that tells why no node after an anchor was fused to it."""
    out = node.output
    if any(v.uses or v in outputs for v in node.outputs[1:]):
        return "its other outputs are used"
    if out in outputs:
        return "its result is a graph output"
    users = list(dict.fromkeys(out.uses))
    unfit = [u for u in users if not _follows(u, node)]
    if unfit:
        first = unfit[0]
        kind = (
            "another shape or element type"
            if "elementwise" in first.op.traits
            else "not elementwise"
        )
        return f"its result is read by {first.op.name} {first.name!r}, which is {kind}"
    busy = [u.name for u in users if u in taken]
    if busy:
        return f"{busy[0]!r} is already computed with a later node"
    return "its result is read in several places that do not come together"
