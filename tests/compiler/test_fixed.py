"""Inputs that are fixed when a model is compiled, and what a net notes of slow steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tests.cli.harness import parsed, tinsmith
from tinsmith import ops
from tinsmith.errors import InputNameError, InputShapeError, InputTypeError, OptionError
from tinsmith.graph import Graph, Type

X = np.float32([[1, -2, 3]])


def branching() -> onnx.ModelProto:
    """y = Relu(x) where rate is 16000, else Tanh(Tanh(x))."""
    info = helper.make_tensor_value_info
    node = helper.make_node

    def branch(name: str, *nodes: Any) -> Any:
        out = info(nodes[-1].output[0], TensorProto.FLOAT, ["N", 3])
        return helper.make_graph(list(nodes), name, [], [out])

    graph = helper.make_graph(
        [
            node("Equal", ["rate", "known"], ["fast"]),
            node(
                "If", ["fast"], ["y"], "choose",
                then_branch=branch("a", node("Relu", ["x"], ["a"])),
                else_branch=branch("b", node("Tanh", ["x"], ["c"]), node("Tanh", ["c"], ["b"])),
            ),
        ],
        "0f" * 16,
        [info("x", TensorProto.FLOAT, ["N", 3]), info("rate", TensorProto.INT64, [])],
        [info("y", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor("known", TensorProto.INT64, [], [16000])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    onnx.save(branching(), tmp_path / "speech.onnx")
    return tmp_path / "speech.onnx"


def test_an_input_that_is_fixed_is_gone_and_its_branch_taken(file: Path) -> None:
    net = ts.compile(file, fixed={"rate": 16000})
    assert net.input_names == ["x"] and np.array_equal(net(X), np.maximum(X, 0))
    assert net.notes == [] and net.profile(X).reference_share == 0
    assert {s.kind for s in net.program().plan.steps} <= {"native", "view"}


@pytest.mark.parametrize("options", [{}, {"backend": "numpy"}, {"cache": False}])
def test_each_value_has_its_own_program(file: Path, options: dict[str, Any]) -> None:
    for rate in (16000, np.int64(8000), np.array(16000), 8000):
        want = np.maximum(X, 0) if rate == 16000 else np.tanh(np.tanh(X))
        np.testing.assert_allclose(ts.compile(file, fixed={"rate": rate}, **options)(X), want, 1e-5)
    whole = ts.compile(file, **options)
    assert list(whole.inputs) == ["x", "rate"]
    np.testing.assert_allclose(whole(X, 8000), np.tanh(np.tanh(X)), 1e-5)


def test_a_fixed_program_is_stored(file: Path) -> None:
    ts.compile(file, fixed={"rate": 8000})(X)
    again = ts.compile(file, fixed={"rate": 8000})
    np.testing.assert_allclose(again(X), np.tanh(np.tanh(X)), 1e-5)
    assert again.program().stored
    assert not ts.compile(file, fixed={"rate": 16000}).program(((1, 3),)).stored


def test_a_graph_is_not_changed(file: Path) -> None:
    graph = ts.load(file)
    text = str(graph)
    net = ts.compile(graph, fixed={"rate": 16000})
    assert str(graph) == text and list(net.inputs) == ["x"]
    (values,) = net.run(["y"], [X])
    assert np.array_equal(values, np.maximum(X, 0))
    ts.save(net, file.with_suffix(".tin"))
    assert list(ts.compile(file.with_suffix(".tin")).inputs) == ["x"]


def test_a_fixed_shape_reaches_what_depends_on_it() -> None:
    g = Graph("reshape")
    x, shape = g.input("x", Type("float32", (2, 3))), g.input("shape", Type("int64", ("K",)))
    g.outputs = [ops.Reshape(x, shape)]
    net = ts.compile(g, fixed={"shape": [3, 2]})
    assert net(np.ones((2, 3), np.float32)).shape == (3, 2)
    assert net.outputs[net.output_names[0]].shape == (3, 2)


@pytest.mark.parametrize(
    ("fixed", "error", "says"),
    [
        ({"rat": 1}, InputNameError, "no input named 'rat' to be fixed. Did you mean 'rate'"),
        ({"rate": 0.5}, InputTypeError, "is int64, which cannot hold 0.5"),
        ({"rate": [1, 2]}, InputShapeError, r"must have shape \[\], not \[2\]"),
        ({"rate": "fast"}, InputTypeError, "cannot hold '?fast"),
        (16000, OptionError, "fixed must be a dict"),
        ({"x": [[1], [2, 3]]}, OptionError, "fixed must be a dict"),
    ],
)
def test_what_cannot_be_fixed(file: Path, fixed: Any, error: type, says: str) -> None:
    for options in ({}, {"backend": "numpy"}):
        with pytest.raises(error, match=says):
            ts.compile(file, fixed=fixed, **options)


@pytest.mark.parametrize(
    "value", [None, 2 + 3j, np.datetime64("2020"), b"1", "1.5", 1e300, np.array([None])], ids=repr
)
def test_floats_hold_numbers_that_they_can_hold(value: Any) -> None:
    g = Graph("scaled")
    x, k = g.input("x", Type("float32", (2,))), g.input("k", Type("float32", ()))
    g.outputs = [ops.Mul(x, k)]
    with pytest.raises(InputTypeError, match="cannot hold"):
        ts.compile(g, fixed={"k": value})
    with pytest.raises(OptionError, match="fixed must be"):
        ts.compile(g, fixed={"k": np.ma.array(2.0, mask=True)})
    assert ts.compile(g, fixed={"k": float("inf")})(np.ones(2, np.float32))[0] == np.inf


def test_code_that_takes_all_inputs_is_not_run_with_fewer(file: Path) -> None:
    net = ts.compile(file, fixed={"rate": 16000})
    net(X)
    ts.save(net, file.with_suffix(".tin"), code=True)
    assert np.array_equal(ts.compile(file.with_suffix(".tin"), trust=True)(X), np.maximum(X, 0))
    with pytest.raises(OptionError, match="without trust"):
        ts.compile(file.with_suffix(".tin"), trust=True, fixed={"x": X})


def test_verify_takes_fixed_inputs(file: Path) -> None:
    assert ts.verify(file, {"x": X}, fixed={"rate": 16000}).ok
    with pytest.raises(InputNameError, match="no input named 'rate'"):
        ts.verify(file, {"rate": 1}, fixed={"rate": 16000})


def test_the_commands_take_fixed_inputs(file: Path) -> None:
    assert list(parsed("run", file, "--fix", "rate=16000")["inputs"]) == ["x"]
    assert list(parsed("bench", file, "--fix", "rate=16000", "--repeat", 3)["inputs"]) == ["x"]
    assert "rate" not in tinsmith("inspect", file, "--fix", "rate=16000").stdout
    assert "If" not in tinsmith("inspect", file, "--fix", "rate=8000", "--at", "canonical").stdout
    assert "agrees" in tinsmith("verify", file, "--fix", "rate=8000").stdout
    assert "is not NAME=NUMBER" in tinsmith("run", file, "--fix", "rate=much", code=2).stderr
    assert "given twice" in tinsmith("run", file, "--fix=rate=1", "--fix=rate=2", code=2).stderr


# ---- notes


def test_a_branch_in_numpy_is_noted_with_what_decides_it(file: Path) -> None:
    says = "If 'choose' runs the 2 nodes of its graphs in numpy, by reference"
    net = ts.compile(file)
    for rows in (1, 2, 2):
        net(np.ones((rows, 3), np.float32), 1)
    assert len(net.notes) == 1 and net.notes[0].startswith(says)
    assert "compile(..., fixed={'rate': VALUE}), or --fix rate=VALUE" in net.notes[0]
    assert says in tinsmith("run", file, "rate=8000").stdout
    assert says in tinsmith("bench", file, "--repeat", 3).stdout


def rare(size: int = 64) -> Graph:
    """A determinant, which no kernel computes, of a product."""
    g = Graph("rare")
    x = g.input("x", Type("float32", (size, size)))
    g.outputs = [ops.Det(ops.Relu(x), name="det")]
    return g


def test_most_of_the_work_in_numpy_is_noted() -> None:
    net = ts.compile(rare())
    (note,) = net.notes
    assert note.startswith("1 step, ") and "of the operations, in numpy, by reference: Det;" in note
    assert "net.explain() says why (Det 'det': " in note
    assert ts.compile(rare(), kernels="reference").notes == []  # as was asked


def test_little_of_it_is_not() -> None:
    g = Graph("much")
    x = g.input("x", Type("float32", (512, 512)))
    y = ops.MatMul(x, np.ones((512, 512), np.float32))
    g.outputs = [y, ops.Det(g.input("z", Type("float32", (3, 3))))]
    assert ts.compile(g).notes == []


def test_the_note_is_stored_with_the_program(tmp_path: Path) -> None:
    ts.save(rare(), tmp_path / "rare.tin")
    first, second = (ts.compile(tmp_path / "rare.tin") for _ in range(2))
    assert second.program().stored and first.notes == second.notes != []
