"""ONNX's own test runner against Tinsmith: a sample of it, or all with TINSMITH_FULL_CONFORMANCE=1.

Cases run through the cpu backend, at the suite's own tolerances.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinsmith.onnx_backend as backend
from tests.backend.suite import EXCLUDED, cases, reason
from tinsmith.errors import ImportFailed, InputError, TargetError

FULL = bool(os.environ.get("TINSMITH_FULL_CONFORMANCE"))
SHARE = 1 if FULL else 8
"""One case in so many is run."""

ALL = [c for c in cases() if c[0] != "Real" or FULL]
CHOSEN = [c for c in ALL if reason(c[1]) is None and crc32(c[1].encode()) % SHARE == 0]


@pytest.mark.parametrize(("category", "name", "run"), CHOSEN, ids=[c[1] for c in CHOSEN])
def test_case(category, name, run, tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))  # where the suite writes its data
    run()


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_exclusions_are_needed(pattern):
    """An exclusion matches something, and at least one of what it matches fails."""
    from fnmatch import fnmatch

    matching = [c for c in cases() if fnmatch(c[1].removesuffix("_cpu"), pattern)]
    assert matching

    def fails(run):
        try:
            run()
        except Exception:
            return True
        return False

    assert any(fails(run) for _, _, run in matching)


def test_few_are_excluded():
    nodes = [c for c in cases() if c[0] == "Node"]
    expected = [c for c in nodes if reason(c[1]) is None]
    assert len(expected) >= min(1855, 0.98 * len(nodes))


# ---- the interface itself


def add_model(shape=(2, 3)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    s = helper.make_tensor_value_info("s", TensorProto.FLOAT, shape)
    d = helper.make_tensor_value_info("d", TensorProto.FLOAT, shape)
    nodes = [helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("Sub", ["x", "y"], ["d"])]
    graph = helper.make_graph(nodes, "two", [x, y], [s, d])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full((2, 3), 2, np.float32)


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
@pytest.mark.parametrize(
    "inputs", [[X, Y], (X, Y), {"y": Y, "x": X}], ids=["list", "tuple", "dict"]
)
def test_prepare_and_run(engine, inputs):
    rep = backend.prepare(add_model(), "CPU", backend=engine)
    got = rep.run(inputs)
    np.testing.assert_array_equal(got[0], X + Y)
    np.testing.assert_array_equal(got["d"], X - Y)
    assert got._fields == ("s", "d")
    again = backend.run_model(add_model(), inputs, "CPU", backend=engine)
    np.testing.assert_array_equal(again[1], X - Y)


def test_run_refuses_options_and_wrong_inputs():
    rep = backend.prepare(add_model(), "CPU")
    with pytest.raises(InputError, match="give them to prepare"):
        rep.run([X, Y], threads=2)
    with pytest.raises(InputError, match="needs 'y'"):
        rep.run([X])


@pytest.mark.parametrize(
    ("node", "inputs", "options", "want"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), [X - 2], {}, np.maximum(X - 2, 0)),
        (helper.make_node("Relu", ["x"], ["y"]), X - 2, {}, np.maximum(X - 2, 0)),
        (helper.make_node("Relu", ["x"], ["y"]), {"x": X - 2}, {}, np.maximum(X - 2, 0)),
        (helper.make_node("Mul", ["x", "x"], ["y"]), {"x": X}, {}, X * X),
        (helper.make_node("Clip", ["x", "", "top"], ["y"]), [X, np.float32(3)], {},
         np.minimum(X, 3)),
        (helper.make_node("Squeeze", ["x"], ["y"], axes=[0]), [X[None]], {"opset_version": 11}, X),
        (helper.make_node("StringConcat", ["a", "b"], ["y"]),
         [np.array(["a", "b"], object), np.array("c", object)], {}, np.array(["ac", "bc"], object)),
    ],
    ids=["list", "array", "dict", "twice", "absent", "opset", "strings"],
)  # fmt: skip
def test_run_node(node, inputs, options, want):
    got = backend.run_node(node, inputs, "CPU", **options)
    np.testing.assert_array_equal(got[0], want)


def test_run_node_says_what_is_missing():
    with pytest.raises(InputError, match="Mul reads a, b; 1 arrays are given"):
        backend.run_node(helper.make_node("Mul", ["a", "b"], ["y"]), [X])
    with pytest.raises(ImportFailed, match="Nonsense"):
        backend.run_node(helper.make_node("Nonsense", ["a"], ["y"]), [X])


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    assert backend.is_compatible(add_model())
    assert not backend.is_compatible(add_model(), "CUDA")
    with pytest.raises(TargetError, match="no device 'CUDA'"):
        backend.prepare(add_model(), "CUDA")


def test_equal_columns_give_equal_results():
    """The classic networks of the suite have equal weights everywhere: a softmax over their huge
    logits tells by how little the last columns are added up differently."""
    k = 512
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x = np.random.default_rng(0).standard_normal((3, k)).astype(np.float32)
    for n in (40, 1000, 97):
        (y,) = backend.run_node(node, [x, np.full((k, n), 0.01, np.float32)])
        assert (y == y[:, :1]).all()


def test_the_package_ships_its_data():
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    assert len([c for c in ALL if c[0] == "PyTorchConverted"]) == len(
        list((data / "pytorch-converted").iterdir())
    )
