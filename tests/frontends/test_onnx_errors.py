"""Models that cannot be imported: everything is listed once, with names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontends.models import branch, floats, model
from tinsmith.errors import GraphError, ImportFailed, ModelFileError, ModelWarning
from tinsmith.frontends import load

node = helper.make_node
X = floats(2, 3)


def refused(nodes: list[Any], inputs: Any = None, outputs: Any = None, **options: Any) -> str:
    outputs = ["y"] if outputs is None else outputs
    with pytest.raises(ImportFailed) as caught:
        load(model(nodes, inputs or {"x": X}, outputs, **options))
    return str(caught.value)


def test_everything_is_listed_once() -> None:
    """Two unknown operators, three times one of them, and an attribute that does not fit."""
    nodes = [
        node("Frobnicate", ["x"], ["a"], name="f1"),
        node("Frobnicate", ["a"], ["b"], name="f2"),
        node("Relu", ["b"], ["c"]),
        node("Frobnicate", ["c"], ["d"]),
        node("Sofmax", ["x"], ["e"]),
        node("Twirl", ["x"], ["g"], domain="my.ops"),
        node("Transpose", ["x"], ["h"], perm=[0, 0]),
        node("Concat", ["d", "e", "g", "h"], ["y"], axis=0),
    ]
    text = refused(nodes, domains={"my.ops": 3})
    assert "Frobnicate (opset 21) x3" in text
    assert "['f1', 'f2', 'd']" in text
    assert "Sofmax (opset 21) x1" in text and "Did you mean 'Softmax'" in text
    assert "my.ops.Twirl (opset 3) x1" in text
    assert "Transpose (opset 21) x1" in text
    assert "6 nodes are not understood" in text
    assert "register an importer" in text
    assert "Concat (" not in text and "Relu (" not in text


REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    (
        "sequence read as a tensor",
        [node("SequenceConstruct", ["x"], ["s"]), node("Relu", ["s"], ["y"])],
        {},
        "is no tensor",
    ),
    ("tensor read as a sequence", [node("SequenceLength", ["x"], ["y"])], {}, "needs a sequence"),
    (
        "position in a sequence",
        [node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "i"], ["y"])],
        {"weights": {"i": np.array(1)}},
        "position 1 is outside of a sequence of 1",
    ),
    (
        "empty sequence",
        [node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
        {},
        "sequence is empty",
    ),
    (
        "optional of nothing",
        [node("Optional", [], ["y"])],
        {},
        "neither an input nor a type",
    ),
    (
        "optional of an optional",
        [node("Optional", ["x"], ["o"]), node("Optional", ["o"], ["y"])],
        {},
        "is optional already",
    ),
    (
        "machine learning",
        [node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml")],
        {"domains": {"ai.onnx.ml": 3}},
        r"ai.onnx.ml\) is not supported",
    ),
    (
        "statistics of training that are read",
        [node("BatchNormalization", ["x", "w", "w", "w", "w"], ["z", "m", "y"])],
        {"weights": {"w": floats(3)}, "opset": 9},
        "training mode",
    ),
    (
        "dropout",
        [node("Dropout", ["x", "", "t"], ["y"])],
        {"weights": {"t": np.array(True)}},
        "training mode",
    ),
    ("missing attribute", [node("Concat", ["x", "x"], ["y"])], {}, "'axis' is missing"),
    ("missing input", [node("Add", ["x"], ["y"])], {}, "input 1 is missing"),
    ("missing input", [node("Relu", [""], ["y"])], {}, "Relu"),
    ("too many inputs", [node("Relu", ["x", "x"], ["y"])], {}, "takes 1 inputs, 2 are given"),
    ("wrong kind", [node("Concat", ["x"], ["y"], axis="one")], {}, "not as expected|axis"),
    ("wrong kind", [node("Conv", ["x", "x"], ["y"], strides="two")], {}, "Conv"),
    ("unknown dtype", [node("Cast", ["x"], ["y"], to=99)], {}, "element type 99 is unknown"),
    ("no value", [node("Constant", [], ["y"])], {}, "it needs one value"),
    (
        "two values",
        [node("Constant", [], ["y"], value_int=1, value_float=1.0)],
        {},
        "it needs one value",
    ),
    ("unwanted output", [node("Relu", ["x"], ["z", "y"])], {}, r"output 1 \('y'\)"),
    ("shapes", [node("MatMul", ["x", "x"], ["y"])], {}, "MatMul"),
    ("dtypes", [node("Add", ["x", "w"], ["y"])], {"weights": {"w": np.arange(3)}}, "Add"),
    (
        "activation",
        [node("FusedConv", ["w", "w"], ["y"], domain="com.microsoft", activation="Magic")],
        {"weights": {"w": floats(1, 1, 3, 3)}, "domains": {"com.microsoft": 1}},
        "'Magic' is not supported",
    ),
    (
        "old scan with lengths",
        [node("Scan", ["x", "x"], ["y"])],
        {"opset": 8},
        "sequence lengths of Scan",
    ),
]


@pytest.mark.parametrize(
    "nodes, options, message", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refusals(nodes: list[Any], options: dict[str, Any], message: str) -> None:
    assert re.search(message, refused(nodes, **options))


def test_inputs_that_are_maps() -> None:
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, None))
    table = helper.make_value_info("s", kind)
    text = refused([node("Identity", ["s"], ["y"])], [table])
    assert "'s' is a map; inputs are tensors, sequences and optionals" in text


def test_inputs_without_a_type() -> None:
    text = refused([node("Relu", ["x"], ["y"])], [helper.make_empty_tensor_value_info("x")])
    assert "'x' has no element type" in text


def test_values_that_nothing_computes_are_named() -> None:
    with pytest.raises(GraphError, match=r"'act' \(Relu\) of the model reads 'gone'"):
        load(model([node("Relu", ["gone"], ["y"], name="act")], {"x": X}, ["y"]))
    with pytest.raises(GraphError, match="the output 'gone' of the model is computed by no node"):
        load(model([node("Relu", ["x"], ["y"])], {"x": X}, ["y", "gone"]))


def test_values_that_nothing_computes_in_a_branch_are_named() -> None:
    yes = branch("yes", [node("Relu", ["gone"], ["t"], name="inner")], ["t"])
    no = branch("no", [node("Relu", ["x"], ["u"])], ["u"])
    nodes = [node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    with pytest.raises(GraphError, match=r"'inner' \(Relu\) of the model reads 'gone'"):
        load(model(nodes, {"x": X, "c": np.array(True)}, ["y"]))


def test_cycles_are_named() -> None:
    nodes = [
        node("Add", ["x", "c"], ["a"], name="one"),
        node("Relu", ["a"], ["b"], name="two"),
        node("Neg", ["b"], ["c"], name="three"),
        node("Abs", ["x"], ["y"], name="four"),
    ]
    with pytest.raises(GraphError, match=r"has a cycle through 'one', 'two', 'three'$"):
        load(model(nodes, {"x": X}, ["y"]))


@pytest.mark.parametrize("nodes", [
    [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])],
    [node("Relu", ["x"], ["x"])],
    [node("Relu", ["x"], ["w"]), node("Relu", ["w"], ["y"])],
], ids=["two nodes", "an input", "a weight"])  # fmt: skip
def test_values_that_are_computed_twice(nodes: list[Any]) -> None:
    with pytest.raises(GraphError, match=r"computes the value '.' twice|cycle"):
        load(model(nodes, {"x": X}, ["x"], {"w": floats(3)}))


def test_problems_in_a_branch_are_listed_with_the_others() -> None:
    yes = branch("yes", [node("Frobnicate", ["x"], ["t"])], ["t"])
    no = branch("no", [node("Twirl", ["x"], ["u"])], ["u"])
    nodes = [
        node("If", ["c"], ["h"], then_branch=yes, else_branch=no),
        node("Bogus", ["h"], ["y"]),
    ]
    text = refused(nodes, {"x": X, "c": np.array(True)})
    assert all(name in text for name in ("Frobnicate", "Twirl", "Bogus"))
    assert "3 nodes" in text


def test_functions_that_call_themselves() -> None:
    body = helper.make_function(
        "my",
        "Again",
        ["x"],
        ["y"],
        [node("Again", ["x"], ["y"], domain="my")],
        [helper.make_opsetid("my", 1)],
    )
    nodes = [node("Again", ["x"], ["y"], domain="my")]
    assert "or one calls itself" in refused(nodes, functions=[body], domains={"my": 1})


def test_weights_of_the_wrong_size_are_named() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": X}, ["y"])
    proto.graph.initializer.add(name="w", data_type=1, dims=[3, 4], raw_data=b"\0" * 40)
    with pytest.raises(ModelFileError, match=r"'w' of the model has 12 elements .* holds 40"):
        load(proto)


@pytest.mark.parametrize("name", ["_sparkle", "consumed_inputs"])
def test_attributes_that_do_no_harm_are_noted(name: str) -> None:
    with pytest.warns(ModelWarning, match=f"attribute '{name}' is not known and was not used"):
        graph = load(model([node("Relu", ["x"], ["y"], **{name: 3})], {"x": X}, ["y"]))
    assert len(graph) == 1


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (node("Relu", ["x"], ["y"], sparkle=3), "'sparkle' is not one of Relu in opset 21: none"),
        (node("Softmax", ["x"], ["y"], axes=[1]), "'axes' is not one of Softmax in opset 21: axis"),
        (node("Gelu", ["x"], ["y"], alpha=1.0), "'alpha' is not one of Gelu in opset 21: approx"),
    ],
    ids=lambda v: v.op_type if hasattr(v, "op_type") else "",
)
def test_attributes_that_an_operator_does_not_have_are_named(proto: Any, message: str) -> None:
    assert message in refused([proto])


WRONG_KINDS = [
    (node("LeakyRelu", ["x"], ["y"], alpha="x"), "'alpha' must be a number, it is 'x'"),
    (node("LeakyRelu", ["x"], ["y"], alpha=[1, 2]), r"'alpha' must be a number, it is \[1, 2\]"),
    (node("Softmax", ["x"], ["y"], axis=1.0), "'axis' must be a whole number, it is 1.0"),
    (node("Concat", ["x"], ["y"], axis=[1]), r"'axis' must be a whole number, it is \[1\]"),
    (node("Transpose", ["x"], ["y"], perm=[0.0, 1.0]), "'perm' must be a list of whole numbers"),
    (node("Gelu", ["x"], ["y"], approximate=1), "'approximate' must be a string, it is 1"),
    (node("Cast", ["x"], ["y"], to=1.0), "'to' must be a whole number or a string, it is 1.0"),
    (node("Constant", [], ["y"], value=1.0), "'value' must be a tensor, it is 1.0"),
    (node("If", ["x"], ["y"], then_branch=1), "'then_branch' must be a graph, it is 1"),
    (node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=1.0), "'scale' must be a list of num"),
    (node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=[2.0]), "'alpha' must be a num"),
    (node("FusedGemm", ["x", "x"], ["y"], domain="com.microsoft", activation=3), "must be a stri"),
]


@pytest.mark.parametrize(("proto", "message"), WRONG_KINDS, ids=lambda v: getattr(v, "op_type", ""))
def test_attributes_of_a_wrong_kind_are_named(proto: Any, message: str) -> None:
    with pytest.raises(ImportFailed, match=f"its attribute .*{message}"):
        load(model([proto], {"x": X}, ["y"], domains={"ai.onnx.ml": 3, "com.microsoft": 1}))


def test_whole_numbers_stand_for_floats() -> None:
    graph = load(model([node("LeakyRelu", ["x"], ["y"], alpha=2)], {"x": X}, ["y"]))
    assert isinstance(graph.node("y").alpha, float) and graph.node("y").alpha == 2


def test_the_kinds_of_attributes_are_those_of_the_schemas() -> None:
    """Of all operators, in all versions; and every name that importers of com.microsoft read."""
    from onnx import defs

    from tinsmith.frontends.onnx import attributes, call

    letters = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g",
               "FLOATS": "F", "INTS": "I", "STRINGS": "S"}  # fmt: skip
    others = {"type": "TYPE_PROTO", "sparse_value": "SPARSE_TENSOR"}
    for schema in defs.get_all_schemas_with_history():
        for name, a in schema.attributes.items():
            if name in call._HARMLESS or others.get(name) == a.type.name:
                continue
            kind = attributes.kind_of(schema.name, name) or ""
            assert letters[a.type.name] in kind, f"{schema.name}.{name} is {a.type}"
    read = set()
    for file in Path(attributes.__file__).parent.glob("contrib*.py"):
        read |= set(re.findall(r'(?:attr|required)\("(\w+)"', file.read_text()))
    assert len(read) > 20 and not read - attributes.KINDS.keys()


def test_an_importer_may_be_registered_from_outside() -> None:
    from tinsmith.frontends.onnx.call import IMPORTERS, Call, importer

    @importer("my.ops.Twirl")
    def twirl(call: Call) -> Any:
        return call.emit("Mul", call[0], call.number(call.attr("factor", 2.0), call[0]))

    try:
        nodes = [node("Twirl", ["x"], ["y"], domain="my.ops", factor=3.0)]
        graph = load(model(nodes, {"x": X}, ["y"], domains={"my.ops": 1}))
        assert [n.op.name for n in graph.nodes] == ["Mul"]
    finally:
        IMPORTERS.remove("my.ops.Twirl")
