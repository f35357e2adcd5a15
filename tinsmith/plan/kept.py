"""Outputs that are kept in an input's memory: states, of which a run writes only what is new."""

from __future__ import annotations

from typing import Any

from tinsmith.graph import Graph, Value
from tinsmith.kernels.select import forced
from tinsmith.ops._move import EVEN, moves_of
from tinsmith.plan.options import PlanOptions
from tinsmith.records import NamedTuple


class Kept(NamedTuple):
    """What `kept_outputs` finds.

    graph   the graph to plan: a kept output may be larger there than callers see it
    inputs  number of an output -> number of the input in whose memory it is kept
    shown   (name, dims) of each output as callers see it; dims are () if they are not static
    """

    graph: Graph
    inputs: dict[int, int]
    shown: list[tuple[str, tuple[Any, ...]]]


def kept_outputs(graph: Graph, options: PlanOptions) -> Kept:
    """Find which outputs of `options.kept` can be written in place, into their input's memory.

    Such an output is its input after one or several nodes that replace some elements, each the only
    reader of what it changes. It may also be the first places of such a value along an axis: the
    graph to plan, a copy, then gives the whole value, of which callers see the first places."""
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
    """Whether `value` is the input x after one or several nodes that replace some elements (trait
    `overwrites`), each the only reader of what it changes. False if `options` force a kernel for
    one of these nodes, or what it changes is a graph output."""
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
    """The larger value of which `value` is the first places along one axis, as a Slice from 0 cuts
    them out; `value` itself if it is no such part."""
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
