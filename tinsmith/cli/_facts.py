"""What can be said of a graph without compiling it: operators, parameters, arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from tinsmith.errors import ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, Node, Type
from tinsmith.passes.shapes import with_sizes
from tinsmith.records import dataclass


@dataclass
class Facts:
    """What is known of a graph and those nested in it. `graph` is the graph with the sizes; `flops`
    counts operations by operator, of nodes whose shapes are known; `unsized` is the number of nodes
    with unknown shapes; `assumed` are the free dimensions that nobody has given a size, and the
    sizes that they count as."""

    graph: Graph
    nodes: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    parameters: int = 0
    parameter_bytes: int = 0
    by_dtype: Counter[str] = field(default_factory=Counter)
    unsized: int = 0
    assumed: dict[str, int] = field(default_factory=dict)

    @property
    def total_flops(self) -> float:
        return float(sum(self.flops.values()))


def facts_of(graph: Graph, sizes: Mapping[str, int]) -> Facts:
    """What is known where the free input dimensions have these sizes, and 1 where none is named.
    Where no size is given at all, and 1 does not fit, they are unknown."""
    free = dict.fromkeys(d for v in graph.inputs for d in v.shape or ())
    assumed = {d: 1 for d in free if isinstance(d, str) and d not in sizes}
    try:
        found = Facts(with_sizes(graph, _types(graph, sizes)), assumed=assumed)
    except (TypeRuleError, ReferenceFailed):
        if sizes:
            raise
        found = Facts(with_sizes(graph, {}))
    sized = found.graph
    for one in graphs_in(sized):
        for node in one.nodes:
            _count_work(found, node)
    for one in graphs_in(graph):
        for node in one.nodes:
            found.nodes += 1
            found.ops[node.op.name] += 1
        for value in one.constants():
            assert value.const is not None
            found.parameters += value.const.size
            found.parameter_bytes += value.const.nbytes
            found.by_dtype[value.dtype.name] += value.const.size
    return found


def _count_work(found: Facts, node: Node) -> None:
    op: Any = node.op
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if all(v.type.is_static for v in values):
        found.flops[op.name] += op.flops(node.inputs, node.outputs, node.attrs)
    else:
        found.unsized += 1


def graphs_in(graph: Graph) -> Iterator[Graph]:
    """The graph and those that its nodes hold as attributes."""
    yield graph
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from graphs_in(value)


def _types(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Type]:
    """The types of inputs whose free dimensions are set."""
    types: dict[str, Type] = {}
    for v in graph.inputs:
        if v.shape is not None and not v.type.is_static:
            shape = tuple(d if isinstance(d, int) else sizes.get(d, 1) for d in v.shape)
            types[v.name] = v.type.like(shape=shape)
    return types


def sizes_from(graph: Graph, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that input arrays give to the free dimensions."""
    found: dict[str, int] = {}
    for v in graph.inputs:
        for i, d in enumerate(v.shape or ()):
            if isinstance(d, str) and v.name in arrays:
                found[d] = arrays[v.name].shape[i]
    return found
