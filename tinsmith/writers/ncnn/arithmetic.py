"""What writes arithmetic as ncnn's layers."""

from __future__ import annotations

from typing import Any

from tinsmith.formats.ncnn.schema import LARGEST
from tinsmith.graph import Node
from tinsmith.writers.ncnn import fewer
from tinsmith.writers.ncnn.writer import Writer, constant, inputs_of, need, writes

PLAIN = {
    "Erf": "Erf", "Mish": "Mish", "Sigmoid": "Sigmoid", "Softplus": "Softplus", "Relu": "ReLU",
}  # fmt: skip
NAMED = {
    "Celu": ("CELU", {"alpha": "alpha"}), "Elu": ("ELU", {"alpha": "alpha"}),
    "HardSigmoid": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "HardSwish": ("HardSwish", {"alpha": "alpha", "beta": "beta"}),
    "Selu": ("SELU", {"alpha": "alpha", "gamma": "lambda"}),
    "Shrink": ("Shrink", {"bias": "bias", "lambd": "lambd"}),
    "LeakyRelu": ("ReLU", {"alpha": "slope"}),
}  # fmt: skip
UNARY = {
    "Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Rsqrt": 6, "Exp": 7, "Log": 8, "Sin": 9,
    "Cos": 10, "Tan": 11, "Asin": 12, "Acos": 13, "Atan": 14, "Reciprocal": 15, "Tanh": 16,
    "Round": 18, "Sign": 20, "Sinh": 22, "Asinh": 23, "Cosh": 24, "Acosh": 25, "Atanh": 26,
}  # fmt: skip
BINARY = {name: i for i, name in enumerate(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"])} | {
    "Atan2": 10,
    "Mod": 12,
}
TURNED = {0: 0, 1: 7, 2: 2, 3: 8, 4: 4, 5: 5, 6: 9, 10: 11, 12: 13}
"""The numbers of b op a, by those of a op b."""


@writes(*PLAIN)
def plain(w: Writer, node: Node) -> None:
    w.layer(PLAIN[node.op.name], node.name, [w.blob(inputs_of(node)[0])], [node.output])


@writes(*NAMED)
def named(w: Writer, node: Node) -> None:
    type, names = NAMED[node.op.name]
    given = {theirs: float(node.attrs[ours]) for ours, theirs in names.items()}
    w.layer(type, node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes(*UNARY)
def unary(w: Writer, node: Node) -> None:
    type = "TanH" if node.op.name == "Tanh" else "AbsVal" if node.op.name == "Abs" else "UnaryOp"
    given = {"op_type": UNARY[node.op.name]} if type == "UnaryOp" else {}
    w.layer(type, node.name, [w.blob(inputs_of(node)[0])], [node.output], given)


@writes("Clip", "Gelu", "Swish", "Softmax", "Identity", "Cast")
def special(w: Writer, node: Node) -> None:
    x, a, op = inputs_of(node)[0], node.attrs, node.op.name
    if op in ("Identity", "Cast"):
        need(op == "Identity" or node.output.dtype == x.dtype, "ncnn has float32 only")
        return w.alias(node.output, x)
    given: dict[str, Any] = {}
    if op == "Clip":
        given = {"min": LARGEST if a["min"] is None else float(a["min"])}
        given["max"] = -LARGEST if a["max"] is None else float(a["max"])
    elif op == "Gelu":
        given = {"fast_gelu": int(a["approximate"] == "tanh")}
    elif op == "Swish":
        need(a["alpha"] == 1, "its alpha is not 1")
    else:
        axis = a["axis"] % (x.rank or 1) - 1
        need(axis >= 0, "it is over the batch")
        given = {"axis": axis, "fixbug0": 1}
    type = {"Gelu": "GELU"}.get(op, op)
    return w.layer(type, node.name, [w.blob(x)], [node.output], given)


@writes("PRelu")
def prelu(w: Writer, node: Node) -> None:
    slope, dims = constant(node, 1, "slope"), w.dims(node.output)
    along = (
        slope.reshape((1,) * (len(dims) - slope.ndim) + slope.shape)
        if slope.ndim <= len(dims)
        else slope[0]
    )
    need(slope.size in (1, along.shape[0]), "its slope is not one of each channel")
    given = {"num_slope": slope.size}
    w.layer("PReLU", node.name, [w.blob(inputs_of(node)[0])], [node.output], given, slope=slope)


@writes(*BINARY)
def binary(w: Writer, node: Node) -> None:
    if fewer.factor_of_sum(w, node) or fewer.weighted_sum(w, node):
        return None
    op, (a, b) = BINARY[node.op.name], inputs_of(node)[:2]
    need(op != 12 or node.attrs["fmod"], "only C's fmod is there")
    rank = len(w.dims(node.output))
    for one, other, code in ((b, a, op), (a, b, TURNED[op])):
        if one.const is not None and one.const.size == 1 and other.rank == node.output.rank:
            given = {"op_type": code, "with_scalar": 1, "b": float(one.const.reshape(-1)[0])}
            return w.layer("BinaryOp", node.name, [w.blob(other)], [node.output], given)
    if fewer.scaled(w, node):
        return None
    for v in (a, b):
        need(v.const is not None or v.rank == node.output.rank, f"{v.name!r} is of another rank")
    names = [w.blob(v, rank) for v in (a, b)]
    return w.layer("BinaryOp", node.name, names, [node.output], {"op_type": op})


# ---- moves
