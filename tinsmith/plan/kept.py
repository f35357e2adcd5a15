"""Outputs that are kept in an input's memory: states, of which a run writes only what is new."""

from __future__ import annotations

from typing import Any

from tinsmith.graph import Graph, Value
from tinsmith.kernels.select import forced
from tinsmith.ops._move import EVEN, moves_of
from tinsmith.plan.options import PlanOptions
from tinsmith.records import NamedTuple


class Kept(NamedTuple):
    """A graph as it is planned; by the number of an output, the input in whose memory it is kept;
    and the outputs as callers see them: names and dims, where these are static."""

    graph: Graph
    inputs: dict[int, int]
    shown: list[tuple[str, tuple[Any, ...]]]


def kept_outputs(graph: Graph, options: PlanOptions) -> Kept:
    """The outputs among `options.kept` that are their input with some elements replaced, by a node
    that alone reads it; or the first rows of that: such an output is then all of it, so that
    nothing is cut out, and its first rows are what callers see."""
    shown = [(v.name, v.dims if v.type.is_static else ()) for v in graph.outputs]
    found: dict[int, int] = {}
    for k, i in (options.kept or {}).items():
        whole = _whole(graph.outputs[k])
        node, x = whole.producer, graph.inputs[i]
        if (
            node is not None
            and "overwrites" in node.op.traits
            and node.inputs[0] is x
            and len(x.uses) == 1
            and not forced(node.name, node.op.name, options.overrides or {})
            and graph.outputs.count(graph.outputs[k]) == 1
        ):
            found[k] = i
    if found:
        graph = graph.clone()
        outputs = list(graph.outputs)
        for k in found:
            outputs[k] = _whole(outputs[k])
        graph.outputs = outputs
        graph.sweep()
    return Kept(graph, found, shown)


def _whole(value: Value) -> Value:
    """The value of which this one is the first places along an axis; else itself."""
    node = value.producer
    if node is None or not value.type.is_static:
        return value
    move = moves_of(node)[value.index]
    x = node.inputs[0] if node.inputs else None
    if move is None or x is None or len(move.parts) != 1 or not x.type.is_static:
        return value
    cut = move.parts[0].cut(x.dims)
    if cut is None or not isinstance(cut[1], EVEN):
        return value
    return x if cut[1].start == 0 and cut[1].step == 1 and cut[1].stop <= x.dims[cut[0]] else value
