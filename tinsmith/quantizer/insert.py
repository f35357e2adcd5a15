"""Edits a float graph into a quantised one of the form "qdq", by QuantizeLinear and
DequantizeLinear around its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.quantizer.places import bias_of, data_of, weighted
from tinsmith.quantizer.scales import Scale

Rounded = Callable[[Node, int], tuple[Array, Scale]]
"""(node, number of an input with weights) -> (the weights as integers, their scale)."""
MOST = 2**31 - 1
"""The greatest int32."""


def insert(
    graph: Graph, nodes: list[Node], scales: Mapping[Value, Scale], rounded: Rounded
) -> None:
    """Quantise a float graph, in place.

    nodes    if all data (`data_of`) of a node have scales, its weights become integers with a
             DequantizeLinear, and a constant bias int32, if it fits; other nodes stay
    scales   each of these values is read through a QuantizeLinear and a DequantizeLinear
    rounded  gives the integer weights
    """
    done = [n for n in nodes if all(v in scales for v in data_of(n))]
    dequantised: dict[tuple[int, int], Value] = {}
    biases = [(n, _bias_of(n, scales)) for n in done]
    for node in done:
        found = weighted(node)
        for i in found.inputs if found is not None else ():
            v = node.operand(i)
            key = id(v.const), i
            if key not in dequantised:
                q, scale = rounded(node, i)
                dequantised[key] = _dequantised(graph, node, q, scale.scale, scale.axis, v.name)
            graph.set_input(node, i, dequantised[key])
    for node, found in biases:
        if found is not None:
            _quantise_bias(graph, node, *found)
    for v, scale in scales.items():
        _pair(graph, v, scale)
    graph.sweep()


def _dequantised(graph: Graph, node: Node, q: Array, scale: Array, axis: int, name: str) -> Value:
    """Add before `node` a DequantizeLinear of q and scale, which stands for the constant called
    `name`, and return its result."""
    made = graph.add(
        OPS["DequantizeLinear"], graph.const(q, f"{name}_quantized"),
        graph.const(scale, f"{name}_scale"), axis=axis, before=node,
        outputs=[f"{name}_dequantized"],
    )  # fmt: skip
    return made.output


def _bias_of(node: Node, scales: Mapping[Value, Scale]) -> tuple[int, int, Scale] | None:
    """Return (number of the input with weights, of the input with the bias, scale of the data) for
    a node with a constant bias; None if it has none."""
    found, bias = weighted(node), bias_of(node)
    if found is None or found.bias is None or bias is None or bias.const is None or not found.data:
        return None
    return found.inputs[0], found.bias, scales[node.operand(found.data[0])]


def _quantise_bias(graph: Graph, node: Node, weights: int, place: int, data: Scale) -> None:
    """Replace a float bias (input `place`) by an int32 one with a DequantizeLinear. Its scale is
    that of the weights (input `weights`) times that of the data, as ONNX Runtime requires. A bias
    beyond int32 stays."""
    bias, own = node.operand(place), node.operand(weights).producer
    assert own is not None
    scale = (own.operand(1).array * data.scale).astype(np.float32)
    whole = np.rint(bias.array / scale.astype(np.float64))
    if not (np.isfinite(whole).all() and np.abs(whole).max(initial=0) < MOST and (scale > 0).all()):
        return
    made = _dequantised(graph, node, whole.astype(np.int32), scale, 0, bias.name)
    graph.set_input(node, place, made)


def _pair(graph: Graph, v: Value, scale: Scale) -> None:
    """Let all readers of a value read it through QuantizeLinear and DequantizeLinear; an output of
    the graph stays the value itself."""
    users = list(dict.fromkeys(v.uses))
    numbers: tuple[Any, Any] = (
        graph.const(scale.scale, f"{v.name}_scale"), graph.const(scale.zero, f"{v.name}_zero"),
    )  # fmt: skip
    q = graph.add(OPS["QuantizeLinear"], v, *numbers, outputs=[f"{v.name}_quantized"])
    d = graph.add(OPS["DequantizeLinear"], q.output, *numbers, outputs=[f"{v.name}_dequantized"])
    if v.producer is not None:
        q.seq = d.seq = v.producer.seq
    for user in users:
        for i, read in enumerate(user.inputs):
            if read is v:
                graph.set_input(user, i, d.output)
