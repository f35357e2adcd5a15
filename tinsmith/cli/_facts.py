"""Counts nodes, parameters and operations of a graph, without compiling it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from tinsmith.cli._sizes import assumed
from tinsmith.compiler.hints import sized
from tinsmith.errors import ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, Node
from tinsmith.passes import Report
from tinsmith.passes.shapes import with_sizes
from tinsmith.records import dataclass


@dataclass
class Facts:
    """Counts over a graph and those nested in it. `parameters` are elements of constants.

    graph    its copy with sizes for free dimensions
    flops    operator -> operations of its nodes, if their shapes are known
    unsized  number of nodes of unknown shapes
    assumed  free dimensions that the user gave no size -> the size with which they are counted
    """

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
    """Count over a graph with the given sizes of free input dimensions, and 1 for the others. If no
    size is given, and the graph does not fit sizes of 1, free sizes count as unknown. Raises
    TypeRuleError, ReferenceFailed for given sizes that do not fit."""
    types = {v.name: v.type for v in graph.inputs}
    unsaid = assumed(types, sizes)
    try:
        chosen = {n: sized(t, {**sizes, **unsaid}) for n, t in types.items() if not t.is_static}
        found = Facts(with_sizes(graph, chosen), assumed=unsaid)
    except (TypeRuleError, ReferenceFailed):
        if sizes:
            raise
        found = Facts(with_sizes(graph, {}))
    for one in graphs_in(found.graph):
        for node in one.nodes:
            _count_work(found, node)
    for one in graphs_in(graph):
        for node in one.nodes:
            found.nodes += 1
            found.ops[node.op.name] += 1
        for value in one.constants():
            found.parameters += value.array.size
            found.parameter_bytes += value.array.nbytes
            found.by_dtype[value.dtype.name] += value.array.size
    return found


def _count_work(found: Facts, node: Node) -> None:
    op: Any = node.op
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if all(v.type.is_static for v in values):
        found.flops[op.name] += op.flops(node.inputs, node.outputs, node.attrs)
    else:
        found.unsized += 1


def graphs_in(graph: Graph) -> Iterator[Graph]:
    """Yield the graph, and those that its nodes hold as attributes, at any depth."""
    yield graph
    for node in graph.nodes:
        for sub in node.graphs.values():
            yield from graphs_in(sub)


def changes_of(reports: Iterable[Report]) -> dict[str, int]:
    """Name of a pass -> number of its changes, for passes that changed something."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.changes)
    return {name: n for name, n in total.items() if n}
