"""Finds nodes whose sizes do not follow from what they read, before memory is planned for them.

A type may state sizes that only the run can prove, such as those of a Reshape whose target is
computed, if the model declares the result. Code that relied on them would read and write beyond the
end of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.graph.infer import checked_types
from tinsmith.kernels._kernel import elem
from tinsmith.ops.declared import undeclare
from tinsmith.sizes import same


def is_native(value: Value) -> bool:
    """Whether a value can lie in memory that generated code reads: its shape is static, it is not
    known to be empty (a free size may still be 0 in a call), and generated code has a type for its
    elements (`elem`)."""
    if not value.type.is_static or same(value.type.size, 0):
        return False
    try:
        elem(value)
    except TinsmithError:
        return False
    return True


def absorbed(graph: Graph) -> Graph:
    """A copy of the graph in which y = Declared(Op(x)) is y = Op(x), with the declared type, where
    nothing else reads the result of Op (`checked_alone`). Op's kernel, or a comparison after its
    reference, then checks the sizes (`Gate.follows`). The graph itself if there are none."""
    if not any(checked_alone(node, graph) for node in graph.nodes):
        return graph
    graph = graph.clone()
    for node in graph.nodes:
        if x := checked_alone(node, graph):
            x.type = node.output.type
            undeclare(node)
    return graph


def checked_alone(node: Node, graph: Graph) -> Value | None:
    """The value that `node` reads, if that is a `Declared` node with a native result, and the value
    is made by a node, read by nothing else and no output of `graph`. None otherwise."""
    if node.op.name != "Declared" or not is_native(node.output):
        return None
    x = node.inputs[0]
    if x is None or x.producer is None or list(x.uses) != [node] or x in graph.outputs:
        return None
    return x


class Gate:
    """Tells of nodes whether their sizes are proven. Each node is looked at once, and the answer
    remembered: nobody may edit the graph meanwhile."""

    def __init__(self) -> None:
        self._known: dict[Node, bool] = {}

    def follows(self, node: Node) -> bool:
        """Whether the sizes of a node's outputs are proven. If the type of some output is not
        static: True, for any node, because its reference computes it to memory of its own. Else:
        whether the outputs' types follow from its type rule and what it reads; for a region,
        whether those of all its nodes do; for other control flow False. Where False, only kernels
        that check sizes may compute the node, or its reference, whose results are compared with
        the plan. Raises TypeRuleError if types and rule contradict each other."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._follows(node)
        return known

    def _follows(self, node: Node) -> bool:
        if not all([v.type.is_static for v in node.outputs]):
            return True  # computed by its reference, to memory of its own
        if "region" in node.op.traits:
            body = node.attrs["body"]
            same = _types(node.inputs) == _types(body.inputs)
            same = same and _types(node.outputs) == _types(body.outputs)
            return same and all(map(self.follows, body.nodes))
        if "control" in node.op.traits:
            return False
        return [v.type for v in node.outputs] == list(checked_types(node))


def _types(values: Sequence[Value | None]) -> list[Type | None]:
    return [None if v is None else v.type for v in values]
