"""Edits a float graph into a quantised one: pairs of QuantizeLinear and DequantizeLinear on values,
whole numbers with a DequantizeLinear in the place of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.quantizer.places import data_of, weighted
from tinsmith.quantizer.scales import Array, Scale

Rounded = Callable[[Node, int], tuple[Array, Scale]]
"""From a node and its input of weights to these in whole numbers, and their scale."""
MOST = 2**31 - 1
"""The greatest int32."""


def insert(
    graph: Graph, nodes: list[Node], scales: Mapping[Value, Scale], rounded: Rounded
) -> None:
    """Make a float graph a quantised one, in place.

    nodes    those of which all data (`data_of`) have scales get their weights as whole numbers
             behind a DequantizeLinear, and a constant bias as int32, if it fits; others stay
    scales   each of these values is read through a QuantizeLinear and a DequantizeLinear
    rounded  (node, number of an input of weights) -> (its whole numbers, their scale)
    """
    done = [n for n in nodes if all(v in scales for v in data_of(n))]
    dequantised: dict[tuple[int, int], Value] = {}
    biases = [(n, _bias_of(n, scales)) for n in done]
    for node in done:
        found = weighted(node)
        for i in found.inputs if found is not None else ():
            v = node.inputs[i]
            assert v is not None and v.const is not None
            key = id(v.const), i
            if key not in dequantised:
                q, scale = rounded(node, i)
                dequantised[key] = _dequantised(graph, node, q, scale, v.name)
            graph.set_input(node, i, dequantised[key])
    for node, found in biases:
        if found is not None:
            _quantise_bias(graph, node, *found)
    for v, scale in scales.items():
        _pair(graph, v, scale)
    graph.sweep()


def _dequantised(graph: Graph, node: Node, q: Array, scale: Scale, name: str) -> Value:
    made = graph.add(
        OPS["DequantizeLinear"], graph.const(q, f"{name}_quantized"),
        graph.const(scale.scale, f"{name}_scale"), axis=scale.axis, before=node,
        outputs=[f"{name}_dequantized"],
    )  # fmt: skip
    return made.output


def _bias_of(node: Node, scales: Mapping[Value, Scale]) -> tuple[int, int, Scale] | None:
    """(input of weights, input of bias, scale of the data) of a node with a constant bias, inputs
    by number; None if it has none."""
    found = weighted(node)
    if found is None or found.bias is None or len(node.inputs) <= found.bias or not found.data:
        return None
    bias, x = node.inputs[found.bias], node.inputs[found.data[0]]
    if bias is None or bias.const is None or x is None:
        return None
    return found.inputs[0], found.bias, scales[x]


def _quantise_bias(graph: Graph, node: Node, weights: int, place: int, data: Scale) -> None:
    """Put an int32 bias, dequantised, in the place of a float one (input `place`). Its scale is
    that of the weights times that of the data, as ONNX Runtime wants it. A bias beyond int32 stays
    as it is."""
    bias, w = node.inputs[place], node.inputs[weights]
    assert bias is not None and bias.const is not None and w is not None
    own = w.producer.inputs[1] if w.producer is not None else None
    assert own is not None and own.const is not None
    scale = (own.const * data.scale).astype(np.float32)
    whole = np.rint(bias.const / scale.astype(np.float64))
    if not (np.isfinite(whole).all() and np.abs(whole).max(initial=0) < MOST and (scale > 0).all()):
        return
    made = graph.add(
        OPS["DequantizeLinear"], graph.const(whole.astype(np.int32), f"{bias.name}_quantized"),
        graph.const(scale, f"{bias.name}_scale"), axis=0, before=node,
        outputs=[f"{bias.name}_dequantized"],
    )  # fmt: skip
    graph.set_input(node, place, made.output)


def _pair(graph: Graph, v: Value, scale: Scale) -> None:
    """Let every node that reads a value read it through QuantizeLinear and DequantizeLinear; an
    output of the graph keeps the value itself."""
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
