"""Models of one node whose result has a shape that only the run can tell, and what may be declared
of it that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, helper
from onnx.helper import make_node as node

from tests.frontends.models import info, info_of, model

RNG = np.random.default_rng(11)
HUGE = 10**6


def f(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def n(number: int) -> np.ndarray[Any, Any]:
    return np.array(number, np.int64)


BOXES = np.float32([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]])

# What is written of each: the ONNX operator, its inputs, the number of its outputs, its attributes.
CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "Reshape": ("Reshape", [f(4), i(2, 2)], 1, {}),
    "Squeeze": ("Squeeze", [f(1, 2, 1), i(2)], 1, {}),
    "Unsqueeze": ("Unsqueeze", [f(2, 3), i(1)], 1, {}),
    "Expand": ("Expand", [f(2, 1), i(2, 3)], 1, {}),
    "Tile": ("Tile", [f(4), i(2)], 1, {}),
    "Slice": ("Slice", [f(6, 2), i(1), i(4)], 1, {}),
    "Split": ("Split", [f(4, 2), i(1, 3)], 2, {}),
    "Pad": ("Pad", [f(2, 2), i(0, 1, 0, 1)], 1, {}),
    "Resize": ("Resize", [f(1, 1, 2, 2), None, np.float32([1, 1, 2, 2])], 1, {}),
    "TopK": ("TopK", [f(2, 5), i(3)], 2, {}),
    "Range": ("Range", [n(0), n(4), n(1)], 1, {}),
    "ConstantOfShape": ("ConstantOfShape", [i(2, 3)], 1, {}),
    "OneHot": ("OneHot", [i(0, 2), n(4), np.float32([0, 1])], 1, {}),
    "CenterCropPad": ("CenterCropPad", [f(4, 4), i(2, 6)], 1, {}),
    "Reduce": ("ReduceSum", [f(2, 3, 4), i(1)], 1, {}),
    "DFT": ("DFT", [f(1, 8, 1), n(6)], 1, {}),
    "STFT": ("STFT", [f(1, 16, 1), n(4), None, n(8)], 1, {}),
    "HannWindow": ("HannWindow", [n(6)], 1, {}),
    "HammingWindow": ("HammingWindow", [n(6)], 1, {}),
    "BlackmanWindow": ("BlackmanWindow", [n(6)], 1, {}),
    "MelWeightMatrix": ("MelWeightMatrix", [n(4), n(8), n(8000), np.float32(0), np.float32(4000)],
                        1, {}),
    "AffineGrid": ("AffineGrid", [f(1, 2, 3), i(1, 1, 2, 3)], 1, {}),
    "Col2Im": ("Col2Im", [f(1, 4, 4), i(4, 4), i(2, 2)], 1, {"strides": [2, 2]}),
    "MaxUnpool": ("MaxUnpool", [f(1, 1, 1, 2), np.array([[[[0, 3]]]]), i(1, 1, 2, 4)], 1,
                  {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "Compress": ("Compress", [f(4, 2), np.array([True, False, True, True])], 1, {"axis": 0}),
    "NonZero": ("NonZero", [np.float32([[1, 0], [2, 3]])], 1, {}),
    "Unique": ("Unique", [np.float32([1, 2, 2, 3])], 1, {}),
    "NonMaxSuppression": ("NonMaxSuppression", [BOXES, f(1, 1, 3), i(3), np.float32([0.5])], 1, {}),
}  # fmt: skip


def built(name: str, declared: Any = None, after: str = "") -> tuple[ModelProto, dict[str, Any]]:
    """The model of a case, in which `declared` is said of its first result, and its feeds; with
    `after`, of which more may be read in `FOLLOWERS`, that result is no output."""
    kind, arrays, outs, attrs = CASES[name]
    feeds = {f"x{k}": a for k, a in enumerate(arrays) if a is not None}
    inputs = ["" if a is None else f"x{k}" for k, a in enumerate(arrays)]
    results = [f"y{k}" for k in range(outs)]
    nodes = [node(kind, inputs, results, **attrs)]
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(dtype_of(name)))
    first = "y0" if declared is None else info("y0", declared, dtype)
    given = [info_of(k, a) for k, a in feeds.items()]
    if not after:
        return model(nodes, given, [first, *results[1:]], opset=20), feeds
    more, weights = FOLLOWERS[after]
    values = [] if declared is None else [first]
    made = model([*nodes, *more], given, ["z"], weights, opset=20, value_info=values)
    return made, feeds


def dtype_of(name: str) -> str:
    return "int64" if name in ("Range", "NonZero", "NonMaxSuppression") else "float32"


FOLLOWERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Relu": ([node("Relu", ["y0"], ["z"])], {}),
    "MatMul": ([node("MatMul", ["y0", "w"], ["z"])], {"w": f(2, 3)}),
    "Conv": ([node("Unsqueeze", ["y0", "a"], ["u"]), node("Conv", ["u", "k"], ["z"])],
             {"a": i(0), "k": f(2, 2, 1)}),
    "Concat": ([node("Concat", ["y0", "y0"], ["z"], axis=0)], {}),
    "Slice": ([node("Slice", ["y0", "b", "e"], ["z"])], {"b": i(0), "e": i(2)}),
    "Shape": ([node("Shape", ["y0"], ["z"])], {}),
}  # fmt: skip


def lies(shape: tuple[int, ...]) -> Iterator[list[int]]:
    """What is not so of a shape: 0, 1, one more, one less, far more, another rank, negative."""
    for wrong in (0, 1, shape[0] + 1, shape[0] - 1, HUGE, -1):
        if wrong != shape[0]:
            yield [wrong, *shape[1:]]
    yield [*shape[:-1], shape[-1] + 1]
    yield [*shape, 1]
    yield [*shape[:-1], 3, shape[-1]]
    yield list(shape[1:])
    if len(set(shape)) > 1:
        yield list(shape[::-1])
