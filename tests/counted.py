"""Models in which a count that the data tell is followed by more: experts, durations, boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.dependent import INT, F, model_of, node
from tinsmith.compiler.later import Later
from tinsmith.errors import TinsmithError
from tinsmith.runtime.program import Program

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)


def weights(*shape):
    return (RANDOM.standard_normal(shape) * 0.4).astype(np.float32)


def _experts(count=3, wide=8, deep=12):
    """A mixture of experts: each computes the rows that chose it."""
    nodes = [
        node("MatMul", "x gate", "g"), node("ArgMax", "g", "best", axis=1, keepdims=0),
        node("Mul", "x none", "y0"),
    ]  # fmt: skip
    arrays = [("gate", weights(wide, count)), ("none", np.float32(0)), ("back", [1, 0])]
    for i in range(count):
        nodes += [
            node("Equal", f"best i{i}", f"is{i}"), node("NonZero", f"is{i}", f"p{i}"),
            node("Transpose", f"p{i}", f"t{i}", perm=[1, 0]), node("GatherND", f"x t{i}", f"x{i}"),
            node("MatMul", f"x{i} a{i}", f"h{i}"), node("Relu", f"h{i}", f"r{i}"),
            node("MatMul", f"r{i} b{i}", f"o{i}"),
            node("ScatterND", f"y{i} t{i} o{i}", f"y{i + 1}", reduction="add"),
        ]  # fmt: skip
        arrays += [(f"i{i}", i), (f"a{i}", weights(wide, deep)), (f"b{i}", weights(deep, wide))]
    nodes.append(node("Add", f"y{count} x", "y"))
    return model_of(nodes, [("x", F, ["n", wide])], [("y", F)], arrays)


COUNTED = {
    "experts": _experts(),
    "durations": model_of(  # each row of x comes as often as its sum says, in order
        [node("ReduceSum", "x axis", "s", keepdims=0), node("Abs", "s", "a"),
         node("Floor", "a", "f"), node("Cast", "f", "d", to=INT),
         node("CumSum", "d zero", "ends"), node("ReduceSum", "d", "total", keepdims=0),
         node("Range", "zero total one", "r"), node("Unsqueeze", "r axis", "column"),
         node("LessOrEqual", "ends column", "before"), node("Cast", "before", "ones", to=INT),
         node("ReduceSum", "ones axis", "from", keepdims=0), node("Gather", "x from", "long"),
         node("MatMul", "long w", "m"), node("Tanh", "m", "h"), node("Softmax", "h", "p"),
         node("Transpose", "p", "t", perm=[1, 0]), node("MatMul", "h t", "y")],
        [("x", F, ["n", 8])], [("y", F)],
        [("axis", [1]), ("zero", 0), ("one", 1), ("w", weights(8, 6))],
    ),
    "detections": model_of(
        [node("Abs", "x", "a"), node("Slice", "a zero two one", "low"),
         node("Slice", "a two four one", "size"), node("Add", "low size", "high"),
         node("Concat", "low high", "c", axis=1), node("Unsqueeze", "c zero", "boxes"),
         node("ReduceMax", "x one", "m", keepdims=0), node("Unsqueeze", "m zeros", "scores"),
         node("NonMaxSuppression", "boxes scores most iou", "found"),
         node("Slice", "found two three one", "column"), node("Squeeze", "column one", "kept"),
         node("Gather", "x kept", "rows"), node("Gather", "m kept", "of"),
         node("Shape", "of", "count"), node("Min", "count five", "k"),
         node("TopK", "of k", "best order", axis=0), node("Gather", "rows order", "first"),
         node("MatMul", "first w", "h"), node("Relu", "h", "y")],
        [("x", F, ["n", 8])], [("y", F), ("best", F)],
        [("zero", [0]), ("one", [1]), ("two", [2]), ("three", [3]), ("four", [4]), ("five", [5]),
         ("zeros", [0, 1]), ("most", np.array([50])), ("iou", np.float32([0.3])),
         ("w", weights(8, 5))],
    ),
    "two counts": model_of(  # of rows, then of what is left of these, and both together
        [node("ReduceSum", "x axis", "s", keepdims=0), node("Greater", "s zero", "k"),
         node("Compress", "x k", "some", axis=0), node("MatMul", "some w", "h"),
         node("Greater", "h zero", "g"), node("NonZero", "g", "p"),
         node("Transpose", "p", "t", perm=[1, 0]), node("GatherND", "h t", "v"),
         node("Exp", "v", "y"), node("ReduceMax", "h axis", "most", keepdims=0),
         node("Unsqueeze", "most axis", "column"), node("Unsqueeze", "v none", "row"),
         node("Mul", "column row", "both")],
        [("x", F, ["n", 8])], [("y", F), ("both", F)],
        [("axis", [1]), ("none", [0]), ("zero", np.float32(0)), ("w", weights(8, 3))],
    ),
    "computed numbers": model_of(
        [node("ReduceSum", "x", "s", keepdims=0), node("Abs", "s", "a"), node("Cast", "a", "i",
              to=INT), node("Mod", "i seven", "m"), node("Reshape", "m first", "k"),
         node("Concat", "first k", "repeats", axis=0), node("Tile", "x repeats", "tiled"),
         node("Relu", "tiled", "y0"),
         node("Concat", "none none k first", "pads", axis=0), node("Pad", "x pads", "padded"),
         node("Exp", "padded", "y1"),
         node("Concat", "k two", "shape", axis=0), node("ConstantOfShape", "shape", "zeros"),
         node("Cos", "zeros", "y2"), node("Expand", "one shape", "wide"), node("Add", "wide half",
              "y3"),
         node("Add", "m first", "depth"), node("Reshape", "depth first", "d"),
         node("OneHot", "places d values", "hot"), node("Mul", "hot half", "y4"),
         node("Slice", "x none k first", "cut"), node("Sub", "cut half", "y5"),
         node("Neg", "k", "minus"), node("Slice", "x minus far first", "tail"),
         node("Sub", "tail half", "y6")],
        [("x", F, ["n", 8])], [(f"y{i}", F) for i in range(7)],
        [("seven", 7), ("first", [1]), ("none", [0]), ("two", [2]), ("one", np.float32([[1]])),
         ("half", np.float32(0.5)), ("places", [0, 2, 1]), ("values", np.float32([2, 3])),
         ("far", [1 << 62])],
    ),
    "computed shape": model_of(  # of images: resized to a computed size, with a mask of it
        [node("ReduceMax", "x", "m", keepdims=0), node("Abs", "m", "a"), node("Cast", "a", "i",
              to=INT), node("Add", "i three", "e0"), node("Reshape", "e0 first", "e"),
         node("Concat", "first first e e", "all", axis=0),
         node("Unsqueeze", "x lead2", "picture"),
         helper.make_node("Resize", ["picture", "", "", "all"], ["r"], mode="nearest"),
         node("Conv", "r w", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "y"),
         node("Flatten", "y", "f"), node("ReduceMean", "f first", "mean")],
        [("x", F, ["n", 8])], [("y", F), ("mean", F)],
        [("three", 3), ("first", [1]), ("lead2", [0, 1]), ("w", weights(4, 1, 3, 3))],
    ),
}  # fmt: skip


def given(rows: int, seed: int = 0, scale: float = 1.0) -> Array:
    x = np.random.default_rng([rows, seed]).standard_normal((rows, 8)) * scale
    return x.astype(np.float32)


def parts(program: Program) -> list[Later]:
    """What computes the parts of a program, and of the programs of these."""
    own = [op for op, _ in program.nodes.values() if isinstance(op, Later)]
    return [*own, *(p for one in own for made, _ in one.told for p in parts(made))]


def results(
    net: Any, x: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]] | type[TinsmithError]:
    """The outputs by name, or what was raised."""
    try:
        found = net(x)
    except TinsmithError as error:
        return type(error)
    return found if isinstance(found, dict) else {net.output_names[0]: found}
