"""Models of free sizes that tests of new shapes share."""

from __future__ import annotations

import numpy as np

from tests.dependent import F, model_of, node

RANDOM = np.random.default_rng(11)


def weights(*shape):
    return (RANDOM.standard_normal(shape) * 0.2).astype(np.float32)


CONVOLUTIONS = model_of(
    [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1], group=8),
        node("Clip", "c2 low high", "r2"),
        node("Conv", "r2 w3 b3", "c3"),
        node("Add", "c3 r1", "s"),
        node("Resize", "s none scales", "u", mode="nearest"),
        node("Shape", "u", "shape"),
        node("Slice", "shape two four", "sizes"),
        node("Concat", "lead sizes", "target", axis=0),
        node("Reshape", "u target", "y0"),
        node("Reshape", "y0 back", "y1"),
        node("GlobalAveragePool", "y1", "p"),
        node("Flatten", "p", "f"),
        node("MatMul", "f w4", "y"),
    ],
    [("x", F, ["n", 3, "h", "w"])],
    [("y", F)],
    [
        ("w1", weights(8, 3, 3, 3)), ("b1", weights(8)), ("w2", weights(8, 1, 3, 3)),
        ("b2", weights(8)), ("w3", weights(8, 8, 1, 1)), ("b3", weights(8)), ("w4", weights(4, 5)),
        ("low", np.float32(0)), ("high", np.float32(6)), ("none", np.zeros(0, np.float32)),
        ("scales", np.array([1, 1, 2, 2], np.float32)), ("two", np.array([2])),
        ("four", np.array([4])), ("lead", np.array([-1, 4])), ("back", np.array([0, -1, 0, 0])),
    ],
)  # fmt: skip
STRETCHED = model_of(
    [
        node("Shape", "x", "s"),
        node("Expand", "row s", "wide"),
        node("Add", "x wide", "a"),
        node("Unsqueeze", "a one", "u"),
        node("Squeeze", "u one", "v"),
        node("Transpose", "v", "t", perm=[1, 0]),
        node("Shape", "t", "st"),
        node("Reshape", "t st", "r"),
        node("Einsum", "r x", "e", equation="ij,jk->ik"),
        node("Softmax", "e", "y", axis=-1),
    ],
    [("x", F, ["n", "m"]), ("row", F, ["m"])],
    [("y", F)],
    [("one", np.array([1]))],
)
