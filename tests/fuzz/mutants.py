"""Changes to an ONNX model that keep it a well-formed message, and may leave no sense in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.models import Case, draw

NUMBERS = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    64,
    1000,
    -(1 << 31),
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
]
FLOATS = [0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("nan")]
NAMES = ["", "x1", "v1", "v2", "c3", "nowhere", "\n", "ü", "a" * 300]
OPS = ["Relu", "Conv", "Concat", "Reshape", "If", "Loop", "Gather", "TopK", "Nonsense", "Constant"]

Change = Callable[[Any, onnx.ModelProto], None]


class Dice:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)


def mutant(seed: int) -> Case:
    """A random model, one to three changes later."""
    dice, case = Dice(seed), draw(seed)
    for _ in range(dice.one([1, 1, 2, 3])):
        dice.one(CHANGES)(dice, case.model)
    return case


def node_of(dice: Dice, model: onnx.ModelProto) -> Any:
    return dice.one(model.graph.node)


def operands(dice: Dice, model: onnx.ModelProto) -> None:
    """Another input, one more, or one less."""
    node = node_of(dice, model)
    names = [v for n in model.graph.node for v in (*n.input, *n.output)] + NAMES
    how = dice.one(["change", "add", "drop", "clear", "swap"])
    if how == "change" and node.input:
        node.input[int(dice.rng.integers(len(node.input)))] = dice.one(names)
    elif how == "add":
        node.input.append(dice.one(names))
    elif how == "drop" and node.input:
        del node.input[int(dice.rng.integers(len(node.input)))]
    elif how == "clear":
        del node.input[:]
    elif len(node.input) > 1:
        node.input[0], node.input[1] = node.input[1], node.input[0]


def results(dice: Dice, model: onnx.ModelProto) -> None:
    node = node_of(dice, model)
    names = [v for n in model.graph.node for v in n.output] + NAMES
    if dice.chance(0.5) and node.output:
        node.output[0] = dice.one(names)
    elif dice.chance(0.5):
        node.output.append(dice.one(names))
    else:
        del node.output[:]


def operator(dice: Dice, model: onnx.ModelProto) -> None:
    node = node_of(dice, model)
    node.op_type = dice.one([*OPS, *(n.op_type for n in model.graph.node)])
    if dice.chance(0.1):
        node.domain = dice.one(["com.microsoft", "ai.onnx.ml", "nowhere", ""])


def attribute(dice: Dice, model: onnx.ModelProto) -> None:
    """Another value, another type, a name of another operator's, or none."""
    nodes = [n for n in model.graph.node if n.attribute]
    if not nodes:
        return
    node = dice.one(nodes)
    a = dice.one(node.attribute)
    if dice.chance(0.15):
        node.attribute.remove(a)
    elif dice.chance(0.15):
        a.name = dice.one([b.name for n in nodes for b in n.attribute])
    elif dice.chance(0.2):
        a.type = dice.one([1, 2, 3, 4, 5, 6, 7, 8, 0, 14])
    elif a.type == onnx.AttributeProto.INT:
        a.i = dice.one(NUMBERS)
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = dice.one(FLOATS)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = dice.one([b"", b"linear", b"\xff", b"SAME_UPPER", b"reflect", b"x" * 300])
    elif a.ints and dice.chance(0.6):
        a.ints[int(dice.rng.integers(len(a.ints)))] = dice.one(NUMBERS)
    elif dice.chance(0.5):
        a.ints.append(dice.one(NUMBERS))
    else:
        del a.ints[:]


def weight(dice: Dice, model: onnx.ModelProto) -> None:
    """Other dims, another element type, fewer bytes, other numbers, or none."""
    if not model.graph.initializer:
        return
    t = dice.one(model.graph.initializer)
    how = dice.one(["dims", "dims", "type", "bytes", "numbers", "numbers", "drop", "name"])
    if how == "dims":
        if t.dims and dice.chance(0.7):
            t.dims[int(dice.rng.integers(len(t.dims)))] = dice.one(NUMBERS)
        elif t.dims and dice.chance(0.5):
            t.dims.pop()
        else:
            t.dims.append(dice.one([1, 1, 2, 0, -1]))
    elif how == "type":
        t.data_type = dice.one([*range(25), 99, -1])
    elif how == "bytes":
        t.raw_data = t.raw_data[: int(dice.rng.integers(len(t.raw_data) + 1))]
    elif how == "numbers" and t.data_type == TensorProto.INT64 and t.raw_data:
        numbers = np.frombuffer(t.raw_data, np.int64).copy()
        if numbers.size:
            numbers[int(dice.rng.integers(numbers.size))] = dice.one(NUMBERS)
        t.raw_data = numbers.tobytes()
    elif how == "drop":
        model.graph.initializer.remove(t)
    elif how == "name":
        t.name = dice.one([v.name for v in model.graph.initializer] + NAMES)


def port(dice: Dice, model: onnx.ModelProto) -> None:
    """Another type, shape or name of an input or an output; one more, or one less."""
    ports = dice.one([model.graph.input, model.graph.output])
    if not ports:
        return
    p = dice.one(ports)
    kind = p.type.tensor_type
    how = dice.one(["type", "dim", "dim", "rank", "name", "drop", "add", "none"])
    if how == "type":
        kind.elem_type = dice.one([*range(20), 99])
    elif how == "dim" and kind.shape.dim:
        dim = dice.one(kind.shape.dim)
        if dice.chance(0.5):
            dim.dim_value = dice.one(NUMBERS)
        else:
            dim.dim_param = dice.one([*NAMES, "N", "N + 1"])
    elif how == "rank":
        kind.shape.dim.add().dim_value = dice.one([1, 2, 0])
    elif how == "name":
        p.name = dice.one([v for n in model.graph.node for v in (*n.input, *n.output)] + NAMES)
    elif how == "drop":
        ports.remove(p)
    elif how == "add":
        ports.add().CopyFrom(p)
    else:
        p.ClearField("type")


def order(dice: Dice, model: onnx.ModelProto) -> None:
    """Nodes doubled, dropped, or in another order."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    at = int(dice.rng.integers(len(nodes)))
    how = dice.one(["double", "drop", "shuffle", "last"])
    if how == "double":
        nodes.insert(at, nodes[at])
    elif how == "drop" and len(nodes) > 1:
        del nodes[at]
    elif how == "shuffle":
        nodes = [nodes[i] for i in dice.rng.permutation(len(nodes))]
    else:
        nodes.append(nodes.pop(at))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def opset(dice: Dice, model: onnx.ModelProto) -> None:
    del model.opset_import[:]
    if dice.chance(0.8):
        model.opset_import.add().version = dice.one([1, 6, 7, 9, 11, 13, 15, 17, 18, 22, 99, 0, -1])


def nest(dice: Dice, model: onnx.ModelProto) -> None:
    """A node goes into the branches of an If."""
    node = onnx.NodeProto()
    node.CopyFrom(node_of(dice, model))
    inner = [f"inner_{v}" for v in node.output]
    outer = list(node.output)
    del node.output[:]
    node.output.extend(inner)
    body = helper.make_graph([node], "branch", [], [onnx.ValueInfoProto(name=v) for v in inner])
    test = helper.make_tensor("test", TensorProto.BOOL, [], [dice.chance(0.5)])
    model.graph.initializer.append(test)
    made = helper.make_node("If", ["test"], outer, then_branch=body, else_branch=body)
    for i, old in enumerate(model.graph.node):
        if list(old.output) == outer:
            model.graph.node[i].CopyFrom(made)


CHANGES: list[Change] = [
    operands, operands, results, operator, attribute, attribute, attribute, weight, weight, port,
    port, order, opset, nest,
]  # fmt: skip
