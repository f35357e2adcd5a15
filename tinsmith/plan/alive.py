"""The memory of an engine that allocates each result when it is computed, and frees it behind its
last reader, as ncnn does in its light mode: the measure that a plan is compared with."""

from __future__ import annotations

from tinsmith.graph import Graph, Node, Value
from tinsmith.records import NamedTuple

IN_PLACE = (
    "Softmax", "LogSoftmax", "LRN", "InstanceNorm", "GroupNorm", "LayerNorm", "RMSNorm",
    "MeanVarianceNorm", "LpNorm",
)  # fmt: skip
"""Operators that such an engine computes in the memory of their operand, besides elementwise ones:
each result depends on few others, which it keeps."""


class Moment(NamedTuple):
    """The memory of an engine as in `allocate_and_free` while one node runs.

    name, op   of the node
    allocates  bytes allocated for the node's results; 0 if they take over other memory
    alive      bytes of all tensors that are allocated then, the results included
    known      False if a result has no static shape: that counts as 0 bytes
    """

    name: str
    op: str
    allocates: int
    alive: int
    known: bool = True


def allocate_and_free(graph: Graph) -> list[Moment]:
    """A `Moment` for each node of a graph, in order.

    Constants count nothing. An input counts until its last reader has run, an output from the node
    that computes it to the end. The result of a view shares its operand's memory; so does that of
    an elementwise or `IN_PLACE` node whose only operand besides constants has the result's type and
    no other reader."""
    holder: dict[Value, Value] = {}
    """Value -> the value in whose memory it lies: itself, or one that shares its memory."""
    readers: dict[Value, int] = {}
    """Value with memory of its own -> how many reads of that memory are still to come."""

    def hold(v: Value, root: Value) -> None:
        holder[v] = root
        kept = sum(v is o for o in graph.outputs)
        readers[root] = readers.get(root, 0) + sum(list(n.inputs).count(v) for n in v.uses) + kept

    moments: list[Moment] = []
    alive = 0
    for v in graph.inputs:
        hold(v, v)
        alive += _nbytes(v)
    for node in graph.nodes:
        shared = _shares(node, holder, readers)
        fresh = 0
        for v in node.outputs:
            if shared is None:
                hold(v, v)
                fresh += _nbytes(v)
            else:
                hold(v, shared)
        alive += fresh
        known = all(v.type.is_static for v in node.outputs)
        moments.append(Moment(node.name, node.op.name, fresh, alive, known))
        for v in node.inputs:
            if v is not None and v in holder:
                readers[holder[v]] -= 1
        gone = {holder[v] for v in (*node.inputs, *node.outputs) if v is not None and v in holder}
        alive -= sum(_nbytes(root) for root in gone if readers[root] <= 0)
    return moments


def peak_of(moments: list[Moment]) -> int:
    """The most bytes that are alive at one of the moments; 0 if there are none."""
    return max((m.alive for m in moments), default=0)


def _shares(node: Node, holder: dict[Value, Value], readers: dict[Value, int]) -> Value | None:
    """Return the value whose memory the node's only output takes over, as a view, or elementwise in
    place (`allocate_and_free` says when); None if the node allocates memory. `holder` and `readers`
    tell the state just before the node runs: value (no constants) -> the value in whose memory it
    lies; and that value -> how many reads of its memory are to come, this node's included."""
    if len(node.outputs) != 1 or not node.inputs or node.inputs[0] is None:
        return None
    x = node.inputs[0]
    if x not in holder:
        return None
    if "view" in node.op.traits:
        return holder[x]
    operands = [v for v in node.inputs if v is not None and v.const is None]
    alone = operands == [x] and readers[holder[x]] == 1
    in_place = "elementwise" in node.op.traits or node.op.name in IN_PLACE
    if in_place and alone and x.type.like() == node.output.type.like():
        return holder[x]
    return None


def _nbytes(v: Value) -> int:
    return v.type.nbytes if v.type.is_static else 0
