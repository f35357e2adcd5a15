"""Cross-layer equalisation: makes the ranges of channels between two layers equal, without data and
without changing results.

If the first layer's weights for a channel are multiplied by c, and the second's divided by c,
results stay the same if nodes between are positively homogeneous: f(c x) = c f(x), as ReLU. c is
chosen for each channel so that both layers' weights have the same range. Then one scale for all
channels loses little."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._weights import by_channels, from_channels, is_convolution
from tinsmith.quantizer.places import bias_of, computed, set_const, weighted

ROUNDS = 20
"""Rounds over all pairs, at most. Estimated: chains of layers settle in fewer."""
SETTLED = 1e-3
"""Rounds end when no factor differs from 1 by more. Estimated."""


def pairs_of(graph: Graph) -> list[tuple[Node, Node]]:
    """Return all pairs of convolutions with constant weights, the first with a constant bias or
    none, and only homogeneous nodes between them, where nothing else reads the weights or the
    values between: output channels of the first are input channels of the second."""
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
        if alone and len(computed(first)) == 1 and _own_weights(first) and _own_weights(node):
            found.append((first, node))
    return found


def _passes(v: Value) -> bool:
    """Whether the node that makes v may lie between the layers of a pair: it is homogeneous, has
    one output, and v has one reader and is no output of the graph."""
    node = v.producer
    if node is None or "homogeneous" not in node.op.traits or len(v.uses) != 1:
        return False
    return v not in v.graph.outputs and len(node.outputs) == 1


def _own_weights(node: Node) -> bool:
    """Whether no other node reads the constants (weights, bias) of a node."""
    return all(v is None or v.const is None or len(v.uses) == 1 for v in node.inputs[1:])


def equalise(graph: Graph) -> int:
    """Equalise all pairs of layers, in place, in rounds until factors settle. Return the number of
    pairs."""
    pairs = pairs_of(graph)
    for _ in range(ROUNDS if pairs else 0):
        if max(_equalise(graph, pair) for pair in pairs) < SETTLED:
            break
    return len(pairs)


def _equalise(graph: Graph, pair: tuple[Node, Node]) -> float:
    """Multiply each channel in the first layer (weights and bias) by its c, and divide it in the
    second, so that its largest weights are equal in both. Return the largest |c - 1|; 0 where the
    layers' numbers of channels differ, and nothing is changed."""
    first, second = pair
    w1, w2 = first.operand(1).array, second.operand(1).array
    by_input = by_channels(w2, 1, second.group)
    r1, r2 = (np.abs(w).reshape(len(w), -1).max(axis=1).astype(np.float64) for w in (w1, by_input))
    if len(r1) != len(r2):
        return 0.0
    used = (r1 > 0) & (r2 > 0)
    factor = np.ones(len(r1))
    factor[used] = np.sqrt(r2[used] / r1[used])
    set_const(graph, first, 1, w1 * factor.reshape(-1, *(1,) * (w1.ndim - 1)))
    if (bias := bias_of(first)) is not None:
        set_const(graph, first, 2, bias.array * factor)
    scaled = by_input / factor.reshape(-1, *(1,) * (w2.ndim - 1))
    set_const(graph, second, 1, from_channels(scaled, 1, second.group, w2.shape))
    return float(np.abs(factor - 1).max())
