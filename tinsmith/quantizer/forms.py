"""The two forms of a quantised graph: "qdq" has pairs of QuantizeLinear and DequantizeLinear around
float operators; "ncnn" computes integer products, as ncnn's int8 layers do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops._weights import is_convolution, is_matrix_product
from tinsmith.quantizer import places
from tinsmith.quantizer.insert import Rounded, insert
from tinsmith.quantizer.scales import Scale
from tinsmith.records import dataclass
from tinsmith.writers.rows import unused

Values = dict[Value, Value]


@dataclass(frozen=True)
class Form:
    """A form of quantised graphs, as functions.

    takes   (node) -> whether a node with constant weights can be quantised
    root    (value) -> the value whose range is used for its scale
    values  (graph, nodes to quantise) -> {value to quantise: its root}
    insert  quantises nodes of a graph, in place, as `insert.insert`
    bits    (node) -> bits of its weights, where the settings ask for 8
    """

    name: str
    takes: Callable[[Node], bool]
    root: Callable[[Value], Value]
    values: Callable[[Graph, Collection[Node]], Values]
    insert: Callable[[Graph, list[Node], Mapping[Value, Scale], Rounded], None]
    bits: Callable[[Node], int] = lambda node: 8
    symmetric: bool = False
    """Whether activations have no zero points."""


# ---- ncnn's layers


def _is_layer(node: Node) -> bool:
    """Whether ncnn has an int8 layer for a node: Convolution, ConvolutionDepthWise with one output
    channel in each group (both with two spatial axes), InnerProduct (data of rank 2 or 3 times a
    constant matrix); none of them with a computed bias."""
    found = places.weighted(node)
    if found is None or not (is_convolution(node) or is_matrix_product(node)):
        return False
    if len(places.computed(node)) > 1:
        return False
    w, x = node.operand(found.inputs[0]).array, node.operand(found.data[0])
    if is_matrix_product(node):
        return found.data == (0,) and w.ndim == 2 and x.rank in (2, 3)
    return w.ndim == 4 and node.attrs["group"] in (1, w.shape[0])


def _bits(node: Node) -> int:
    """Return the bits of a convolution's or product's weights: 8; but 6 where ncnn may use
    Winograd's F(4x4,3x3) in int16, which larger weights would overflow (the rule of its tool
    ncnn2table)."""
    if not is_convolution(node):
        return 8
    steps = {*(node.attrs["stride"] or (1,)), *(node.attrs["dilation"] or (1,))}
    one = steps | {node.attrs["group"]} == {1}
    w = node.operand(1)
    return 6 if one and w.dims[2:] == (3, 3) else 8


def _inputs(graph: Graph, nodes: Collection[Node]) -> Values:
    return {v: v for node in nodes for v in places.data_of(node)}


def insert_layers(
    graph: Graph, nodes: list[Node], scales: Mapping[Value, Scale], rounded: Rounded
) -> None:
    """Replace nodes by the computation of ncnn's int8 layers, in place: data rounded to int8 (once
    for all readers), integer products, a float factor and bias for each output. Nodes whose data
    are not in `scales` stay."""
    bytes_of: Values = {}
    names: list[tuple[Node, str]] = []
    given = [(node, scales.get(places.data_of(node)[0])) for node in nodes]
    for node, data in given:
        if data is None:
            continue
        at, (x,) = _Adding(graph, node), places.data_of(node)
        q, scale = rounded(node, 1)
        bottom = multiplier(data)
        if x not in bytes_of:
            bytes_of[x] = at.bytes(x, bottom)
        whole = at.product(bytes_of[x], graph.const(q, f"{node.name}_weight"))
        factor = np.float32(1) / (bottom * multiplier(scale))
        outputs = q.shape[-1] if is_matrix_product(node) else q.shape[0]
        y = at("Mul", at("Cast", whole, to="float32"), at.outputs(np.full(outputs, factor)))
        if (bias := places.bias_of(node)) is not None:
            y = at("Add", y, at.outputs(bias.array))
        graph.replace(node.output, y)
        assert whole.producer is not None
        names.append((whole.producer, node.name))
    graph.sweep()
    for made, name in names:
        made.name = name
    graph.take_names()


WEIGHTS = "_param_0"
"""Suffix of a layer's name in the line of a calibration table with the scales of its weights."""


def table_of(scales: Mapping[str, tuple[Scale, Scale]]) -> str:
    """Return the text of ncnn's calibration table (see `table.py`): the lines of all weights, then
    those of data. `scales`: name of a layer -> (scale of its weights, scale of its data)."""

    def line(name: str, scale: Scale) -> str:
        return " ".join([name, *(f"{v:.9g}" for v in multiplier(scale).reshape(-1).tolist())])

    lines = [line(name + WEIGHTS, weights) for name, (weights, _) in scales.items()]
    lines += [line(name, data) for name, (_, data) in scales.items()]
    return "\n".join([*lines, ""])


def by_title(nodes: Collection[Node]) -> dict[str, Node]:
    """Return the name of the layer in ncnn's files -> node: the name in the source model, or the
    node's own if that is empty or taken; with a number if that is taken, too."""
    found: dict[str, Node] = {}
    for node in nodes:
        told = node.origin.name
        found[unused(told if told and told not in found else node.name, {*found})] = node
    return found


def multiplier(scale: Scale) -> Array:
    """Return ncnn's scale, 1 / `scale.scale`: integer = round(real * ncnn's scale)."""
    return (1 / scale.scale.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class _Adding:
    """Adds nodes that will replace `node`, before it: `adding("Mul", x, y)` returns the result."""

    graph: Graph
    node: Node

    def __call__(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return OPS[op](*inputs, before=self.node, origin=self.node.origin, **attrs)

    def bytes(self, x: Value, scale: Array) -> Value:
        """Add nodes for x * scale as int8, rounded, halves away from zero, and clipped to -127 to
        127; return the result."""
        by = self("Mul", x, self.graph.const(scale, f"{x.name}_scale"))
        half = self.graph.const(np.float32(0.5), "half")
        near = self("Floor", self("Add", self("Abs", by), half))
        whole = self("Clip", self("Mul", self("Sign", by), near), min=-127.0, max=127.0)
        made = self("Cast", whole, to="int8")
        made.name = self.graph.unique(f"{x.name}_int8")
        return made

    def product(self, x: Value, w: Value) -> Value:
        """Add the product or convolution of int8 tensors, whichever `node` is; return the int32
        result."""
        if is_matrix_product(self.node):
            return self("MatMulInteger", x, w)
        return self("ConvInteger", x, w, **self.node.attrs)

    def outputs(self, numbers: Array) -> Value:
        """Return a constant with a number for each output, in a shape that broadcasts to
        results."""
        dims = (-1,) if is_matrix_product(self.node) else (-1, 1, 1)
        return self.graph.const(
            numbers.astype(np.float32).reshape(dims), f"{self.node.name}_factor"
        )


FORMS = {
    form.name: form
    for form in (
        Form("qdq", lambda node: places.weighted(node) is not None, places.root_of,
             places.quantised_values, insert),
        Form("ncnn", _is_layer, lambda v: v, _inputs, insert_layers, _bits, symmetric=True),
    )
}  # fmt: skip
"""Value of the option `form` of `quantize` -> form."""
