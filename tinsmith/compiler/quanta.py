"""What `verify` allows quantised models (docs/numerics.md): a number next to half a quantum may be
rounded the other way, and what follows makes more of it. So each part between results that are
rounded is compared by itself, on equal inputs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from tinsmith.compiler.compare import Difference, compare
from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops.interpret import run_graph
from tinsmith.ops.quant import spread

NEAR = 1e-3
"""How near to half a quantum, in quanta, a number may be rounded either way: rounding errors of
float32 are up to 3e-5 for 255 quanta, and some operators make several. Estimated."""
GIVEN = " (given)"
"""Ends the name of the input that stands for a rounded result."""
ALLOWED = (
    "what differs is allowed: the model is quantised, and numbers next to half a quantum were "
    "rounded the other way. Each of {count} rounded tensors, computed from the same inputs, is the "
    "reference's but for one quantum, in 1 of 10,000 elements or next to half of one "
    "(docs/numerics.md)"
)


def rounded(graph: Graph) -> dict[str, float]:
    """Return name -> size of one quantum, for results that are rounded to quanta: 1 for bytes, the
    scale for bytes that are dequantised, 0 for floats of layers that round inside. {} for graphs
    without operators that quantise."""
    inside = {v.name: 0.0 for n in graph.nodes if n.attrs.get("rounded") for v in n.outputs}
    if not inside and not any("Quantize" in op or "Integer" in op for op in graph.operators()):
        return {}
    for n in graph.nodes:
        if "dequantise" in n.op.traits and n.operand(0).const is None:
            scale = n.operand(1).const
            if scale is not None and scale.size == 1:
                inside[n.output.name] = float(scale.item())
        inside |= {v.name: 1.0 for v in n.outputs if v.type.dtype in (np.int8, np.uint8)}
    return inside


def cut(graph: Graph, names: Container[str]) -> Graph:
    """Return a copy in which the results `names` are outputs, too. Their readers read new inputs
    instead, of the same names with GIVEN at the end."""
    copy = graph.clone()
    found = [v for n in copy.nodes for v in n.outputs if v.name in names]
    outputs = dict.fromkeys([*copy.outputs, *found])
    copy.outputs = []
    for v in found:
        copy.replace(v, copy.input(v.name + GIVEN, v.type))
    copy.outputs = outputs
    return copy


def given(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Return those of `values` (by name) that are in `names`, by the names of `cut`'s new
    inputs."""
    return {n + GIVEN: a for n, a in values.items() if n in names}


def unlike(
    graph: Graph, inputs: Mapping[str, Array], values: Mapping[str, Array], tolerance: float
) -> Difference | None:
    """Compare `values`, results of a graph by name as another engine computes them: return the
    first that is not what references make of `inputs` and of the rounded values before it, None if
    all are."""
    names = {n: step for n, step in rounded(graph).items() if n in values}
    parts = cut(graph, names)
    checked = [v for n in parts.nodes for v in n.outputs if v.name in values]
    makers = {v: q for v in checked if (q := _quantising(v)) is not None}
    sources = [q.operand(0) for q in makers.values()]
    parts.outputs = dict.fromkeys([*checked, *(v for v in sources if v.producer is not None)])
    numbers = {**inputs, **given(values, names)}
    wanted = dict(zip(parts.outputs, run_graph(parts, numbers), strict=True))
    for v in checked:
        q = makers.get(v)
        near = None if q is None else _near_half(q, wanted.get(q.operand(0)))
        found = compare(v.name, values[v.name], wanted[v], tolerance, names.get(v.name), near)
        if not found.ok:
            return found
    return None


def _quantising(v: Value) -> Node | None:
    """The QuantizeLinear that makes v, or the bytes that v is dequantised from; None if none
    does."""
    node = v.producer
    if node is not None and "dequantise" in node.op.traits:
        node = node.operand(0).producer
    return node if node is not None and "quantise" in node.op.traits else None


def _near_half(q: Node, x: Array | None) -> Array | None:
    """Where x, which the node q quantises, lies within NEAR quanta of half a quantum; None if that
    is not known."""
    scale = q.operand(1).const
    if x is None or scale is None:
        return None
    quanta = x.astype(np.float64) / spread(scale, x.shape, q.axis, q.block_size)
    return np.abs(quanta - np.floor(quanta) - 0.5) < NEAR
