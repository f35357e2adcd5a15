"""What cannot be quantised is refused by a named error that says what, where and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import MODEL, SEVEN, tinsmith
from tests.quantizer.nets import F32, Building, residual
from tinsmith.errors import (
    CalibrationError,
    FileNameError,
    MissingFile,
    ModelFileError,
    OptionError,
    QuantizeError,
    UnknownName,
)
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

GRAPH, X = residual()
FIXED, _ = residual(5)


def refused(error: type[Exception], match: str, data: Any = X, graph: Any = GRAPH, **options: Any):
    with pytest.raises(error, match=match):
        ts.quantize(graph, data, progress=False, **options)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (np.zeros_like(X), "constant, 0 everywhere"),
        (np.full_like(X, 3.5), "constant, 3.5 everywhere"),
        (np.where(X > 2, np.nan, X), "NaN or infinity"),
        (np.where(X > 2, np.inf, X), "NaN or infinity"),
        (X[:, :2], r"\[24, 2, 10, 10\], the model takes"),
        (X[0, 0], r"the model takes"),
        (np.moveaxis(X, 1, -1), r"transpose\(0, 3, 1, 2\) fits"),
        (X.astype(np.int8), "int8, the model takes float32"),
        ({"y": X, "z": X}, "no array for the input 'x': it holds y, z"),
        ({"y": X}, "no array for the input 'x': it holds y; give it under that name"),
        ([{"y": X}], "no array for the input 'x': it holds y"),
        ({"y": X, "labels": np.zeros(24)}, "no array for the input 'x': it holds y, labels"),
        ([], "no data"),
        ([(X, X)], "1 inputs, 2 arrays"),
        (X[:0], "no data|hold"),
        (7, "not int"),
        ([7], "are int64"),
        ([None], "are object"),
        ({1: X, 2: X}, "no array for the input 'x': it holds 1, 2"),
        ([lambda: 7], "are int64"),
    ],
)
def test_data_that_do_not_fit(data: Any, match: str) -> None:
    refused(CalibrationError, match, data)


def test_constant_data_are_refused_only_where_a_range_is_needed() -> None:
    b = Building(5, "N", 6)
    state = b.graph.input("h0", Type(F32, (1, "N", 8)))
    w, r = (b.weights(1, 24, n) for n in (6, 8))
    y, _ = b.graph.add(OPS["GRU"], b.x, w, r, None, None, state, hidden_size=8).outputs
    graph = b.ends(b.dense(b.emit("Reshape", y, np.array([5, -1, 8])), 3))
    x = np.random.default_rng(0).standard_normal((5, 4, 6)).astype(np.float32)
    data = {"x": x, "h0": np.zeros((1, 4, 8), np.float32)}
    assert ts.quantize(graph, [data], progress=False).judgement.outputs

    b = Building("N", 3, 4, 4)
    graph = b.ends(b.conv(b.emit("Sub", b.x, np.ones((3, 1, 1), np.float32)), 2))
    refused(CalibrationError, "'x' are constant, 2 everywhere", np.full_like(b.data(), 2), graph)


def test_samples_that_make_up_no_batches() -> None:
    refused(CalibrationError, "24 samples for 'x' make up no batches of 5", graph=FIXED)


def fixed_batch(batch: int, *target: int) -> Graph:
    """A model whose Reshape fixes the batch, though its input leaves it free."""
    b = Building("N", 3, 4, 4)
    y = b.emit("Reshape", b.emit("Relu", b.conv(b.x, 2)), np.array([batch, *target]))
    return b.ends(b.emit("MatMul", y, b.weights(32, 5)))


@pytest.mark.parametrize("target", [32, -1])
def test_samples_are_read_one_by_one_where_nodes_fix_that(target: int) -> None:
    graph = fixed_batch(1, target)
    x = np.random.default_rng(0).standard_normal((9, 3, 4, 4)).astype(np.float32)
    found = ts.quantize(graph, x, progress=False)
    assert found.samples == 9 and len(found.layers) == 2
    one = graph.clone({"x": Type(F32, (1, 3, 4, 4))})
    single = ts.quantize(one, x, progress=False)
    assert found.judgement.outputs == single.judgement.outputs
    y = ts.compile(found.graph)(x[:1])
    np.testing.assert_array_equal(y, ts.compile(single.graph)(x[:1]))


@pytest.mark.parametrize("target", [32, -1])
def test_a_batch_that_nodes_fix_is_told(target: int, tmp_path: Path) -> None:
    graph = fixed_batch(2, target)
    x = np.random.default_rng(0).standard_normal((8, 3, 4, 4)).astype(np.float32)
    told = r"as \[8, 3, 4, 4\]: .*input_shapes=\{'x': \(B, 3, 4, 4\)\}"
    refused(CalibrationError, told, x, graph)
    assert ts.quantize(graph, x[:2], progress=False).samples == 2
    ts.write(graph, path := tmp_path / "x.onnx")
    two = ts.load(path, input_shapes={"x": (2, 3, 4, 4)})
    assert ts.quantize(two, x, progress=False).samples == 8


def test_labels_of_another_number() -> None:
    have = "but the data have 24 samples along the first axis of 'x'"
    refused(CalibrationError, f"`labels` holds 3 labels, {have}", labels=[1, 2, 3])
    own = {"x": X, "labels": np.zeros(1)}
    refused(CalibrationError, f"the data's arrays 'labels' hold 1 label, {have}", own)


@pytest.mark.parametrize("labels", [["a"] * 24, [0.5] * 24, [np.nan] * 24, [None] * 24])
def test_labels_that_are_no_classes(labels: Any) -> None:
    refused(CalibrationError, "labels are the numbers of classes", labels=labels)


@pytest.mark.parametrize("label", [-1, 5, 300])
def test_labels_outside_of_the_classes(label: int) -> None:
    refused(CalibrationError, f"label {label} is none of the 5", labels=[0] * 23 + [label])
    data = {"x": X, "labels": np.array([0] * 23 + [label])}
    refused(CalibrationError, f"label {label} is none of the 5 classes", data)


def test_labels_without_classes() -> None:
    b = Building("N", 3, 6, 6)
    graph, x = b.ends(b.conv(b.x, 4)), b.data()
    refused(CalibrationError, "labels cannot be compared", x, graph, labels=[0] * len(x))
    found = ts.quantize(graph, {"x": x, "labels": np.zeros(len(x))}, progress=False)
    assert "labels in the data are not used" in found.notes[0] and found.judgement.accuracy is None


def test_a_model_without_inputs() -> None:
    graph = Graph("none")
    made = graph.add(OPS["RandomNormal"], shape=(1, 3, 4, 4)).output
    graph.outputs = [graph.add(OPS["Conv"], made, np.ones((2, 3, 1, 1), np.float32)).output]
    refused(CalibrationError, "has no inputs", graph=graph)


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(CalibrationError, "holds no .npy", str(tmp_path))
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[:, :, :5])
    refused(CalibrationError, r"b.npy: the data for 'x' are \[24, 3, 5, 10\]", tmp_path)
    refused(CalibrationError, r"b.npy: the data for 'x'", [tmp_path / "b.npy"])
    np.save(tmp_path / "b.npy", np.where(X > 2, np.nan, X))
    refused(CalibrationError, "b.npy: the data for 'x' hold NaN or infinity", tmp_path)
    (tmp_path / "none").mkdir()
    arguments = "quantize", MODEL, tmp_path / "x.onnx", "--data"
    told = tinsmith(*arguments, tmp_path / "none", code=1).output
    assert "read is .npy, .npz or pictures" in " ".join(told.split())
    np.savez(tmp_path / "c.npz", picture=np.ones((4, 1, 8, 8), np.float32))
    told = tinsmith(*arguments, tmp_path / "c.npz", code=1).output
    assert "no array for the input 'image': it holds picture" in " ".join(told.split())
    for missing in (tmp_path / "lost.npz", [str(tmp_path / "lost")]):
        refused(MissingFile, "there is no file", missing)
    assert issubclass(MissingFile, FileNotFoundError)
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04nonsense")
    refused(ModelFileError, "cannot be read", str(tmp_path / "a.npz"))


@pytest.mark.parametrize("bits", [0, 1, 2, 3, 5, 6, 9, 16, 32, -8, True, "8", 8.5])
def test_bits_that_no_kernel_has(bits: Any) -> None:
    refused(QuantizeError, "no kernel reads weights of", weight_bits=bits)
    refused(QuantizeError, "no kernel reads activations of", activation_bits=bits)


def test_weights_that_are_not_finite() -> None:
    b = Building("N", 3, 4, 4)
    y = b.conv(b.x, 2)
    y.producer.inputs[1].const[0, 0, 0, 0] = np.inf  # type: ignore[union-attr]
    graph = b.ends(b.emit("Relu", b.emit("Mul", y, np.float32(0))))
    refused((CalibrationError, QuantizeError), "finite", b.data(), graph)  # type: ignore[arg-type]


def test_scales_that_would_overflow() -> None:
    b = Building("N", 3, 4, 4)
    graph = b.ends(b.conv(b.conv(b.emit("Mul", b.x, np.float32(3e38)), 4), 2))
    refused(CalibrationError, "not finite", b.data(), graph)


def test_values_that_are_always_zero_stay_in_float() -> None:
    b = Building("N", 3, 4, 4)
    y = b.emit("Relu", b.emit("Add", b.conv(b.x, 4, name="first"), np.float32(-1e4)))
    graph = b.ends(b.conv(y, 2, name="second"))
    found = ts.quantize(graph, b.data(), progress=False)
    assert "is zero for all data" in found.notes[0] and found.notes[0] in str(found)
    assert [layer.name for layer in found.layers] == ["first"]


def test_nothing_to_quantise() -> None:
    b = Building("N", 3)
    refused(QuantizeError, "nothing to quantise", b.data(), b.ends(b.emit("Relu", b.x)))
    names = [n.name for n in GRAPH.nodes]
    refused(QuantizeError, "but those to keep", keep=names)


def test_options_that_are_none() -> None:
    refused(UnknownName, "method", method="best")
    refused(UnknownName, "rounding", rounding="up")
    refused(OptionError, "per_channel must be True or False", per_channel=1)
    refused(OptionError, "max_drop", max_drop=-1)
    refused(OptionError, "max_drop", max_drop="much")
    refused(OptionError, "threads", threads=0)
    refused(OptionError, "keep must be a list", keep="first")
    refused(OptionError, "keep must be a list", keep=None)
    refused(UnknownName, "node to keep.*firsst", keep=["firsst"])


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    model = "examples/digits/digits.onnx"
    data = tmp_path / "data.npz"
    np.savez(data, image=np.zeros((4, 1, 8, 8), np.float32))
    said = tinsmith("quantize", model, tmp_path / "out.onnx", "--data", data, code=1).output
    assert "constant, 0 everywhere" in said and not (tmp_path / "out.onnx").exists()
    said = tinsmith("quantize", model, tmp_path / "out.txt", "--data", data, code=2).output
    assert "says no format" in said
    said = tinsmith("quantize", model, tmp_path / "out.pnnx.param", "--data", data, code=2).output
    assert "has no quantised layers" in said and ".onnx" in said
    said = tinsmith("quantize", model, tmp_path / "none" / "o.onnx", "--data", data, code=1).output
    assert "is no folder" in said

    table = tmp_path / "bytes.table"
    table.write_bytes(bytes(range(128, 256)))
    said = tinsmith("quantize", model, tmp_path / "out.param", "--table", table, code=1).output
    assert "bytes.table, line 1" in said and "has no scales" in said


def test_the_command_tells_which_files_of_a_folder_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(Path(SEVEN).read_bytes())
    (folder / "readme.txt").write_text("what these are")
    said = tinsmith("quantize", MODEL, tmp_path / "out.onnx", "--data", folder).stdout
    assert "calibrated with 2 samples" in said
    assert f"not read of {folder}: readme.txt" in said


def test_a_format_without_an_operator_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Building("N", 3, 4, 4)
    ts.write(b.ends(b.emit("Hardmax", b.conv(b.x, 2))), tmp_path / "x.onnx")
    np.save(tmp_path / "x.npy", b.data())
    monkeypatch.setattr(ts, "quantize", None)
    arguments = tmp_path / "x.onnx", tmp_path / "x.param", "--data", tmp_path / "x.npy"
    assert "cannot be written as ncnn" in tinsmith("quantize", *arguments, code=1).output
    assert sorted(f.name for f in tmp_path.iterdir()) == ["x.npy", "x.onnx"]


def test_the_model_is_not_replaced_by_the_quantised_one(tmp_path: Path) -> None:
    ts.write(GRAPH, path := tmp_path / "x.onnx")
    with pytest.raises(FileNameError, match="from which the model is read"):
        ts.quantize(path, X, progress=False).write(path)
