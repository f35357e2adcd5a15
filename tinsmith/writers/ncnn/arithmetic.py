"""Writes arithmetic and activations as ncnn's layers."""

from __future__ import annotations

from collections.abc import Callable

from tinsmith.formats.ncnn.layers import LARGEST
from tinsmith.frontends.ncnn import activation
from tinsmith.graph import Node
from tinsmith.writers.ncnn import fewer
from tinsmith.writers.ncnn.writer import Writer, writes
from tinsmith.writers.rows import constant, inputs_of, need

PLAIN = {op: type for type, op in activation.PLAIN.items()} | {"Relu": "ReLU"}
UNARY = {op: i for i, op in enumerate(activation.UNARY) if isinstance(op, str)}
BINARY = {op: i for i, op in enumerate(activation.BINARY) if isinstance(op, str)} | {"Mod": 12}
SQUARE = 4
"""The number of x * x in ncnn's UnaryOp."""
TURNED = {0: 0, 1: 7, 2: 2, 3: 8, 4: 4, 5: 5, 6: 9, 10: 11, 12: 13}
"""Number of the operation a op b in ncnn's BinaryOp -> number of b op a."""
KINDS = {"float32": 1, "float16": 2, "bfloat16": 4}
"""Element type -> its number in ncnn's Cast."""
E = -1
"""The value of the base in ncnn's Exp and Log that stands for e."""


@writes(*PLAIN.keys() - {"Clip", "Swish"})
def plain(w: Writer, node: Node) -> None:
    w.layer_of(PLAIN[node.op.name], node)


@writes("LeakyRelu")
def leaky_relu(w: Writer, node: Node) -> None:
    w.layer_of("ReLU", node, {"slope": node.attrs["alpha"]})


@writes(*UNARY.keys() - PLAIN.keys())
def unary(w: Writer, node: Node) -> None:
    w.layer_of("UnaryOp", node, {"op_type": UNARY[node.op.name]})


@writes("Identity")
def same(w: Writer, node: Node) -> None:
    w.alias(node.output, inputs_of(node)[0])


@writes("Cast")
def cast(w: Writer, node: Node) -> None:
    x, y = inputs_of(node)[0], node.output
    if x.dtype == y.dtype:
        return w.alias(y, x)
    kinds = [KINDS.get(v.dtype.name) for v in (x, y)]
    readers = {user.op.name for user in y.uses}
    need(all(kinds), f"ncnn has no casts from {x.dtype} to {y.dtype}")
    need(y.dtype.name == "float32" or readers <= {"Cast"}, f"ncnn computes with no {y.dtype}")
    return w.layer_of("Cast", node, dict(zip(("type_from", "type_to"), kinds, strict=True)))


@writes("Clip")
def clip(w: Writer, node: Node) -> None:
    least, most = node.attrs["min"], node.attrs["max"]
    given = {"min": LARGEST if least is None else float(least)}
    given["max"] = -LARGEST if most is None else float(most)
    w.layer_of("Clip", node, given)


@writes("Gelu")
def gelu(w: Writer, node: Node) -> None:
    w.layer_of("GELU", node, {"fast_gelu": int(node.attrs["approximate"] == "tanh")})


@writes("Swish")
def swish(w: Writer, node: Node) -> None:
    need(node.attrs["alpha"] == 1, "its alpha is not 1")
    w.layer_of("Swish", node)


@writes("Softmax")
def softmax(w: Writer, node: Node) -> None:
    axis = node.attrs["axis"] % (inputs_of(node)[0].rank or 1) - 1
    need(axis >= 0, "it is over the batch")
    w.layer_of("Softmax", node, {"axis": axis, "fixbug0": 1})


@writes("PRelu")
def prelu(w: Writer, node: Node) -> None:
    slope, dims = constant(inputs_of(node)[1], "its slope"), w.dims(node.output)
    along = (
        slope.reshape((1,) * (len(dims) - slope.ndim) + slope.shape)
        if slope.ndim <= len(dims)
        else slope[0]
    )
    need(slope.size in (1, along.shape[0]), "its slope is not one of each channel")
    given = {"num_slope": slope.size}
    w.layer_of("PReLU", node, given, slope=slope)


Attempt = Callable[[Writer, Node], bool]
"""A function that writes a node, or finds that it needs no layer, and returns True; else False."""


def power(w: Writer, node: Node) -> bool:
    """Write x^n, with one constant number n, as a Power layer, and b^x, with one number b other
    than -1 (`E`), as an Exp layer; return True. Else, or if x has another rank than the result,
    write nothing and return False. (ncnn's BinaryOp takes the logarithm of the base, which is wrong
    for negative bases.)"""
    x, exponent = inputs_of(node)
    if (number := fewer.number_of(exponent)) is not None and x.rank == node.output.rank:
        w.layer_of("Power", node, {"power": number})
        return True
    base = fewer.number_of(x)
    if base in (None, E) or exponent.rank != node.output.rank:
        return False
    w.layer("Exp", node.name, [w.blob(exponent)], [node.output], {"base": base})
    return True


def squared(w: Writer, node: Node) -> bool:
    """Write x * x as one UnaryOp layer, or find that a product with a number needs no layer
    (`fewer.factor_of_sum`); return True. Else write nothing and return False."""
    a, b = inputs_of(node)
    if a is not b or a in w.vectors:
        return fewer.factor_of_sum(w, node)
    w.layer_of("UnaryOp", node, {"op_type": SQUARE})
    return True


@writes(*BINARY.keys() - {"Add", "Mul", "Pow"})
@writes("Pow", first=power)
@writes("Mul", first=squared, by_channels=fewer.scaled)
@writes("Add", first=fewer.weighted_sum, by_channels=fewer.shifted)
def binary(
    w: Writer, node: Node, first: Attempt | None = None, by_channels: Attempt | None = None
) -> None:
    if first is not None and first(w, node):
        return None
    op, (a, b) = BINARY[node.op.name], inputs_of(node)[:2]
    need(op != 12 or node.attrs["fmod"], "only C's fmod is there")
    rank = len(w.dims(node.output))
    for one, other, code in ((b, a, op), (a, b, TURNED[op])):
        if one.const is not None and one.const.size == 1 and other.rank == node.output.rank:
            given = {"op_type": code, "with_scalar": 1, "b": float(one.const.reshape(-1)[0])}
            return w.layer("BinaryOp", node.name, [w.blob(other)], [node.output], given)
    if by_channels is not None and by_channels(w, node):
        return None
    for v in (a, b):
        need(v.const is not None or v.rank == node.output.rank, f"{v.name!r} is of another rank")
    names = [w.blob(v, rank) for v in (a, b)]
    return w.layer("BinaryOp", node.name, names, [node.output], {"op_type": op})
