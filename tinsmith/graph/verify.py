"""Checks that a graph is well formed: for tests and debugging, after each pass if asked for."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from tinsmith.errors import GraphError, TypeRuleError
from tinsmith.graph.core import Graph, Node, Value
from tinsmith.graph.infer import mismatches
from tinsmith.graph.types import Type, says_more


def verify(graph: Graph, *, types: bool = True, proven: bool = False) -> None:
    """Raise GraphError, naming node and origin, unless the graph is well formed.

    Checked: there is no cycle; every value that is read or is a graph output is an input, constant
    or node output of this graph; use lists are exact; names of values and of nodes are unique;
    arrays agree with the types of their constants. With `types`: stored types agree with those that
    the type rules infer, and with `proven` besides, say no more (true after import or parsing;
    passes prove more by arithmetic). Nested graphs are checked too.
    """
    for node in graph._nodes:
        for v in node.inputs:
            if v is not None and v.producer is not None and v.producer not in graph:
                _fail(graph, node, f"reads {v.name!r} of a node that is not in the graph")
    nodes = graph.nodes
    _uses(graph, nodes)
    _names(graph, nodes)
    for v in graph.constants():
        if v.type != Type(v.array.dtype, v.array.shape):
            raise GraphError(
                f"graph {graph.name!r}: the constant {v.name!r} is {v.type}, but its array is "
                f"{v.array.dtype}{list(v.array.shape)}"
            )
    if types:
        for node in nodes:
            _types(graph, node, proven)
    for node in nodes:
        for sub in node.graphs.values():
            verify(sub, types=types, proven=proven)


def _fail(graph: Graph, node: Node, message: str) -> NoReturn:
    raise GraphError(
        f"graph {graph.name!r}, {node.op.name} {node.name!r} ({node.origin}): {message}"
    )


def _uses(graph: Graph, nodes: list[Node]) -> None:
    """Raise GraphError unless nodes read and the graph outputs only values of the graph, nodes'
    outputs name their producers, and the use lists of all values are exact."""
    inputs = set(graph.inputs)
    seen: Counter[tuple[Value, Node]] = Counter()
    for node in nodes:
        for v in node.inputs:
            if v is None:
                continue
            seen[v, node] += 1
            if v.graph is not graph:
                _fail(graph, node, f"reads {v.name!r} of the graph {v.graph.name!r}")
            if v.producer is None and v.const is None and v not in inputs:
                _fail(graph, node, f"reads {v.name!r}, which nothing produces")
        for i, v in enumerate(node.outputs):
            if v.producer is not node or v.index != i:
                _fail(graph, node, f"its output {v.name!r} does not name it as its producer")
    values = {v for v, _ in seen} | inputs | {v for n in nodes for v in n.outputs}
    listed = Counter((v, user) for v in values for user in v.uses)
    for v, user in (seen - listed).keys() | (listed - seen).keys():
        _fail(
            graph, user, f"uses {v.name!r} {seen[v, user]} times, the value lists {listed[v, user]}"
        )
    for v in graph.outputs:
        known = v in inputs or v.const is not None
        if v.graph is not graph or not (known or v.producer in graph._nodes):
            raise GraphError(f"graph {graph.name!r}: the output {v.name!r} is not in the graph")


def _names(graph: Graph, nodes: list[Node]) -> None:
    owner: dict[str, Value] = {}
    for v in graph.values():
        if owner.setdefault(v.name, v) is not v:
            raise GraphError(f"graph {graph.name!r}: two values are named {v.name!r}")
    twice = [n for n, count in Counter(node.name for node in nodes).items() if count > 1]
    if twice:
        raise GraphError(f"graph {graph.name!r}: two nodes are named {twice[0]!r}")


def _types(graph: Graph, node: Node, proven: bool) -> None:
    try:
        bound = node.op.bind(node.inputs, node.attrs)  # attributes may have been edited wrongly
        inferred = node.op.infer(node.inputs, bound)
    except TypeRuleError as error:
        _fail(graph, node, str(error))
    for wrong in mismatches(node, inferred):
        _fail(graph, node, wrong)
    for v, t in zip(node.outputs, inferred, strict=True):
        if proven and says_more(v.type, t):
            _fail(graph, node, f"its output {v.name!r} is stored as {v.type}, known is only {t}")
