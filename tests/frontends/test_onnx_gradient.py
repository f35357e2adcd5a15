"""Gradient, against differences of the function itself in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.frontends.models import info, model
from tinsmith.errors import ImportFailed
from tinsmith.frontends import load

node = helper.make_node
TRAINING = "ai.onnx.preview.training"
RNG = np.random.default_rng(0)
A, B, ROW = RNG.uniform(0.5, 2, (3, 3)), RNG.uniform(0.5, 2, (3, 3)), RNG.uniform(0.5, 2, 3)


def run(nodes: list[Any], feeds: dict[str, Any], xs: list[str]) -> list[Any]:
    """y, and the derivatives of its sum by xs."""
    outs = [f"d{x}" for x in xs]
    nodes = [*nodes, node("Gradient", xs, outs, domain=TRAINING, xs=xs, y="y")]
    inputs = [info(k, v.shape, TensorProto.DOUBLE) for k, v in feeds.items()]
    proto = model(nodes, inputs, ["y", *outs], domains={TRAINING: 1})
    return ts.compile(load(proto), backend="numpy").run(list(feeds.values()))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", ["a", "b"], ["y"])],
        [node("Sub", ["a", "b"], ["h"]), node("Mul", ["h", "a"], ["y"])],
        [node("Div", ["a", "b"], ["y"])],
        [node("Add", ["a", "row"], ["h"]), node("Mul", ["h", "row"], ["y"])],
        [node("MatMul", ["a", "b"], ["h"]), node("Tanh", ["h"], ["t"]), node("Neg", ["t"], ["y"])],
        [node("Sigmoid", ["a"], ["s"]), node("Log", ["s"], ["l"]), node("Mul", ["l", "b"], ["y"])],
        [node("Exp", ["a"], ["e"]), node("Identity", ["e"], ["i"]), node("Mul", ["i", "i"], ["y"])],
    ],
    ids=lambda nodes: "-".join(n.op_type for n in nodes),
)
def test_derivatives(nodes: list[Any]) -> None:
    feeds = {"a": A, "b": B, "row": ROW}
    _, *got = run(nodes, feeds, list(feeds))
    inputs = [info(k, v.shape, TensorProto.DOUBLE) for k, v in feeds.items()]
    net = ts.compile(load(model(nodes, inputs, ["y"])), backend="numpy")
    step = 1e-6
    for name, g in zip(feeds, got, strict=True):
        assert g.shape == feeds[name].shape
        for i in np.ndindex(g.shape):
            ends = []
            for sign in (1, -1):
                moved = {**feeds, name: feeds[name].copy()}
                moved[name][i] += sign * step
                ends.append(net.run(list(moved.values()))[0].sum())
            np.testing.assert_allclose(g[i], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


def test_what_is_refused() -> None:
    with pytest.raises(ImportFailed, match=r"the derivative of Erf \('y'\) is not known"):
        run([node("Erf", ["a"], ["y"])], {"a": A}, ["a"])
    proto = model(
        [node("Gradient", ["a"], ["d"], domain=TRAINING, xs=["a"], y="y"),
         node("Neg", ["a"], ["y"])],
        {"a": A}, ["d", "y"], domains={TRAINING: 1},
    )  # fmt: skip
    with pytest.raises(ImportFailed, match="is not computed before it"):
        load(proto)
