"""Imported sequences and optionals whose length is known only when the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.frontends.models import floats, info, model, ops
from tinsmith.frontends import load
from tinsmith.graph import OptionalType, SequenceType

node = helper.make_node
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "numpy"])
A, B = floats(2, 3), floats(2, 3, seed=1)
SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ["n", 3]))
OPTIONAL = helper.make_optional_type_proto(SEQUENCE)


def value(name: str, type: Any) -> Any:
    return helper.make_value_info(name, type)


def run(proto: Any, backend: str, **feeds: Any) -> Any:
    return ts.compile(load(proto), backend=backend)(**feeds)


def same(got: Any, want: Any) -> None:
    assert isinstance(got, list) and len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@BACKENDS
def test_inputs_and_outputs(backend: str) -> None:
    nodes = [
        node("SequenceInsert", ["s", "x", "zero"], ["t"]),
        node("SequenceErase", ["t", "k"], ["u"]),
        node("SequenceAt", ["u", "k"], ["y"]),
        node("SequenceLength", ["u"], ["n"]),
        node("ConcatFromSequence", ["u"], ["c"], axis=0),
    ]
    inputs = [value("s", SEQUENCE), info("x", [2, 3]), info("k", [], TensorProto.INT64)]
    weights = {"zero": np.array(0, np.int64)}
    proto = model(nodes, inputs, ["u", "y", "n", "c"], weights)
    got = run(proto, backend, s=[A, B], x=A - 1, k=np.array(1))
    same(got["u"], [A - 1, B])
    np.testing.assert_array_equal(got["y"], B)
    assert got["n"] == 2
    np.testing.assert_array_equal(got["c"], np.concatenate([A - 1, B]))


@BACKENDS
def test_a_known_sequence_is_read_at_a_place_that_is_not(backend: str) -> None:
    nodes = [
        node("SequenceConstruct", ["x", "z"], ["s"]),
        node("SequenceAt", ["s", "k"], ["y"]),
        node("SequenceErase", ["s", "k"], ["t"]),
        node("SequenceInsert", ["s", "z", "k"], ["u"]),
    ]
    inputs = [info("x", [2, 3]), info("z", [2, 3]), info("k", [], TensorProto.INT64)]
    proto = model(nodes, inputs, ["y", "t", "u"])
    for k in (0, 1):
        got = run(proto, backend, x=A, z=B, k=np.array(k))
        np.testing.assert_array_equal(got["y"], [A, B][k])
        same(got["t"], [[A, B][1 - k]])
        same(got["u"], [[B, A, B], [A, B, B]][k])


def accumulating(first: list[Any], start: str) -> Any:
    """s = [x[:1], x[:2], ...], `count` of them, after those that `first` makes of `start`."""
    body = helper.make_graph(
        [
            node("Add", ["i", "one"], ["end"]),
            node("Unsqueeze", ["end", "axis"], ["ends"]),
            node("Slice", ["x", "axis", "ends"], ["piece"]),
            node("SequenceInsert", ["s", "piece"], ["t"]),
            node("Identity", ["go"], ["again"]),
        ],
        "body",
        [
            info("i", [], TensorProto.INT64),
            info("go", [], TensorProto.BOOL),
            value("s", SEQUENCE),
        ],
        [info("again", [], TensorProto.BOOL), value("t", SEQUENCE)],
    )
    loop = node("Loop", ["count", "", start], ["y"], body=body)
    return [*first, loop]


@BACKENDS
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_loop_makes_a_sequence(backend: str, count: int) -> None:
    nodes = accumulating([node("SequenceEmpty", [], ["start"])], "start")
    nodes += [node("SequenceLength", ["y"], ["n"])]
    inputs = [info("count", [], TensorProto.INT64), info("x", ["m", 3])]
    weights = {"one": np.array(1, np.int64), "axis": np.array([0], np.int64)}
    x = floats(5, 3)
    proto = model(nodes, inputs, ["y", "n"], weights)
    got = run(proto, backend, count=np.array(count), x=x)
    same(got["y"], [x[: i + 1] for i in range(count)])
    assert got["n"] == count


@BACKENDS
def test_a_branch_reads_a_sequence_of_the_graph_around_it(backend: str) -> None:
    yes = helper.make_graph(
        [node("ConcatFromSequence", ["s"], ["a"], axis=0)], "yes", [], [info("a", ["n", 3])]
    )
    no = helper.make_graph([node("SequenceAt", ["s", "k"], ["b"])], "no", [], [info("b", ["n", 3])])
    nodes = [node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    inputs = [value("s", SEQUENCE), info("c", [], TensorProto.BOOL)]
    proto = model(nodes, inputs, ["y"], {"k": np.array(-1, np.int64)})
    for flag, want in ((True, np.concatenate([A, B])), (False, B)):
        np.testing.assert_array_equal(run(proto, backend, s=[A, B], c=np.array(flag)), want)


@BACKENDS
def test_a_branch_gives_a_sequence(backend: str) -> None:
    yes = helper.make_graph(
        [node("SequenceConstruct", ["x", "x"], ["a"])], "yes", [], [value("a", SEQUENCE)]
    )
    no = helper.make_graph([node("SequenceEmpty", [], ["b"])], "no", [], [value("b", SEQUENCE)])
    nodes = [node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    proto = model(nodes, [info("x", [2, 3]), info("c", [], TensorProto.BOOL)], ["y"])
    same(run(proto, backend, x=A, c=np.array(True)), [A, A])
    same(run(proto, backend, x=A, c=np.array(False)), [])


@BACKENDS
def test_an_input_that_may_be_missing(backend: str) -> None:
    """y = the sequence, or [x] where there is none."""
    there = helper.make_graph(
        [node("OptionalGetElement", ["maybe"], ["a"])], "there", [], [value("a", SEQUENCE)]
    )
    none = helper.make_graph(
        [node("SequenceConstruct", ["x"], ["b"])], "none", [], [value("b", SEQUENCE)]
    )
    nodes = [
        node("OptionalHasElement", ["maybe"], ["c"]),
        node("If", ["c"], ["y"], then_branch=there, else_branch=none),
    ]
    proto = model(nodes, [value("maybe", OPTIONAL), info("x", [2, 3])], ["y", "c"])
    assert isinstance(load(proto).inputs[0].type, OptionalType)
    got = run(proto, backend, maybe=None, x=A)
    same(got["y"], [A])
    assert not got["c"]
    same(run(proto, backend, maybe=[B, B], x=A)["y"], [B, B])


def test_optionals_of_known_content_are_gone() -> None:
    nodes = [
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["c"]),
        node("OptionalGetElement", ["o"], ["g"]),
        node("Relu", ["g"], ["y"]),
    ]
    net = ts.compile(load(model(nodes, [info("x", [2, 3])], ["y", "c"])))
    assert {s.op for s in net.program().plan.steps} <= {"Relu", "Fused", "Relayout"}
    got = net(A)
    np.testing.assert_array_equal(got["y"], np.maximum(A, 0))
    assert got["c"]


@BACKENDS
def test_a_function_over_the_elements(backend: str) -> None:
    body = helper.make_graph(
        [node("Add", ["e", "x"], ["h"]), node("Shape", ["f"], ["d"])],
        "body",
        [info("e", ["n", 3]), info("f", ["n", 3])],
        [info("h", ["n", 3]), info("d", [2], TensorProto.INT64)],
    )
    nodes = [node("SequenceMap", ["s", "t"], ["y", "z"], body=body)]
    inputs = [value("s", SEQUENCE), value("t", SEQUENCE), info("x", [3])]
    x = floats(3)
    got = run(model(nodes, inputs, ["y", "z"]), backend, s=[A, B], t=[A[:1], B], x=x)
    same(got["y"], [A + x, B + x])
    same(got["z"], [[1, 3], [2, 3]])


@BACKENDS
@pytest.mark.parametrize("sizes", [np.array(2), np.array([1, 3, 1])], ids=["step", "sizes"])
def test_parts_whose_sizes_are_an_input(backend: str, sizes: Any) -> None:
    nodes = [node("SplitToSequence", ["x", "k"], ["y"], axis=0)]
    inputs = [info("x", ["m", 3]), info("k", sizes.shape, TensorProto.INT64)]
    x = floats(5, 3)
    cuts = [2, 4] if sizes.ndim == 0 else [1, 4]
    same(run(model(nodes, inputs, ["y"]), backend, x=x, k=sizes), np.split(x, cuts))


def test_sequences_that_pass_through_a_function() -> None:
    body = helper.make_function(
        "my", "Last", ["s"], ["y"],
        [node("SequenceAt", ["s", "k"], ["y"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    body.node.insert(0, node("Constant", [], ["k"], value_int=-1))
    nodes = [
        node("SequenceConstruct", ["x", "z"], ["s"]),
        node("Identity", ["s"], ["t"]),
        node("Last", ["t"], ["y"], domain="my"),
    ]
    proto = model(
        nodes, [info("x", [2, 3]), info("z", [2, 3])], ["y"], functions=[body], domains={"my": 1}
    )
    graph = load(proto)
    assert ops(graph) == ["Identity"]
    np.testing.assert_array_equal(run(proto, "cpu", x=A, z=B), B)


def test_declared_types_are_kept() -> None:
    nodes = [node("Identity", ["s"], ["y"])]
    graph = load(model(nodes, [value("s", SEQUENCE)], [value("y", SEQUENCE)]))
    assert isinstance(graph.outputs[0].type, SequenceType)
    assert str(graph.outputs[0].type) == "sequence(float32[n,3])"
