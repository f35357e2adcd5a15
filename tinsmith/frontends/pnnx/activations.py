"""Importers of activations that are not one to one (`rows`), and of softmax."""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.graph import Value


@operator("nn.PReLU", "F.prelu")
def prelu(node: PnnxNode, input: Value, weight: Any) -> Value:
    slope: Any = node.tensor(weight)
    shape = (-1, *(1,) * max(node.rank(input) - 2, 0))
    if slope.const is not None:
        slope = slope.const.reshape(shape)
    else:
        slope = node.emit("Reshape", slope, node.ints(*shape))
    return node.emit("PRelu", input, slope)


@operator("nn.RReLU", "F.rrelu")
def rrelu(node: PnnxNode, input: Value, *, lower: float = 1 / 8, upper: float = 1 / 3) -> Value:
    return node.emit("LeakyRelu", input, alpha=(lower + upper) / 2)


@operator("nn.Softplus", "F.softplus")
def softplus(node: PnnxNode, input: Value, *, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = node.scaled(input, beta)
    y = node.emit("Softplus", scaled)
    y = y if beta == 1 else node.emit("Div", y, node.number(beta, input))
    if threshold >= 15:  # beyond it x and softplus(x) are the same floats
        return y
    return node.emit("Where", node.emit("Greater", scaled, node.number(threshold, input)), input, y)


@operator("nn.Tanhshrink", "F.tanhshrink")
def tanhshrink(node: PnnxNode, input: Value) -> Value:
    return node.emit("Sub", input, node.emit("Tanh", input))


@operator("nn.Threshold", "F.threshold")
def threshold_(node: PnnxNode, input: Value, *, threshold: float, value: float) -> Value:
    above = node.emit("Greater", input, node.number(threshold, input))
    return node.emit("Where", above, input, node.number(value, input))


@operator("nn.LogSigmoid", "F.logsigmoid")
def logsigmoid(node: PnnxNode, input: Value) -> Value:
    return node.emit("Neg", node.emit("Softplus", node.emit("Neg", input)))


@operator("nn.GLU", "F.glu")
def glu(node: PnnxNode, input: Value, *, dim: int = -1) -> Value:
    half = node.size(input, node.axis(input, dim)) // 2
    a, b = node.emit("Split", input, node.ints(half, half), axis=dim, num_outputs=2)
    return node.emit("Mul", a, node.emit("Sigmoid", b))


@operator(
    *("nn.Softmax", "F.softmax", "torch.softmax", "nn.Softmax2d", "nn.Softmin", "F.softmin"),
    *("nn.LogSoftmax", "F.log_softmax", "torch.log_softmax"),
)
def softmax(node: PnnxNode, input: Value, *, dim: int | None = None, dtype: Any = None) -> Value:
    if node.type == "nn.Softmax2d":
        dim = -3
    elif dim is None:
        dim = 0 if node.rank(input) in (0, 1, 3) else 1
    x = node.cast(input, node.dtype(dtype, input.dtype.name))
    x = node.emit("Neg", x) if "oftmin" in node.type else x
    return node.emit("LogSoftmax" if "og" in node.type else "Softmax", x, axis=dim)


@operator(
    *("nn.Identity", "nn.Dropout", "nn.Dropout2d", "nn.Dropout3d", "nn.AlphaDropout", "F.dropout"),
    *("F.dropout2d", "F.dropout3d", "F.alpha_dropout", "F.feature_alpha_dropout", "F.dropoutnd"),
    *("torch.clone", "Tensor.clone", "torch.positive", "Tensor.contiguous", "Tensor.detach"),
)
def identity(node: PnnxNode, input: Value, *, p: float = 0.5) -> Value:
    return input
