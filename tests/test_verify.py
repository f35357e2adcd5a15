"""`verify`: that it finds what is wrong, and where it begins."""

from __future__ import annotations

import json
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import tinsmith as ts
from tests.chains import chain
from tests.models import residual
from tests.transformer import feeds, transformer
from tests.wrong import misplaced, spoiled
from tinsmith.cli import main
from tinsmith.compiler.compare import compare
from tinsmith.errors import (
    EngineFailed,
    InputNameError,
    InputTypeError,
    MissingFile,
    MissingPackage,
    ModelFileError,
    TinsmithError,
)
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Tier, kernel
from tinsmith.ops import OPS
from tinsmith.passes.choice import PASSES
from tinsmith.passes.manager import register

RANDOM = np.random.default_rng(2)


X = {"x": RANDOM.standard_normal((8, 16), np.float32)}


@pytest.fixture
def wrong_kernels():
    """`matmul_wrong` computes with other weights; `matmul_misplaced` does so only behind others."""

    @kernel("MatMul", Tier.VECTOR, dtypes="float32")
    def matmul_wrong(site):
        """Wrong on purpose."""
        return spoiled(site)

    @kernel("MatMul", Tier.VECTOR, dtypes="float32")
    def matmul_misplaced(site):
        """Wrong on purpose, unless it reads the graph's inputs."""
        return misplaced(site)

    yield
    KERNELS.remove("matmul_wrong")
    KERNELS.remove("matmul_misplaced")


def test_what_is_right_agrees():
    found = ts.verify(ts.load(chain()), X)
    assert found and found.ok and found.culprit is None
    assert [d.name for d in found.outputs] == ["y", "side"]
    assert all(0 <= d.relative < 1e-5 for d in found.outputs)
    assert "agrees" in str(found) and "DIFFERS" not in str(found)
    assert ts.verify(ts.load(chain())).ok  # random inputs


def test_a_transformer_agrees():
    assert ts.verify(ts.load(transformer()), feeds(2, 9), tolerance=1e-5).ok


@pytest.mark.parametrize("where", ["first", "second", "third"])
def test_a_wrong_kernel_is_found(wrong_kernels, where, tmp_path):
    found = ts.verify(
        ts.load(chain()), X, kernels={where: "matmul_wrong"}, save=tmp_path, cache=False
    )
    assert not found
    culprit = found.culprit
    assert culprit.kind == "kernel" and culprit.kernel == "matmul_wrong"
    assert culprit.op.startswith("MatMul") and where in str(culprit.origin)
    assert culprit.difference.relative > 1e-3
    wrong = {d.name for d in found.outputs if not d.ok}
    assert wrong == ({"y", "side"} if where == "first" else {"y"})


def test_the_replay_shows_the_same(wrong_kernels, tmp_path):
    found = ts.verify(
        ts.load(chain()), X, kernels={"second": "matmul_wrong"}, save=tmp_path, cache=False
    )
    (model,) = tmp_path.glob("*.tin")
    assert found.culprit.replay == str(model) and str(model) in str(found)
    with np.load(model.with_suffix(".npz")) as data:
        arrays = dict(data)
    graph = ts.load(model)
    assert list(arrays) == [v.name for v in graph.inputs]
    assert ts.verify(graph, arrays).ok
    again = ts.verify(graph, arrays, kernels={"MatMul": "matmul_wrong"}, cache=False)
    assert not again and again.culprit.kind == "kernel"


def test_a_kernel_that_is_wrong_in_its_place_only(wrong_kernels):
    found = ts.verify(ts.load(chain()), X, kernels={"MatMul": "matmul_misplaced"}, cache=False)
    assert found.culprit.kind == "plan" and "second" in found.culprit.origin
    assert "right alone" in str(found)


def test_a_node_that_makes_more_of_rounding():
    graph = Graph("waves")
    x = graph.input("x", Type("float32", (64, 512)))
    weights = (RANDOM.standard_normal((512, 64)) * 1e6).astype(np.float32)
    product = OPS["MatMul"](x, graph.const(weights, "w"), name="product")
    graph.outputs = [product, OPS["Sin"](product, name="wave")]
    data = {"x": RANDOM.standard_normal((64, 512)).astype(np.float32)}
    found = ts.verify(graph, data, tolerance=1e-5, cache=False)
    assert found.culprit.kind == "inputs" and found.culprit.name == "wave", str(found)
    assert "makes a small difference large" in str(found)


@pytest.fixture
def wrong_pass():
    @register("portable", priority=50.5, name="spoil-tanh")
    @dataclass(frozen=True)
    class Spoil:
        """Wrong on purpose: tanh of float32 becomes sine."""

        def run(self, graph, context):
            found = [n for n in graph.nodes if n.op.name == "Tanh" and n.output.dtype == np.float32]
            for n in found:
                graph.replace(n.output, OPS["Sin"](n.inputs[0]))
            graph.sweep()
            return len(found)

    yield "spoil-tanh"
    PASSES.remove("spoil-tanh")


def test_a_wrong_pass_is_named(wrong_pass):
    found = ts.verify(ts.load(chain()), X, cache=False)
    assert not found
    assert (found.culprit.kind, found.culprit.name) == ("pass", wrong_pass)


def test_rounding_of_weights_is_named() -> None:
    graph = ts.Graph("small")
    w = graph.const(np.random.default_rng(0).standard_normal((64, 512), np.float32), "w")
    graph.outputs = [OPS["MatMul"](graph.input("x", ts.Type("float32", (8, 64))), w)]
    culprit = ts.verify(graph, weights="int4", cache=False).culprit
    assert (culprit.kind, culprit.name) == ("pass", "small-weights")


def test_a_pass_that_is_wrong_once_halves_are_widened_is_named(wrong_pass):
    graph = ts.Graph("halves")
    x = graph.input("x", ts.Type(np.dtype(np.float16), (8,)))
    graph.outputs = [OPS["Tanh"](OPS["Neg"](x))]
    found = ts.verify(graph, {"x": np.linspace(-2, 2, 8, dtype=np.float16)}, cache=False)
    assert not found
    assert (found.culprit.kind, found.culprit.name) == ("pass", wrong_pass)


def test_without_bisection():
    want = ts.compile(ts.load(chain()), backend="numpy")(**X)
    spoiled = {"y": want["y"] + np.float32(0.1), "side": want["side"]}
    found = ts.verify(ts.load(chain()), X, against=spoiled, bisect=False)
    assert [d.ok for d in found.outputs] == [False, True] and found.culprit is None


# ---- expected outputs


def test_expected_outputs_and_inputs_in_a_file(tmp_path):
    want = ts.compile(ts.load(chain()), backend="numpy")(**X)
    file = tmp_path / "want.npz"
    np.savez(file, **want, **X)
    assert ts.verify(ts.load(chain()), against=file).ok
    np.savez(file, y=want["y"] * np.float32(1.1), **X)
    found = ts.verify(ts.load(chain()), against=file)
    assert [d.name for d in found.outputs] == ["y"] and not found
    assert "the reference differs as well" in found.note
    np.savez(file, z=want["y"])
    with pytest.raises(InputNameError, match="holds z, but no output"):
        ts.verify(ts.load(chain()), X, against=file)
    with pytest.raises(InputNameError, match="the given mapping holds z, but"):
        ts.verify(ts.load(chain()), X, against={"z": want["y"]})
    file.write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match="cannot be read: it is neither"):
        ts.verify(ts.load(chain()), X, against=file)
    with pytest.raises(MissingFile, match=r"no file 'nowhere\.npz'"):
        ts.verify(ts.load(chain()), X, against="nowhere.npz")
    with pytest.raises(ModelFileError, match="Did you mean 'onnxruntime'"):
        ts.verify(ts.load(chain()), X, against="ort")
    np.savez(file, **want, **X)
    other = {"x": X["x"] + np.float32(1)}
    with pytest.raises(InputNameError, match=r"holds another 'x'.*leave the inputs out"):
        ts.verify(ts.load(chain()), other, against=file)
    assert ts.verify(ts.load(chain()), X, against=file).ok
    with pytest.raises(ModelFileError, match="cannot compare with 'torch'"):
        ts.verify(ts.load(chain()), X, against="torch")
    with pytest.raises(InputNameError, match="no input named 'q'"):
        ts.verify(ts.load(chain()), {"q": X["x"]})


# ---- another engine


@pytest.fixture
def engine(monkeypatch):
    """ONNX's reference evaluator behind the names that ONNX Runtime has."""
    from onnx.reference import ReferenceEvaluator

    class InferenceSession:
        def __init__(self, source, options, providers):
            proto = onnx.load(source) if isinstance(source, str) else onnx.load_from_string(source)
            self.run_it = ReferenceEvaluator(proto)
            self.names = [o.name for o in proto.graph.output]
            self.inputs = [types.SimpleNamespace(name=i.name) for i in proto.graph.input]

        def get_inputs(self):
            return self.inputs

        def run(self, names, given):
            return self.run_it.run(names, given)

    module = types.ModuleType("onnxruntime")
    module.InferenceSession, module.__version__ = InferenceSession, "1.0"
    module.SessionOptions = lambda: types.SimpleNamespace(
        add_session_config_entry=lambda name, value: None
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", module)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chain.onnx"
    onnx.save(chain(), path)
    return path


def test_another_engine_agrees(engine, file):
    assert ts.verify(file, X, against="onnxruntime").ok
    assert ts.verify(onnx.load(file), X, against="onnxruntime").ok


def test_an_operator_that_is_wrong_here_is_named(engine, file, monkeypatch):
    monkeypatch.setattr(OPS["Tanh"], "reference", lambda x: np.tanh(x) * x.dtype.type(1.1))
    found = ts.verify(file, X, against="onnxruntime", cache=False)
    assert not found
    assert (found.culprit.kind, found.culprit.name) == ("model", "tanh0")
    assert found.culprit.origin.startswith("Tanh 'tanh0' of ")


def test_a_kernel_that_is_wrong_is_named_with_another_engine_too(engine, file, wrong_kernels):
    found = ts.verify(
        file, X, against="onnxruntime", kernels={"third": "matmul_wrong"}, cache=False
    )
    assert found.culprit.kind == "kernel" and "third" in found.culprit.origin


@pytest.mark.parametrize(("method", "what"), [("__init__", "open"), ("run", "run")])
def test_an_engine_that_fails_is_named(engine, file, monkeypatch, method, what):
    def fail(*args, **options):
        raise RuntimeError("no implementation for Tanh")

    monkeypatch.setattr(sys.modules["onnxruntime"].InferenceSession, method, fail)
    with pytest.raises(EngineFailed, match=f"cannot {what} the model: no implementation for Tanh"):
        ts.verify(file, X, against="onnxruntime")


def test_the_engine_is_missing(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackage, match="pip install onnxruntime"):
        ts.verify(file, X, against="onnxruntime")


# ---- comparing


@pytest.mark.parametrize(
    ("got", "want", "ok", "says"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), True, "relative"),
        (np.float32([1, 2]), np.float32([1, 2.1]), False, "at [1] it is 2.0, not 2.1"),
        (np.float32([1, 2]), np.float64([1, 2]), False, "it is float32[2], not float64[2]"),
        (np.float32([[1, 2]]), np.float32([1, 2]), False, "it is float32[1, 2], not float32[2]"),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True, "max error 0"),
        (np.float32([1, np.nan]), np.float32([1, 2]), False, "at [1] it is nan, not 2.0"),
        (np.float32([1, np.inf]), np.float32([1, np.inf]), True, "max error 0"),
        (np.float32([1, np.inf]), np.float32([1, -np.inf]), False, "it is inf, not -inf"),
        (np.float32([1, 3e38]), np.float32([1, np.inf]), False, "it is 3e+38, not inf"),
        (np.float32([np.inf, 1]), np.float32([np.inf, 2]), False, "at [1]"),
        (np.int64([1, 2]), np.int64([1, 2]), True, "max error 0"),
        (np.int64([1000, 2]), np.int64([1001, 2]), False, "at [0] it is 1000, not 1001"),
        (np.int64([0, 2**53 + 1]), np.int64([0, 2**53]), False, "it is 9007199254740993, not"),
        (np.array([True]), np.array([False]), False, "it is True, not False"),
        (np.array(["a"], object), np.array(["a"]), True, "string"),
        (np.array(["a"], object), np.array(["b"]), False, "'a', not 'b'"),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), True, "[0, 3]"),
        (np.float32([0, 0]), np.float32([0, 0]), True, "relative 0"),
        (np.float32([1e-6, 0]), np.float32([0, 0]), True, "relative 1e-06"),
        (np.float32(2), np.float32(2.5), False, "at [] it is 2.0, not 2.5"),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 2], ml_dtypes.bfloat16), True, "bfl"),
    ],
)
def test_compare(got, want, ok, says):
    found = compare("y", got, want, 1e-3)
    assert found.ok is ok
    assert says in str(found)


# ---- the command


def command(*arguments, code=0):
    got = CliRunner().invoke(main, ["verify", *map(str, arguments)])
    if got.exception is not None and not isinstance(got.exception, SystemExit):
        raise got.exception
    assert got.exit_code == code, got.output
    return got.output


def test_the_command(file, tmp_path):
    said = command(file, "--dim", "n=8")
    assert "chain against reference" in said and said.count("agrees") == 2
    want = ts.compile(ts.load(chain()), backend="numpy")(**X)
    expected = tmp_path / "want.npz"
    np.savez(expected, y=want["y"] * np.float32(1.5), **X)
    said = command(file, "--against", expected, "--no-bisect", code=3)
    assert "DIFFERS y: float32[8, 16]" in said
    plain = json.loads(command(file, "--against", expected, "--no-bisect", "--json", code=3))
    assert plain["ok"] is False and plain["outputs"][0]["relative"] > 0.3
    assert "give 'reference', 'onnxruntime', an .npz" in command(file, "--against", "x", code=2)
    command(file, "--backend", "numpy", code=2)
    assert "--dim n=2 does not fit" in command(file, "--against", expected, "--dim", "n=2", code=1)


def test_outputs_of_other_inputs_are_not_blamed_on_the_importer(file, tmp_path):
    np.savez(tmp_path / "want.npz", y=np.zeros((9, 16), np.float32))
    said = command(file, "--dim", "n=8", "--against", tmp_path / "want.npz", code=3)
    assert "[8, 16], not float32[9, 16]\nx was random: are the expected outputs those" in said


def test_the_command_bisects(file, tmp_path, wrong_kernels):
    said = command(
        file, "--dim", "n=8", "--kernels", "second=matmul_wrong", "--save", tmp_path / "found it",
        "--no-cache", "--tolerance", "1e-4", "--passes=-merge-common", "--threads", "2", code=3,
    )  # fmt: skip
    assert "the kernel matmul_wrong of MatMul" in said and "'second'" in said
    replay = shlex.split(next(line for line in said.splitlines() if "replay" in line))
    assert replay[1:3] == ["tinsmith", "verify"]
    assert {"--tolerance=0.0001", "--passes=-merge-common", "--threads=2"} <= set(replay)
    again = command(*replay[3:], "--save", tmp_path / "again", code=3)
    assert "within 0.0001" in again and "the kernel matmul_wrong of MatMul" in again


def test_the_replay_of_a_right_kernel_differs_by_the_same_tolerance(file, tmp_path):
    options = ["--tolerance", "1e-9", "--save", tmp_path, "--target", "sse2"]
    said = command(file, "--dim", "n=8", *options, code=3)
    replay = shlex.split(next(line for line in said.splitlines() if "replay" in line))
    assert "--target=sse2" in replay
    assert "wrong" not in said and "which a tolerance of 1e-06 admits" in said
    assert "DIFFERS" in command(*replay[3:], "--save", tmp_path, code=3)


def test_random_inputs_need_a_type_that_can_be_drawn():
    graph = ts.Graph("strings")
    x = graph.input("x", Type("string", (2,)))
    graph.outputs = [x]
    with pytest.raises(InputTypeError, match="give it an array"):
        ts.verify(graph)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"inputs": 5}, "inputs must be arrays in a list"),
        ({"inputs": [np.ones(2)] * 2}, "2 arrays are given; residual takes x"),
        ({"tolerance": "a"}, "tolerance must be a number from 0"),
        ({"tolerance": float("nan")}, "tolerance must be a number from 0"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_what_verify_cannot_take(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TinsmithError, match=says):
        ts.verify(residual(), **given)


def test_numbers_of_numpy_are_numbers() -> None:
    assert ts.verify(residual(), tolerance=np.float32(1e-3), seed=np.int64(1)).ok


def test_inputs_of_any_name_are_saved(tmp_path: Path) -> None:
    """`numpy.savez` calls its own first parameter `file`."""
    from tinsmith.formats.npz import read_arrays, write_npz

    arrays = {"file": np.arange(3), "args": np.float32(2), "a/b": np.zeros((0, 2)), "": np.ones(1)}
    got = read_arrays(write_npz(tmp_path / "saved", arrays))
    assert {n: a.tolist() for n, a in got.items()} == {n: a.tolist() for n, a in arrays.items()}
