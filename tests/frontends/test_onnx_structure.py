"""Names, types, order, functions and sequences of imported models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.frontends.models import check, floats, info, model, ops, run
from tinsmith.errors import ModelWarning
from tinsmith.frontends import load
from tinsmith.graph.verify import verify

node = helper.make_node
X = floats(2, 3)


def test_names_of_values_nodes_and_origins_survive(tmp_path: Any) -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["fc1/out"], name="fc1", transB=1),
        node("Relu", ["fc1/out"], ["act"]),
        node("Relu", ["act"], ["y"], name="fc1"),
    ]
    weights = {"w": floats(4, 3), "b": floats(4)}
    proto = model(nodes, {"x": X}, ["y"], weights)
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = load(path)
    verify(graph)
    assert [v.name for v in graph.constants()] == ["w", "b"]
    values = {v.name for v in graph.values()}
    assert {"x", "w", "b", "fc1/out", "act", "y"} <= values
    assert graph.node("fc1/out").name == "fc1"
    assert [n.name for n in graph.nodes if n.op.name == "Relu"] == ["act", "fc1.1"]
    origins = {(n.origin.file, n.origin.name, n.origin.type) for n in graph.nodes}
    assert ("net.onnx", "fc1", "Gemm") in origins
    assert ("net.onnx", "act", "Relu") in origins


@pytest.mark.parametrize("name", ["detector", "main_graph", "torch-jit-export", ""])
def test_a_model_is_named_after_its_file(name: str, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": X}, ["y"])
    proto.graph.name = name
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    assert load(path).name == "net" and load(path).meta["graph"] == name
    assert load(proto).name == name, "there is no file"


def test_helper_values_do_not_take_the_names_of_the_model() -> None:
    """An intermediate of the Gemm would be called "g/MatMul", which is a value of the model."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["g"], name="g"),
        node("Relu", ["g"], ["g/MatMul"]),
        node("Neg", ["g/MatMul"], ["g/const"]),
    ]
    weights = {"w": floats(3, 4), "b": floats(4)}
    graph = check(model(nodes, {"x": X}, ["g/const", "g/MatMul"], weights), {"x": X})
    assert graph.node("g/MatMul").op.name == "Relu"


def test_symbols_are_kept_and_unnamed_dimensions_are_fresh() -> None:
    inputs = [info("a", ["N", None, 3]), info("b", ["N", "?", 3]), info("c", None)]
    nodes = [node("Relu", ["a"], ["y"]), node("Relu", ["b"], ["z"]), node("Relu", ["c"], ["u"])]
    graph = load(model(nodes, inputs, ["y", "z", "u"]))
    a, b, c = (v.shape for v in graph.inputs)
    assert a is not None and b is not None
    assert a[0] == b[0] == "N"
    assert isinstance(a[1], str) and isinstance(b[1], str) and a[1] != b[1]
    assert c is None
    assert graph.outputs[0].shape == a


def test_negative_dimensions_are_unknown_and_zero_is_zero() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [info("x", [-1, 0])], ["y"])
    shape = load(proto).inputs[0].shape
    assert shape is not None and isinstance(shape[0], str) and shape[1] == 0


def test_declared_types_complete_what_cannot_be_inferred() -> None:
    """The target shape is an input, so only the declaration knows the result's."""
    inputs = [info("x", [2, 6]), info("shape", [2], TensorProto.INT64)]
    nodes = [node("Reshape", ["x", "shape"], ["m"]), node("Relu", ["m"], ["y"])]
    graph = load(model(nodes, inputs, ["y"], value_info=[info("m", [3, 4])]))
    assert graph.outputs[0].shape == (3, 4)


@pytest.mark.parametrize(
    "declared", [info("m", [9, 9]), info("m", [2]), info("m", [2, 3], TensorProto.INT32)], ids=str
)
def test_a_declaration_that_contradicts_is_reported_and_not_believed(declared: Any) -> None:
    nodes = [node("Relu", ["x"], ["m"]), node("Relu", ["m"], ["y"])]
    with pytest.warns(ModelWarning, match=r"declares 'm' as .*; it is float32\[2,3\]"):
        graph = load(model(nodes, {"x": X}, ["y"], value_info=[declared]))
    assert graph.outputs[0].shape == (2, 3)
    assert len(graph.meta["notes"]) == 1


def test_a_declaration_that_holds_for_some_inputs_is_not_believed() -> None:
    nodes = [node("Flatten", ["x"], ["y"], axis=2)]
    proto = model(nodes, [info("x", ["a", "b", "c", "d"])], [info("y", [12, 1])])
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 3, 2)
    np.testing.assert_array_equal(ts.compile(proto, cache=False)(x), x.reshape(2, 6))


def test_weights_that_are_also_inputs_are_constants() -> None:
    inputs = [info("x", [2, 3]), info("w", [3, 4])]
    proto = model([node("MatMul", ["x", "w"], ["y"])], inputs, ["y"], {"w": floats(3, 4)})
    graph = load(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.constants()] == ["w"]


def test_unused_inputs_are_kept() -> None:
    check(model([node("Relu", ["x"], ["y"])], {"x": X, "idle": X}, ["y"]), {"x": X, "idle": X})


def test_outputs_may_be_inputs_weights_or_repeated() -> None:
    w = floats(4)
    nodes = [node("Relu", ["x"], ["y"])]
    graph = load(model(nodes, {"x": X}, ["y", "x", "w", "y"], {"w": w}))
    verify(graph)
    assert [v.name for v in graph.outputs] == ["y", "x", "w", "y"]
    assert graph.outputs[1] is graph.inputs[0]
    assert graph.outputs[2].const is not None
    assert len(graph) == 1


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_outputs_of_one_name_are_given_each(backend: str) -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": X}, ["y", "x", "y"])
    net = ts.compile(load(proto), backend=backend)
    want = np.maximum(X, 0)
    for got, w in zip(net.run([X]), [want, X, want], strict=True):
        np.testing.assert_array_equal(got, w)
    assert net(X).keys() == {"y", "x"}
    np.testing.assert_array_equal(net(X)["y"], want)


@pytest.mark.parametrize("source", ["x", "w", "r"])
def test_an_output_that_is_only_another_name(source: str) -> None:
    """Dropout is dropped, and its output is a graph output."""
    nodes = [node("Relu", ["x"], ["r"]), node("Dropout", [source], ["y"])]
    w = floats(4)
    want = {"x": X, "w": w, "r": np.maximum(X, 0)}
    check(
        model(nodes, {"x": X}, ["y", "r"], {"w": w}), {"x": X}, expected=[want[source], want["r"]]
    )


def test_nodes_in_any_order() -> None:
    nodes = [
        node("Add", ["b", "c"], ["y"]),
        node("Relu", ["a"], ["c"]),
        node("Neg", ["a"], ["b"]),
        node("Abs", ["x"], ["a"]),
    ]
    graph = check(
        model(nodes, {"x": X}, ["y"]), {"x": X}, expected=[np.maximum(abs(X), 0) - abs(X)]
    )
    assert ops(graph)[0] == "Abs" and ops(graph)[-1] == "Add"


def twice(domain: str = "my") -> Any:
    """A function y = alpha-scaled LeakyRelu(x + b), b optional in its caller."""
    return helper.make_function(
        domain,
        "Scaled",
        ["x", "b"],
        ["y"],
        [
            node("Add", ["x", "b"], ["s"]),
            _with_reference(node("LeakyRelu", ["s"], ["y"]), "alpha", "slope"),
        ],
        [helper.make_opsetid("", 21)],
        attributes=[],
        attribute_protos=[helper.make_attribute("slope", 0.25)],
    )


def _with_reference(n: Any, name: str, refers: str) -> Any:
    a = n.attribute.add()
    a.name, a.ref_attr_name, a.type = name, refers, 1
    return n


@pytest.mark.parametrize("slope", [None, 0.5])
def test_functions_of_the_model_are_inlined(slope: float | None) -> None:
    attrs = {} if slope is None else {"slope": slope}
    nodes = [
        node("Scaled", ["x", "b"], ["h"], domain="my", name="first", **attrs),
        node("Scaled", ["h", "b"], ["y"], domain="my", name="second", **attrs),
    ]
    feeds = {"x": X, "b": floats(3, seed=2)}
    proto = model(nodes, feeds, ["y"], functions=[twice()], domains={"my": 1})

    def leaky(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(a > 0, a, np.float32(slope or 0.25) * a)

    graph = check(proto, feeds, expected=[leaky(leaky(X + feeds["b"]) + feeds["b"])])
    assert ops(graph) == ["Add", "LeakyRelu"] * 2
    assert {n.origin.name for n in graph.nodes} == {"first", "second"}
    assert {"h", "y", "first/s", "second/s"} <= {v.name for v in graph.values()}


def test_a_function_of_the_model_comes_before_an_operator_of_the_same_name() -> None:
    body = helper.make_function(
        "", "Relu", ["x"], ["y"], [node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 21)]
    )
    proto = model([node("Relu", ["x"], ["y"])], {"x": X}, ["y"], functions=[body])
    np.testing.assert_array_equal(run(proto, {"x": X})[0], -X)


def test_the_optional_inputs_of_a_function_may_be_left_out() -> None:
    body = helper.make_function(
        "my",
        "Bounded",
        ["x", "low", "high"],
        ["y"],
        [node("Clip", ["x", "low", "high"], ["y"])],
        [helper.make_opsetid("", 21)],
    )
    nodes = [node("Bounded", ["x", "", "h"], ["y"], domain="my")]
    weights = {"h": np.array(0.25, np.float32)}
    proto = model(nodes, {"x": X}, ["y"], weights, functions=[body], domains={"my": 1})
    np.testing.assert_array_equal(run(proto, {"x": X})[0], np.minimum(X, 0.25))


@pytest.mark.parametrize("opset", range(7, 27))
def test_every_opset_is_read(opset: int) -> None:
    nodes = [node("Add", ["x", "x"], ["h"]), node("Relu", ["h"], ["y"])]
    check(model(nodes, {"x": X}, ["y"], opset=opset), {"x": X}, expected=[np.maximum(2 * X, 0)])


def test_an_opset_of_the_future_is_tried_with_a_note() -> None:
    with pytest.warns(ModelWarning, match="has opset 999; the newest known is"):
        graph = load(model([node("Relu", ["x"], ["y"])], {"x": X}, ["y"], opset=999))
    assert ops(graph) == ["Relu"]


@pytest.mark.parametrize("place, value", [(0, 1), (2, 3), (-1, 3), (-3, 1)])
def test_sequences_of_known_length_are_gone(place: int, value: int) -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x2", "x3"], ["s"]),
        node("SequenceAt", ["s", "p"], ["y"]),
        node("SequenceLength", ["s"], ["n"]),
    ]
    feeds = {"x": X, "x2": X * 2, "x3": X * 3}
    weights = {"p": np.array(place)}
    check(
        model(nodes, feeds, ["y", "n"], weights), feeds, expected=[X * value, np.array(3, np.int64)]
    )


@pytest.mark.parametrize("place, order", [(None, [0, 1, 2]), (0, [2, 0, 1]), (-1, [0, 2, 1])])
def test_insertion_into_and_removal_from_a_sequence(place: int | None, order: list[int]) -> None:
    names = ["s", "c"] if place is None else ["s", "c", "p"]
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("SequenceInsert", names, ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=0),
        node("SequenceErase", ["t", "one"], ["u"]),
        node("ConcatFromSequence", ["u"], ["z"], axis=1, new_axis=1),
    ]
    feeds = {k: floats(3, seed=i) for i, k in enumerate("abc")}
    rows = [feeds["abc"[i]] for i in order]
    weights = {"p": np.array(place or 0), "one": np.array(1)}
    want = [np.concatenate(rows), np.stack([rows[0], rows[2]], axis=1)]
    check(model(nodes, feeds, ["y", "z"], weights), feeds, expected=want)


@pytest.mark.parametrize(
    "split, keepdims, count",
    [(None, 1, 6), (None, 0, 6), (np.array(4), 1, 2), (np.array([1, 2, 3]), 1, 3)],
    ids=str,
)
def test_splits_to_sequences(split: Any, keepdims: int, count: int) -> None:
    x = floats(2, 6)
    nodes = [
        node("SplitToSequence", ["x", *(["n"] if split is not None else [])], ["s"],
             axis=1, keepdims=keepdims),
        node("SequenceAt", ["s", "last"], ["y"]),
        node("SequenceLength", ["s"], ["count"]),
    ]  # fmt: skip
    weights = {"last": np.array(-1), **({} if split is None else {"n": split})}
    cuts = {6: x[:, 5:], 2: x[:, 4:], 3: x[:, 3:]}[count]
    want = [cuts if keepdims else cuts[:, 0], np.array(count, np.int64)]
    check(model(nodes, {"x": x}, ["y", "count"], weights), {"x": x}, expected=want)


def test_a_split_of_nothing_to_a_sequence() -> None:
    nodes = [node("SplitToSequence", ["x"], ["s"]), node("SequenceLength", ["s"], ["y"])]
    x = floats(0, 3)
    check(model(nodes, {"x": x}, ["y"]), {"x": x}, expected=[np.array(0, np.int64)])


def test_the_slope_of_opset_6_belongs_to_the_channels() -> None:
    x, slope = floats(2, 3, 4), floats(3, seed=1)
    proto = model([node("PRelu", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": slope}, opset=6)
    check(proto, {"x": x}, expected=[np.where(x < 0, slope[:, None] * x, x)])
