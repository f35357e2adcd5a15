"""Importers of quantisation. In ncnn, quantised = round(real * scale)."""

from __future__ import annotations

from tinsmith.frontends.ncnn.conv import quantised
from tinsmith.frontends.ncnn.node import Node, Result, active, layer, rank
from tinsmith.graph import Array, Value


def _by(node: Node, array: Array, x: Value) -> Value:
    """`array`, scales or biases, as a constant that broadcasts to x: one number, one for each
    channel, or, for a vector x, one for each element."""
    return node.const(array) if array.size == 1 or rank(x) == 1 else node.channels(array, x)


@layer("Quantize")
def quantize(node: Node) -> Result:
    node.attr("scale_data_size")
    scale = node.scales("scale")
    return quantised(node, node[0], scale[:1] if rank(node[0]) == 1 else scale)


def _real(node: Node, scale: str) -> Value:
    x = node.emit("Cast", node[0], to="float32")
    y = node.emit("Mul", x, _by(node, node.scales(scale, divides=False), x))
    offset = node.weight("bias")
    return node.emit("Add", y, _by(node, offset, x)) if offset.size else y


@layer("Dequantize")
def dequantize(node: Node) -> Result:
    node.ignore("scale_data_size", "bias_data_size")
    return _real(node, "scale")


@layer("Requantize")
def requantize(node: Node) -> Result:
    node.ignore("scale_in_size", "scale_out_size", "bias_size")
    return quantised(node, active(node, _real(node, "scale_in")), node.scales("scale_out"))
