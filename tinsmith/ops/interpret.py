"""Whole graphs, node by node: their outputs (by references), output types, and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinsmith.errors import GraphError, TypeRuleError
from tinsmith.graph import Graph, OptionalType, Type, Value, same_kind
from tinsmith.graph.evaluate import evaluate
from tinsmith.graph.types import says_more
from tinsmith.ops._op import as_value, need
from tinsmith.ops.declared import Refused


class Refusal(TypeRuleError):
    """A node of a graph does not fit the types of its inputs: every run would end with an error."""


def run_graph(graph: Graph, feeds: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """The outputs of a graph, computed node by node with the numpy references.

    feeds: a value for each input, in order or by name: an array, a list of arrays for a sequence,
    None for an empty optional.

    Raises GraphError for missing feeds, or too many in order; BudgetExceeded and DataError as
    references do; ReferenceFailed, naming the node, where a reference fails otherwise.
    """
    if isinstance(feeds, Mapping):
        if missing := [v.name for v in graph.inputs if v.name not in feeds]:
            raise GraphError(f"graph {graph.name!r} needs the inputs {', '.join(missing)}")
        feeds = [feeds[v.name] for v in graph.inputs]
    if len(feeds) != len(graph.inputs):
        raise GraphError(
            f"graph {graph.name!r} has {len(graph.inputs)} inputs, {len(feeds)} are given"
        )
    env: dict[Value, Any] = {v: as_value(a) for v, a in zip(graph.inputs, feeds, strict=True)}
    kept = set(graph.outputs)
    last = {v: node for node in graph.nodes for v in node.inputs if v is not None}
    for node in graph.nodes:
        arrays = tuple(None if v is None else _array(env, v) for v in node.inputs)
        results = evaluate(node.op, arrays, node.attrs, node.origin)  # type: ignore[arg-type]
        pairs = zip(node.outputs, results, strict=True)
        env.update((v, a) for v, a in pairs if v.uses or v in kept)
        for v in node.inputs:
            if v is not None and last[v] is node and v not in kept:
                env.pop(v, None)
    return [_array(env, v) for v in graph.outputs]


def _array(env: Mapping[Value, Any], v: Value) -> Any:
    return env[v] if v in env or v.const is None else v.const


def infer_graph(graph: Graph, args: Sequence[Value]) -> list[Type]:
    """The output types of a graph whose inputs are the values `args`, of which constants are used.

    Raises TypeRuleError where `args` do not fit the graph's inputs, Refusal where a node does not
    fit the types of its inputs.
    """
    need(
        len(args) == len(graph.inputs),
        f"graph {graph.name!r} has {len(graph.inputs)} inputs, {len(args)} are given: "
        f"{', '.join(v.name for v in graph.inputs)}",
    )
    for v, a in zip(graph.inputs, args, strict=True):
        need(
            same_kind(v.type, a.type) or same_kind(v.type, OptionalType(a.type)),
            f"the input {v.name!r} of graph {graph.name!r} is {v.type}, it is given {a.type}",
        )
        need(
            not says_more(v.type, a.type),
            f"the input {v.name!r} of graph {graph.name!r} is taken for {v.type}, it is {a.type}",
        )
    env: dict[Value, Value] = dict(zip(graph.inputs, args, strict=True))
    for node in graph.nodes:
        inputs = tuple(None if v is None else env.get(v, v) for v in node.inputs)
        if node.op is Refused:
            raise Refusal(f"{node.origin}: {node.attrs['message']}")
        try:
            types = node.op.infer(inputs, node.attrs)
        except TypeRuleError as error:
            raise Refusal(f"{node.origin}: {node.op.name}: {error}") from error
        for v, t in zip(node.outputs, types, strict=True):
            env[v] = Value(graph, t, v.name)
    return [env.get(v, v).type for v in graph.outputs]


def flops_of_graph(graph: Graph) -> float:
    """The number of arithmetic operations of one run; nodes whose types are not static count 0."""
    total = 0.0
    for node in graph.nodes:
        values = (*(v for v in node.inputs if v is not None), *node.outputs)
        if all(v.type.is_static for v in values):
            total += node.op.flops(node.inputs, node.outputs, node.attrs)  # type: ignore[attr-defined]
    return total
