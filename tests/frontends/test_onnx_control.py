"""Subgraphs of imported models: branches, loops and scans, and what they capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontends.models import branch, check, floats, info, model
from tinsmith.frontends import load
from tinsmith.ops.interpret import run_graph

node = helper.make_node
X = floats(2, 3)


@pytest.mark.parametrize("flag", [True, False])
def test_if_captures_values_of_the_graph_around_it(flag: bool) -> None:
    """`h` is captured by both branches, `x` by one, `w` is a weight, and `h` is an output."""
    yes = branch("yes", [node("Add", ["h", "w"], ["t"]), node("Mul", ["t", "x"], ["u"])], ["u"])
    no = branch("no", [node("Identity", ["h"], ["v"])], ["v"])
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("If", ["c"], ["y"], then_branch=yes, else_branch=no),
    ]
    feeds = {"x": X, "c": np.array(flag)}
    graph = check(model(nodes, feeds, ["y", "h"], {"w": floats(3)}), feeds)
    (n,) = [n for n in graph.nodes if n.op.name == "If"]
    assert [v.name for v in n.inputs if v] == ["c", "h", "x"]
    for body in (n.then_branch, n.else_branch):
        assert [v.name for v in body.inputs] == ["h", "x"]


def test_if_whose_branches_yield_captured_values_and_weights() -> None:
    yes, no = branch("yes", [], ["x"]), branch("no", [], ["k"], {"k": floats(2, 3, seed=5)})
    nodes = [node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    for flag, want in ((True, X), (False, floats(2, 3, seed=5))):
        feeds = {"c": np.array(flag), "x": X}
        check(model(nodes, feeds, ["y"]), feeds, expected=[want])


def test_captures_through_two_levels() -> None:
    inner = branch("inner", [node("Add", ["x", "h"], ["s"])], ["s"])
    other = branch("other", [node("Neg", ["x"], ["n"])], ["n"])
    middle = branch(
        "middle", [node("If", ["c"], ["i"], then_branch=inner, else_branch=other)], ["i"]
    )
    last = branch("last", [node("Identity", ["x"], ["l"])], ["l"])
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("If", ["d"], ["y"], then_branch=middle, else_branch=last),
    ]
    for c in (True, False):
        for d in (True, False):
            feeds = {"x": X, "c": np.array(c), "d": np.array(d)}
            check(model(nodes, feeds, ["y"]), feeds)


def loop_body(nodes: list[Any], states: list[Any], outputs: list[str]) -> Any:
    inputs = [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), *states]
    outs = [helper.make_empty_tensor_value_info(o) for o in outputs]
    return helper.make_graph(nodes, "body", inputs, outs)


def test_loop_with_states_items_and_captures() -> None:
    nodes = [
        node("Add", ["s", "x"], ["s2"]),
        node("Mul", ["s2", "w"], ["item"]),
        node("Identity", ["go"], ["go2"]),
    ]
    body = loop_body(nodes, [info("s", [2, 3])], ["go2", "s2", "item"])
    proto = model(
        [node("Loop", ["n", "", "s0"], ["last", "items"], body=body)],
        {"n": np.array(4), "s0": X, "x": X},
        ["last", "items"],
        {"w": floats(3)},
    )
    feeds = {"n": np.array(4), "s0": X, "x": X}
    want = [X * 5, np.stack([X * k * floats(3) for k in (2, 3, 4, 5)])]
    graph = check(proto, feeds, expected=want)
    assert graph.nodes[0].captured == 1


def test_shapes_of_inputs_are_none_of_a_body_s_of_the_same_names() -> None:
    body = loop_body(
        [node("Add", ["x", "x"], ["x2"]), node("Identity", ["go"], ["go2"])],
        [info("x", [])],
        ["go2", "x2"],
    )
    proto = model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Loop", ["n", "", "sum"], ["y"], body=body),
        ],
        [info("x", ["rows", "columns"])],
        ["y"],
        {"n": np.array(2)},
    )
    graph = load(proto, input_shapes={"x": (2, 3)})
    assert graph.inputs[0].shape == (2, 3)
    np.testing.assert_allclose(run_graph(graph, [X])[0], 4 * X.sum(), rtol=1e-6)


def test_loop_whose_state_grows() -> None:
    """The state has another size after each iteration, so its dimension becomes a symbol."""
    nodes = [node("Concat", ["s", "x"], ["s2"], axis=0), node("Identity", ["go"], ["go2"])]
    body = loop_body(nodes, [info("s", None)], ["go2", "s2"])
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)], {"n": np.array(3), "x": X}, ["y"]
    )
    graph = check(proto, {"n": np.array(3), "x": X}, expected=[np.concatenate([X] * 4)])
    shape = graph.outputs[0].shape
    assert shape is not None and isinstance(shape[0], str) and shape[1] == 3


def test_scan_with_captures() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "t"], ["s2"]), node("Mul", ["s2", "w"], ["o"])],
        "body",
        [info("s", [3]), info("t", [3])],
        [info("s2", [3]), info("o", [3])],
    )
    feeds = {"s0": floats(3, seed=4), "x": X, "w": floats(3, seed=5)}
    nodes = [node("Scan", ["s0", "x"], ["last", "all"], body=body, num_scan_inputs=1)]
    total = np.cumsum(X, axis=0) + feeds["s0"]
    want = [total[-1], total * feeds["w"]]
    check(model(nodes, feeds, ["last", "all"]), feeds, expected=want)


def test_a_branch_captures_the_elements_of_a_sequence() -> None:
    yes = branch("yes", [node("SequenceAt", ["s", "p"], ["t"])], ["t"])
    no = branch("no", [node("ConcatFromSequence", ["s"], ["c"], axis=0)], ["c"])
    nodes = [
        node("SequenceConstruct", ["x", "x2"], ["s"]),
        node("If", ["c"], ["y"], then_branch=yes, else_branch=no),
    ]
    for flag, want in ((True, X * 2), (False, np.concatenate([X, X * 2]))):
        feeds = {"x": X, "x2": X * 2, "c": np.array(flag)}
        check(model(nodes, feeds, ["y"], {"p": np.array(1)}), feeds, expected=[want])
