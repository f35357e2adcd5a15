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
    that alone reads it, or several, one after the other; or the first rows of that: such an output
    is then all of it, so that nothing is cut out, and its first rows are what callers see."""
    shown = [(v.name, v.dims if v.type.is_static else ()) for v in graph.outputs]
    found = {
        k: i
        for k, i in (options.kept or {}).items()
        if graph.outputs.count(graph.outputs[k]) == 1
        and _overwrites(_whole(graph.outputs[k]), graph.inputs[i], options)
    }
    if found:
        graph = graph.clone()
        outputs = list(graph.outputs)
        for k in found:
            outputs[k] = _whole(outputs[k])
        graph.outputs = outputs
        graph.sweep()
    return Kept(graph, found, shown)


def _overwrites(value: Value, x: Value, options: PlanOptions) -> bool:
    """Whether a value is x after nodes that replace elements, each of which alone reads what it
    replaces them in."""
    node = value.producer
    if (
        node is None
        or "overwrites" not in node.op.traits
        or forced(node.name, node.op.name, options.overrides or {})
    ):
        return False
    old = node.inputs[0]
    if old is None or len(old.uses) != 1 or old in old.graph.outputs:
        return False
    return old is x or _overwrites(old, x, options)


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
