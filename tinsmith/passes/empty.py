"""Tensors without elements are not computed: they are constants, and joins leave them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.graph import Graph, Holder, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.fold import is_pure, put
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import replace_outputs

UPDATES = {"ScatterND": 2, "ScatterElements": 2, "TensorScatter": 1}
"""Operators that write into their first input -> the index of the input that they write there."""


def _is_empty(value: Value | None) -> bool:
    """Whether a value is a tensor, not of strings, that is known to have no elements."""
    if value is None or isinstance(value.type, Holder) or value.dtype == object:
        return False
    return value.type.is_empty


@register("portable", name="drop-empty")
@dataclass(frozen=True)
class DropEmpty:
    """Tensors without elements become constants, and leave joins and scatters that read them."""

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            if node not in graph or not is_pure(node):
                continue
            if all(map(_is_empty, node.outputs)):
                if _has_known_sizes(node) and not any(v.type.is_free for v in node.outputs):
                    arrays = [np.zeros(v.dims, v.dtype) for v in node.outputs]
                    changes += put(graph, node, tuple(arrays))
            elif any(map(_is_empty, node.inputs)):
                changes += _without(graph, node)
                graph.sweep([node])
        return changes


def _has_known_sizes(node: Node) -> bool:
    """Whether the sizes of all inputs are known. If not, a node with an empty result stays, as it
    checks in the run that its inputs fit each other."""
    return all(v is None or isinstance(v.type, Holder) or v.type.is_static for v in node.inputs)


def _without(graph: Graph, node: Node) -> int:
    """Replace a Concat by one without its empty inputs, and a scatter of no elements by its first
    input. Returns 1 if done; 0 for other nodes, or if the type would change."""
    name = node.op.name
    if name in UPDATES and _is_empty(node.inputs[UPDATES[name]]):
        x = node.operand(0)
        return int(x.type == node.output.type and _instead(graph, node, x))
    if name == "Concat":
        kept = [v for v in node.inputs if v is not None and not _is_empty(v)]
        joined = _joined(node, kept)
        return int(joined is not None and _instead(graph, node, joined))
    return 0


def _instead(graph: Graph, node: Node, value: Value) -> bool:
    if replace_outputs(graph, node, (value,)):
        return True
    same = OPS["Identity"](value, name=node.name, origin=node.origin, before=node)
    return replace_outputs(graph, node, (same,))


def _joined(node: Node, kept: Sequence[Value]) -> Value | None:
    if not kept or len(kept) == len(node.inputs):
        return None
    if len(kept) == 1:
        return kept[0] if kept[0].type == node.output.type else None
    made = node.graph.add(
        node.op, *kept, **node.attrs, name=node.name, origin=node.origin, before=node
    )
    if made.output.type == node.output.type:
        return made.output
    node.graph.sweep([made])
    return None
