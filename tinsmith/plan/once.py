"""Which nodes depend on sizes alone that a call tells, and are computed once for each set of sizes.

They are computed by their references, in Python. So what has kernels is left to these where all
that it needs has them, too: sizes that differ from call to call then cost no more than others.
"""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.graph import Graph, Node, Value
from tinsmith.kernels._kernel import kernels_for
from tinsmith.sizes import has_sizes

READS_SIZES = frozenset({"Range"})
"""Operators whose kernels take sizes for numbers that they read."""


def once_nodes(graph: Graph, is_native: Callable[[Value], bool]) -> set[Node]:
    """The nodes of a graph that are computed by their references, once for each set of free sizes
    instead of in each run. They read nothing but sizes, constants and each other's results; left
    out are those that a kernel computes and no other of them needs. `is_native` tells whether a
    value can lie in memory."""
    made: set[Value] = set()
    found: list[Node] = []
    for node in graph.nodes:
        if _depends_on_sizes(node, made) and all(map(is_native, node.outputs)):
            made.update(node.outputs)
            found.append(node)
    once: set[Node] = set()
    for node in reversed(found):
        readers = {use for v in node.outputs for use in v.uses}
        if not _has_kernel(node) or readers & once:
            once.add(node)
    return once


def _depends_on_sizes(node: Node, made: set[Value]) -> bool:
    """Whether a node's result follows from free sizes: it reads constants with sizes, or values of
    `made` (which depend on sizes), at least one of them, and else only constants of numbers."""
    if node.op.traits & {"impure", "check", "control"}:
        return False
    values = [v for v in node.inputs if v is not None]
    sized = [v in made or _is_sized(v) for v in values]
    return any(sized) and all(s or v.const is not None for s, v in zip(sized, values, strict=True))


def _is_sized(value: Value) -> bool:
    return value.const is not None and has_sizes(value.const)


def _has_kernel(node: Node) -> bool:
    """Whether generated code can compute the node. A node that reads constants with sizes must be
    one of READS_SIZES, or a view of a value without sizes; any other node must have a kernel."""
    name, traits = node.op.name, node.op.traits
    if any(v is not None and _is_sized(v) for v in node.inputs):
        return name in READS_SIZES or (
            "view" in traits and node.inputs[0] is not None and not _is_sized(node.inputs[0])
        )
    return bool(traits & {"view", "move", "elementwise"}) or bool(kernels_for(name))
