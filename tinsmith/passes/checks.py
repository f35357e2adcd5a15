"""Checks of sizes: gone where they are proven, else part of the node whose result they check."""

from __future__ import annotations

from tinsmith.graph import Graph, Node
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import meet, replace_outputs


@register("portable")
@dataclass(frozen=True)
class DropProven:
    """Checks of sizes whose types say no more than their inputs' are dropped."""

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in _checks(graph):
            x = node.inputs[0]
            assert x is not None
            if node.op.infer(node.inputs, node.attrs) == (x.type,):
                changes += _drop(graph, node)
        return changes


@register("machine")
@dataclass(frozen=True)
class AbsorbChecks:
    """A check of a result that nothing else reads becomes what is planned for that result: its
    kernel checks the sizes, or they are compared with what its reference gives.

    Not in nested graphs, whose nodes are run without a plan.
    """

    def run(self, graph: Graph, context: Context) -> int:
        if context.nested:
            return 0
        changes = 0
        for node in _checks(graph):
            x = node.inputs[0]
            if x is None or x.producer is None or not node.output.type.is_static:
                continue
            if x.uses == [node] and x not in graph.outputs:
                changes += _drop(graph, node)
        return changes


def _checks(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if "check" in node.op.traits]


def _drop(graph: Graph, node: Node) -> bool:
    """Let the input of a check, which takes over type and name, stand in its place; False where a
    graph output would lose its name."""
    x, y, name = node.inputs[0], node.output, node.output.name
    assert x is not None
    if not replace_outputs(graph, node, (x,)):
        if y.uses or y in graph.outputs:
            return False
        x.type = meet(y.type, x.type)
    graph.remove(node)
    if x.name != name and x.producer is not None:
        x.name, y.name = name, x.name
    return True
