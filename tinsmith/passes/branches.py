"""An If whose condition is known gives way to the branch that it takes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import replace_outputs


@register("portable")
@dataclass(frozen=True)
class TakeBranches:
    """The nodes of the branch that a known condition takes stand where the If stood.

    Exporters leave such conditions behind, and nothing is known of shapes beyond an If whose
    branches differ.
    """

    operators: ClassVar = frozenset(("If",))

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            if node.op.name != "If" or node.inputs[0] is None or node.inputs[0].const is None:
                continue
            if replace_outputs(graph, node, _inlined(graph, node, node.inputs[0].const)):
                changes += 1
            else:
                context.refuse("take-branches", node.name, "a graph output would lose its name")
            graph.sweep()  # of the If and its branches' captured values, or of the refused copy
        return changes


def _inlined(graph: Graph, root: Node, condition: np.ndarray[Any, Any]) -> tuple[Value, ...]:
    """The outputs of a copy of the taken branch, before the If."""
    branch = root.attrs["then_branch" if condition.reshape(()) else "else_branch"]
    env: dict[Value, Value | None] = dict(zip(branch.inputs, root.inputs[1:], strict=True))

    def here(v: Value | None) -> Value | None:
        if v is not None and v not in env:
            env[v] = graph.const(v.const, v.name)
        return None if v is None else env[v]

    for node in branch.nodes:
        inputs = [here(v) for v in node.inputs]
        names = [v.name for v in node.outputs]
        copy = graph.add(
            node.op, *inputs, name=node.name, origin=node.origin, outputs=names, before=root,
            **node.attrs,
        )  # fmt: skip
        env.update(zip(node.outputs, copy.outputs, strict=True))
    found = tuple(here(v) for v in branch.outputs)
    return tuple(v for v in found if v is not None)
