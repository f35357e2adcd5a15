"""Branches that are taken by sizes, also by those that data tell."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tinsmith as ts
from tests.counted import parts
from tests.dependent import INT, F, model_of, node


def _chosen(*before):
    """Rows of b by the boxes that are kept of them; none is asked for where b has no rows."""
    none = helper.make_graph(
        [helper.make_node("Identity", ["nothing"], ["o"])], "none", [],
        [helper.make_tensor_value_info("o", INT, None)],
    )  # fmt: skip
    some = helper.make_graph(
        [node("ReduceMax", "b", "m", keepdims=0), node("Add", "b m", "moved"),
         node("Unsqueeze", "moved lead", "boxes"), node("ReduceMax", "b one", "best", keepdims=0),
         node("Unsqueeze", "best two", "scores"),
         node("NonMaxSuppression", "boxes scores most iou", "found"),
         node("Slice", "found last end one", "column"), node("Squeeze", "column one", "o")],
        "some", [], [helper.make_tensor_value_info("o", INT, None)],
    )  # fmt: skip
    nodes = [
        *before, node("Shape", "b", "s"), node("ReduceProd", "s", "p", keepdims=0),
        node("Equal", "p zero", "c"),
        helper.make_node("If", ["c"], ["kept"], then_branch=none, else_branch=some),
        node("Gather", "b kept", "y"),
    ]  # fmt: skip
    arrays = [
        ("zero", 0), ("lead", [0]), ("two", [0, 1]), ("one", [1]), ("last", [2]), ("end", [3]),
        ("most", np.array([50])), ("iou", np.float32([0.3])), ("nothing", np.zeros(0, np.int64)),
        ("low", np.float32(0)),
    ]  # fmt: skip
    return model_of(nodes, [("x", F, ["n", 4])], [("y", F)], arrays)


MODELS = {
    "of the input": _chosen(node("Abs", "x", "b")),
    "counted": _chosen(
        node("ReduceSum", "x one", "sum", keepdims=0), node("Greater", "sum low", "keep"),
        node("Compress", "x keep", "b", axis=0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_branch_is_known_by_the_sizes(name):
    net = ts.compile(MODELS[name], cache=False, shapes="free")
    reference = ts.compile(MODELS[name], backend="numpy")
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal((n, 4)).astype(np.float32) for n in (20, 33, 7, 1, 20)]
    inputs += [-np.abs(inputs[0]), inputs[1]]  # of which no row is kept where they are counted
    for x in inputs:
        np.testing.assert_allclose(net(x), reference(x), rtol=1e-5, atol=1e-6)
    program = net.program((inputs[-1].shape,))
    programs = [program, *(made for one in parts(program) for made, _ in one.told)]
    assert any("NonMaxSuppression" in s.op for p in programs for s in p.plan.steps)
    last = [s for p in programs for s in p.plan.steps if s.kind == "reference"]
    assert not [s for s in last if s.op == "If"]
