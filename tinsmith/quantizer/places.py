"""Where a graph is quantised: the operators that will compute with whole numbers, and the values
that are quantised for them.

The form is DequantizeLinear, a float operator, elementwise nodes, QuantizeLinear. A value that
several nodes read is quantised once, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._weights import Weights, is_matrix_product, weights_of

CARRIERS = ("Reshape", "Transpose", "Slice", "Split", "MaxPool")
"""Operators whose results are elements of their first input: quantised before instead of after."""
POOLS = ("GlobalPool", "AveragePool")
"""Operators that read bytes where an operator with weights has made their input."""


def weighted(node: Node) -> Weights | None:
    """Which inputs of a node hold weights and data (`Weights`), if the former are constant and the
    latter computed, all in float32; else None. Recurrent layers keep their data in float32: only
    their weights are quantised."""
    found = weights_of(node)
    if found is None or len(node.inputs) <= max(found.inputs):
        return None
    for i in (*found.inputs, *found.data):
        v = node.inputs[i]
        if v is None or v.dtype.name != "float32" or (v.const is None) == (i in found.inputs):
            return None
    return found


def axis_of(node: Node, found: Weights) -> int | None:
    """The axis of a node's weights along which each place has a scale of its own; None if there can
    be one scale only: for grouped weights whose channels lie along another axis than the first."""
    v = node.inputs[found.inputs[0]]
    assert v is not None and v.const is not None
    axis = found.axis % v.const.ndim if v.const.ndim else None
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
    """The nodes to quantise, in order: those for which `takes` holds and, with `products`, products
    of two computed matrices, without those whose names are in `keep`."""
    return [
        n for n in graph.nodes if n.name not in keep and (takes(n) or (products and is_product(n)))
    ]


def data_of(node: Node) -> list[Value]:
    """The computed values that a node multiplies, by weights or by each other."""
    found = weighted(node)
    places = found.data if found is not None else (0, 1)
    return [v for i in places if (v := node.inputs[i]) is not None]


def root_of(v: Value) -> Value:
    """The value from which nodes that only move elements (CARRIERS) make v, or v itself. Quantising
    it in v's place lets these nodes move bytes."""
    while v.producer is not None and v.producer.op.name in CARRIERS:
        if len(v.producer.outputs) > 1 and v.producer.op.name == "MaxPool":
            break
        before = v.producer.operand(0)
        v = before
    return v


def computed(node: Node) -> list[Value]:
    """The inputs of a node that are not constant."""
    return [v for v in node.inputs if v is not None and v.const is None]


def tail_of(v: Value) -> Node | None:
    """The convolution or product that v is finished from: in conv -> relu -> v it is conv.

    Between both lie only elementwise nodes that have one input which is not constant, and each
    value on the way is read by the next node alone. None where v is made in another way, or the
    node at the beginning has no weights."""
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
    """The values to quantise: value -> its root, whose range it has. These are the data of the
    nodes, what pools read of their results, and, where an elementwise node joins several results,
    all but the last."""
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
            # One operator ends in the sum, the last; what others give it is stored as bytes.
            tails = [(v, tail) for v, tail in tails if v not in found and len(v.uses) == 1]
            tails.sort(key=lambda one: order[one[1]])
            for v, _ in tails[:-1]:
                take(v)
    return found
