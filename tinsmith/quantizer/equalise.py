"""Ranges of channels between two layers are made equal, without data and without changing results.

If the first layer computes a channel larger and the second weighs it less, results are the same
where what lies between is positively homogeneous, f(s x) = s f(x). The factor of each channel is
chosen so that both layers' weights of it have the same range. One scale for all channels then loses
little.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._weights import is_convolution
from tinsmith.quantizer.places import computed, weighted
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]

ROUNDS = 20
"""How often all pairs are gone through, at most. Estimated: chains settle in fewer."""
SETTLED = 1e-3
"""The largest relative change of a factor with which a chain counts as settled. Estimated."""


@dataclass(frozen=True)
class Pair:
    """Two convolutions: the output channels of the first are the input channels of the second, but
    for homogeneous nodes between them."""

    first: Node
    second: Node


def pairs_of(graph: Graph) -> list[Pair]:
    """All pairs of convolutions with constant weights that nothing else reads, between which there
    are only homogeneous nodes, whose results nothing else reads either."""
    found = []
    for node in graph.nodes:
        if not is_convolution(node) or weighted(node) is None:
            continue
        v = computed(node)[0]
        while v.producer is not None and _passes(v):
            v = computed(v.producer)[0]
        first = v.producer
        alone = len(v.uses) == 1 and v not in graph.outputs
        if first is None or not is_convolution(first) or weighted(first) is None:
            continue
        if alone and _own_weights(first) and _own_weights(node):
            found.append(Pair(first, node))
    return found


def _passes(v: Value) -> bool:
    """Whether the node that makes v can be skipped on the way back to the first layer: it is
    homogeneous, has one output, and v has one reader and is no output of the graph."""
    node = v.producer
    if node is None or "homogeneous" not in node.op.traits or len(v.uses) != 1:
        return False
    return v not in v.graph.outputs and len(node.outputs) == 1


def _own_weights(node: Node) -> bool:
    """Whether no other node reads the constants (weights, bias) of a node."""
    return all(v is None or v.const is None or len(v.uses) == 1 for v in node.inputs[1:])


def equalise(graph: Graph) -> int:
    """Edit the weights of all pairs of layers, in place, in rounds until factors settle; returns
    the number of pairs."""
    pairs = pairs_of(graph)
    for _ in range(ROUNDS if pairs else 0):
        if max(_equalise(graph, pair) for pair in pairs) < SETTLED:
            break
    return len(pairs)


def _equalise(graph: Graph, pair: Pair) -> float:
    """Multiply each channel in the first layer (weights and bias) by c and divide its weights in
    the second by c, so that its largest weights are equal in both. Returns the largest |c - 1| of
    all channels, which tells whether another round would change anything."""
    w1, w2 = (_const(n.inputs[1]) for n in (pair.first, pair.second))
    r1 = np.abs(w1).reshape(len(w1), -1).max(axis=1).astype(np.float64)
    by_input = _by_input(w2, pair.second.group)
    r2 = np.abs(by_input).max(axis=(1, 2)).astype(np.float64)
    if len(r1) != len(r2):
        return 0.0
    used = (r1 > 0) & (r2 > 0)
    factor = np.ones(len(r1))
    factor[used] = np.sqrt(r2[used] / r1[used])
    _set(graph, pair.first, 1, _rows(w1, factor))
    if len(pair.first.inputs) > 2 and pair.first.inputs[2] is not None:
        _set(graph, pair.first, 2, _const(pair.first.inputs[2]) * factor)
    scaled = by_input / factor[:, None, None]
    _set(graph, pair.second, 1, _from_input(scaled, w2.shape, pair.second.group))
    return float(np.abs(factor - 1).max())


def _const(v: Value | None) -> Array:
    assert v is not None and v.const is not None
    return v.const


def _rows(w: Array, factor: Array) -> Array:
    return w * factor.reshape(-1, *(1,) * (w.ndim - 1))


def _by_input(w: Array, group: int) -> Array:
    """Weights [outputs, inputs of a group, taps...] as [input channel, outputs of its group,
    taps]."""
    outputs, inputs = w.shape[:2]
    apart = w.reshape(group, outputs // group, inputs, -1)
    return apart.transpose(0, 2, 1, 3).reshape(group * inputs, outputs // group, -1)


def _from_input(v: Array, shape: tuple[int, ...], group: int) -> Array:
    outputs, inputs = shape[:2]
    apart = v.reshape(group, inputs, outputs // group, -1).transpose(0, 2, 1, 3)
    return apart.reshape(shape)


def _set(graph: Graph, node: Node, place: int, array: Array) -> None:
    old = node.operand(place)
    graph.set_input(node, place, graph.const(array.astype(np.float32), old.name))
