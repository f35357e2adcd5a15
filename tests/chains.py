"""A chain of products, for tests of what finds the first node that differs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def chain() -> Any:
    """Three products with activations between, and a branch that is always right."""
    names = ["first", "second", "third"]
    random = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(random.standard_normal((16, 16)).astype(np.float32) / 4, f"w{i}")
        for i in range(3)
    ]
    nodes, value = [], "x"
    for i, name in enumerate(names):
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], name=name))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], name=f"tanh{i}"))
        value = f"t{i}"
    nodes.append(helper.make_node("Softmax", ["t0"], ["side"], name="side", axis=-1))
    nodes.append(helper.make_node("Softmax", [value], ["y"], name="last", axis=-1))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "chain", [info("x", TensorProto.FLOAT, ["n", 16])],
        [info("y", TensorProto.FLOAT, ["n", 16]), info("side", TensorProto.FLOAT, ["n", 16])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
