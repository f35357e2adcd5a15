"""Infers output types again from the present inputs, and compares them with the stored types.

With a wrong type, left behind by a pass, generated code would read beyond the end of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinsmith.errors import TypeRuleError
from tinsmith.graph.core import Node
from tinsmith.graph.origin import at_node
from tinsmith.graph.types import Type, compatible


def checked_types(node: Node) -> Sequence[Type]:
    """The types of a node's outputs, inferred from its present inputs; the node is not changed.
    Raises TypeRuleError, naming node and origin, if the inputs do not fit the operator, or an
    inferred type contradicts that of the output."""
    try:
        inferred = node.op.infer(node.inputs, node.attrs)
        for wrong in mismatches(node, inferred):
            raise TypeRuleError(wrong)
    except TypeRuleError as error:
        raise at_node(error, node.origin, node.op, node.inputs) from error
    return inferred


def check_types(nodes: Iterable[Node]) -> None:
    """Raise TypeRuleError if `checked_types` does for one of the nodes. Those that hold graphs
    (`control`: If, Loop, Fused, ...) are skipped: their types follow from the nodes in these."""
    for node in nodes:
        if "control" not in node.op.traits:
            checked_types(node)


def mismatches(node: Node, inferred: Sequence[Type]) -> Iterator[str]:
    """A message for each output whose stored type contradicts the one in `inferred`, or one if
    there are not as many outputs as inferred types; nothing where all agree."""
    if len(inferred) != len(node.outputs):
        yield f"it has {len(node.outputs)} outputs, but its operator gives {len(inferred)}"
        return
    for v, t in zip(node.outputs, inferred, strict=True):
        if not compatible(v.type, t):
            yield f"its output {v.name!r} was known as {v.type}, but its operator gives {t}"
