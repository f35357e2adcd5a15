"""An If of a known condition."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tinsmith.passes import run_passes


def _model(condition: str, passed: bool = False) -> bytes:
    """y = relu(x + 1 if condition else [x]): branches of different ranks, with a captured x."""
    f32, value = TensorProto.FLOAT, helper.make_tensor_value_info
    one = helper.make_tensor("one", f32, [], [1.0])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    taken = ("Identity", ["x"], ["p"]) if passed else ("Add", ["x", "one"], ["p"])
    yes = helper.make_graph([helper.make_node(*taken)], "yes", [], [value("p", f32, None)], [one])
    no = helper.make_graph(
        [helper.make_node("Unsqueeze", ["x", "axes"], ["q"])], "no", [],
        [value("q", f32, None)], [axes],
    )  # fmt: skip
    branch = helper.make_node("If", ["c"], ["z"], then_branch=yes, else_branch=no)
    nodes = [branch, helper.make_node("Relu", ["z"], ["y"])]
    given = [value("x", f32, [2, 3])]
    constants = []
    if condition == "input":
        given.append(value("c", TensorProto.BOOL, []))
    elif condition == "folded":
        sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [2, 3])
        nodes[:0] = [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Equal", ["s", "sizes"], ["same"]),
            helper.make_node("Cast", ["same"], ["same8"], to=TensorProto.INT32),
            helper.make_node("ReduceMin", ["same8"], ["least"], keepdims=0),
            helper.make_node("Cast", ["least"], ["c"], to=TensorProto.BOOL),
        ]
        constants.append(sizes)
    else:
        constants.append(helper.make_tensor("c", TensorProto.BOOL, [], [condition == "true"]))
    graph = helper.make_graph(nodes, "g", given, [value("y", f32, None)], constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("condition", ["true", "false", "folded"])
def test_a_known_condition_leaves_no_branch(condition, passed):
    graph = ts.load(_model(condition, passed))
    run_passes(graph, "portable", verify=True)
    assert "If" not in graph.operators()
    assert graph.outputs[0].shape == ((1, 2, 3) if condition == "false" else (2, 3))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    taken = x[None] if condition == "false" else x if passed else x + 1
    net = ts.compile(_model(condition, passed))
    np.testing.assert_array_equal(net(x), np.maximum(taken, 0))
    assert all(row.kernel != "reference" for row in net.profile(x, repeat=1).rows)


def test_a_condition_that_is_given_keeps_both():
    graph = ts.load(_model("input"))
    run_passes(graph, "portable", verify=True)
    assert "If" in graph.operators()
