"""ONNX models whose sizes depend on data, and a short way to write such models."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model_of(nodes, inputs, outputs, weights=(), opset=18):
    """Inputs and outputs are (name, element type, sizes), weights (name, array)."""

    def info(name, type, dims=None):
        return helper.make_tensor_value_info(name, type, dims)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(*i) for i in inputs],
        [info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(op, inputs, outputs, **attrs):
    """Inputs and outputs are names with spaces between them."""
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


DEPENDENT = {
    "nonzero": model_of(
        [node("Relu", "x", "r"), node("Exp", "r", "e"), node("Sub", "e one", "d"),
         node("NonZero", "d", "places"), node("Transpose", "places", "t", perm=[1, 0]),
         node("GatherND", "x t", "found"), node("Sigmoid", "found", "y")],
        [("x", F, ["n", 8])], [("places", INT), ("y", F)], [("one", np.float32(1))],
    ),
    "compress": model_of(
        [node("Greater", "x zero", "keep"), node("Reshape", "keep flat", "k"),
         node("Compress", "x k", "c"), node("Mul", "c two", "y")],
        [("x", F, ["n", 8])], [("y", F)],
        [("zero", np.float32(0)), ("two", np.float32(2)), ("flat", np.array([-1]))],
    ),
    "unique": model_of(
        [node("Round", "x", "r"), node("Unique", "r", "u i v c"), node("Exp", "u", "y")],
        [("x", F, ["n", 8])], [("y", F), ("i", INT), ("v", INT), ("c", INT)],
    ),
    "topk": model_of(
        [node("Relu", "x", "r"), node("Shape", "x", "s"), node("Gather", "s zero", "n1"),
         node("Min", "n1 three", "k"), node("TopK", "r k", "y i", axis=0)],
        [("x", F, ["n", 8])], [("y", F), ("i", INT)],
        [("zero", np.array([0])), ("three", np.array([3]))],
    ),
    "topk of a computed k": model_of(
        [node("Relu", "x", "r"), node("ReduceMax", "x", "m", keepdims=0), node("Abs", "m", "a"),
         node("Ceil", "a", "c"), node("Cast", "c", "k0", to=INT), node("Reshape", "k0 one", "k"),
         node("TopK", "r k", "v i", axis=1), node("Add", "v half", "y")],
        [("x", F, ["n", 8])], [("y", F), ("i", INT)],
        [("one", np.array([1])), ("half", np.float32(0.5))],
    ),
    "a slice of computed ends": model_of(
        [node("Sigmoid", "x", "s"), node("ReduceSum", "s", "t", keepdims=0),
         node("Floor", "t", "f"), node("Cast", "f", "e0", to=INT), node("Reshape", "e0 one", "e1"),
         node("Min", "e1 seven", "e"), node("Slice", "x zero e one", "c"), node("Tanh", "c", "y")],
        [("x", F, ["n", 8])], [("y", F)],
        [("one", np.array([1])), ("zero", np.array([0])), ("seven", np.array([7]))],
    ),
    "a range of a computed size": model_of(
        [node("NonZero", "x", "p"), node("Shape", "p", "s"), node("Gather", "s one", "n1"),
         node("Range", "zero n1 one", "r"), node("Cast", "r", "y", to=F)],
        [("x", F, ["n", 8])], [("y", F)], [("one", np.array(1)), ("zero", np.array(0))],
    ),
    "if": model_of(
        [node("ReduceSum", "x", "t", keepdims=0), node("Greater", "t zero", "c"),
         helper.make_node("If", ["c"], ["b"],
             then_branch=helper.make_graph([node("Relu", "x", "o")], "yes", [],
                 [helper.make_tensor_value_info("o", F, None)]),
             else_branch=helper.make_graph([node("Reshape", "x flat", "o")], "no", [],
                 [helper.make_tensor_value_info("o", F, None)])),
         node("Exp", "b", "y")],
        [("x", F, ["n", 8])], [("y", F)], [("zero", np.float32(0)), ("flat", np.array([-1]))],
    ),
    "loop": model_of(
        [node("Relu", "x", "r"), node("Shape", "x", "s"), node("Gather", "s zero", "iterations"),
         helper.make_node("Loop", ["iterations", "", "r"], ["last", "all"],
             body=helper.make_graph(
                 [node("Mul", "state r", "m"), node("Tanh", "m", "next"),
                  node("ReduceMax", "next", "item", keepdims=0), node("Identity", "go", "out")],
                 "body",
                 [helper.make_tensor_value_info("i", INT, []),
                  helper.make_tensor_value_info("go", B, []),
                  helper.make_tensor_value_info("state", F, None)],
                 [helper.make_tensor_value_info("out", B, []),
                  helper.make_tensor_value_info("next", F, None),
                  helper.make_tensor_value_info("item", F, None)])),
         node("Exp", "last", "y")],
        [("x", F, ["n", 8])], [("y", F), ("all", F)], [("zero", np.array(0))],
    ),
    "scan": model_of(
        [node("Relu", "x", "r"),
         helper.make_node("Scan", ["start", "r"], ["last", "sums"], num_scan_inputs=1,
             body=helper.make_graph(
                 [node("Add", "state row", "next"), node("Identity", "next", "item")], "body",
                 [helper.make_tensor_value_info("state", F, [8]),
                  helper.make_tensor_value_info("row", F, [8])],
                 [helper.make_tensor_value_info("next", F, [8]),
                  helper.make_tensor_value_info("item", F, [8])])),
         node("Exp", "last", "y")],
        [("x", F, ["n", 8])], [("y", F), ("sums", F)], [("start", np.zeros(8, np.float32))],
    ),
}  # fmt: skip
