"""Chooses what is quantised: operators that will compute with integers, and values for them.

In the quantised graph an operator reads the results of DequantizeLinear; elementwise nodes and a
QuantizeLinear follow. A value is quantised once for all its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops._weights import Weights, is_matrix_product, weights_of

CARRIERS = ("Reshape", "Transpose", "Slice", "Split", "MaxPool")
"""Operators whose results are elements of their first input: the input is quantised instead of the
result."""
POOLS = ("GlobalPool", "AveragePool")
"""Operators whose input is quantised if an operator with weights computes it."""


def weighted(node: Node) -> Weights | None:
    """Return which inputs of a node hold weights and which data (`Weights`); None unless the
    weights are constant and not empty, the data computed, and all float32. Of recurrent layers only
    weights are quantised, so they have no data here."""
    found = weights_of(node)
    if found is None or len(node.inputs) <= max(found.inputs):
        return None
    for i in (*found.inputs, *found.data):
        v = node.inputs[i]
        if v is None or v.dtype.name != "float32" or (v.const is None) == (i in found.inputs):
            return None
        if v.const is not None and not v.const.size:
            return None
    return found


def bias_of(node: Node) -> Value | None:
    """Return the bias that a node with constant weights (`weighted`) reads; None if it reads none,
    and for any other node."""
    found = weighted(node)
    if found is None or found.bias is None or len(node.inputs) <= found.bias:
        return None
    return node.inputs[found.bias]


def set_const(graph: Graph, node: Node, place: int, array: Array) -> None:
    """Replace the constant that is input number `place` of a node by an array, as float32."""
    old = node.operand(place)
    graph.set_input(node, place, graph.const(array.astype(np.float32), old.name))


def axis_of(node: Node, found: Weights) -> int | None:
    """Return the axis of a node's weights (`found`) that gets a scale for each index: the output
    channels. None if only one scale for all is possible: for weights of rank 0, and for grouped
    ones whose output channels are not the first axis."""
    rank = node.operand(found.inputs[0]).array.ndim
    axis = found.axis % rank if rank else None
    return None if axis and node.attrs.get("group", 1) > 1 else axis


def is_product(node: Node) -> bool:
    """Whether a node multiplies two matrices of float32 that are both computed."""
    inputs = node.inputs[:2]
    return is_matrix_product(node) and all(
        [v is not None and v.const is None and v.dtype.name == "float32" for v in inputs]
    )


def targets(
    graph: Graph, keep: Collection[str], takes: Callable[[Node], bool], products: bool
) -> list[Node]:
    """Return the nodes to quantise, in order: those for which `takes` is true and, with `products`,
    products of two computed matrices; without nodes named in `keep`."""
    return [
        n for n in graph.nodes if n.name not in keep and (takes(n) or (products and is_product(n)))
    ]


def data_of(node: Node) -> list[Value]:
    """Return the values that a node to quantise (`targets`) multiplies: its data if it has constant
    weights ([x] for Conv(x, w), [] for recurrent layers), else the two factors of a product."""
    found = weighted(node)
    places = found.data if found is not None else (0, 1)
    return [v for i in places if (v := node.inputs[i]) is not None]


def root_of(v: Value) -> Value:
    """Return the value from which v is made by nodes that only move elements (CARRIERS), or v
    itself. If it is quantised in v's place, these nodes move int8 elements."""
    while v.producer is not None and v.producer.op.name in CARRIERS:
        if len(v.producer.outputs) > 1 and v.producer.op.name == "MaxPool":
            break
        v = v.producer.operand(0)
    return v


def computed(node: Node) -> list[Value]:
    """Return the inputs of a node that are not constant."""
    return [v for v in node.inputs if v is not None and v.const is None]


def source_of(v: Value) -> Value:
    """Go back from v through nodes with exactly one computed input each, and return the value where
    that ends, perhaps v itself. v depends on nothing else: where that value is the same for all
    data, v is, too."""
    while v.producer is not None and len(inputs := computed(v.producer)) == 1:
        (v,) = inputs
    return v


def tail_of(v: Value) -> Node | None:
    """Return the node with weights from whose result elementwise nodes, or none, make v: conv for
    conv -> relu -> v. These have one computed input each, of which they are the only reader. None
    if v is made in another way."""
    node = v.producer
    while node is not None and "elementwise" in node.op.traits and len(computed(node)) == 1:
        before = computed(node)[0]
        if len(set(before.uses)) > 1:
            return None
        node = before.producer
    return node if node is not None and weighted(node) is not None else None


def _ends_weighted(v: Value, nodes: Collection[Node]) -> bool:
    """Whether v is the result of one of the nodes, directly or through elementwise nodes."""
    seen: set[Value] = set()
    work = [v]
    while work:
        v = work.pop()
        if v.producer in nodes:
            return True
        if v not in seen and v.producer is not None and "elementwise" in v.producer.op.traits:
            work += computed(v.producer)
        seen.add(v)
    return False


def quantised_values(graph: Graph, nodes: Collection[Node]) -> dict[Value, Value]:
    """Return value to quantise -> its root (`root_of`), whose range is used: the data of the nodes;
    their results that pools (POOLS) read; and where an elementwise node joins the results of
    several (a residual sum), all that it alone reads but that of the last node in the graph. All
    roots are keys, too."""
    found: dict[Value, Value] = {}

    def take(v: Value) -> None:
        root = root_of(v)
        found.setdefault(root, root)
        found.setdefault(v, root)

    chosen = set(nodes)
    for node in nodes:
        for v in data_of(node):
            take(v)
    order = {n: i for i, n in enumerate(graph.nodes)}
    for node in graph.nodes:
        inputs = computed(node)
        tails = [(v, tail) for v in inputs if (tail := tail_of(v)) in chosen and tail is not None]
        if node.op.name in POOLS and _ends_weighted(inputs[0], chosen):
            take(inputs[0])
        elif "elementwise" in node.op.traits and len(inputs) > 1:
            # The last operator computes the sum in its epilogue; it reads the others' results.
            tails = [(v, tail) for v, tail in tails if v not in found and len(v.uses) == 1]
            tails.sort(key=lambda one: order[one[1]])
            for v, _ in tails[:-1]:
                take(v)
    return found
