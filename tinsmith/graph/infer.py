"""Infers output types again from the present inputs, and compares them with the stored types.

This protects memory: if a pass left a wrong type behind, generated code would read beyond the end
of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinsmith.errors import TypeRuleError
from tinsmith.graph.core import Node
from tinsmith.graph.origin import at_node
from tinsmith.graph.types import Type, compatible


def checked_types(node: Node) -> Sequence[Type]:
    """The types of a node's outputs, inferred from its present inputs; the node is not changed.

    Raises TypeRuleError, naming node and origin, if the inputs do not fit the operator, or if an
    inferred type contradicts the one that the output has.
    """
    try:
        inferred = node.op.infer(node.inputs, node.attrs)
        for wrong in mismatches(node, inferred):
            raise TypeRuleError(wrong)
    except TypeRuleError as error:
        raise at_node(error, node.origin, node.op, node.inputs) from error
    return inferred


def check_types(nodes: Iterable[Node]) -> None:
    """Raise TypeRuleError, as `checked_types` does, if a node's inputs do not fit it. Control nodes
    are skipped: their types follow from the nodes in their graphs."""
    for node in nodes:
        if "control" not in node.op.traits:
            checked_types(node)


def mismatches(node: Node, inferred: Sequence[Type]) -> Iterator[str]:
    """One message for each output whose stored type contradicts the one in `inferred`, or one
    message if there are not as many outputs as inferred types; nothing where all agree."""
    if len(inferred) != len(node.outputs):
        yield f"it has {len(node.outputs)} outputs, but its operator gives {len(inferred)}"
        return
    for v, t in zip(node.outputs, inferred, strict=True):
        if not compatible(v.type, t):
            yield f"its output {v.name!r} was known as {v.type}, but its operator gives {t}"
