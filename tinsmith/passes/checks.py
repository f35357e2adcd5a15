"""Checks are dropped where they are proven."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops.declared import undeclare
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import meet


@register("portable")
@dataclass(frozen=True)
class DropProven:
    """Checks of sizes are dropped where the types of their inputs prove them.

    These are Declared nodes whose output type says no more than the type of their input; and
    Required nodes whose condition is a constant that holds. A check stays if a graph output would
    lose its name otherwise.
    """

    operators: ClassVar = frozenset(("Declared", "Required"))

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in graph.nodes:
            x = node.inputs[0] if node.op.name in self.operators else None
            if x is None or not _proven(node, x):
                continue
            if node.output in graph.outputs and (x.producer is None or x in graph.outputs):
                continue  # the graph output would lose its name
            if x.producer is not None:
                x.type = meet(node.output.type, x.type)
            undeclare(node)
            changes += 1
        return changes


def _proven(node: Node, x: Value) -> bool:
    if node.op.name == "Required":
        return x.const is not None and bool(np.all(x.const == node.attrs["value"]))
    return node.op.infer(node.inputs, node.attrs) == (x.type,)
