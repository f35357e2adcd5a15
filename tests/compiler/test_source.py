"""Models whose files are read long after they were hashed: their programs came from the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tinsmith.errors import ModelFileError

SIZE = 24


def write(path: Path, weight: float, external: bool = False) -> Path:
    """y = x w, of a batch of any size; w is the same everywhere. Replaces what lies there."""
    w = numpy_helper.from_array(np.full((SIZE, SIZE), weight, np.float32), "w")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, ["N", SIZE])],
        [info("y", TensorProto.FLOAT, ["N", SIZE])],
        [w],
    )
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        new,
        save_as_external_data=external,
        location="weights",
        size_threshold=0,
    )
    os.replace(new, path)
    return path


def batch(n: int) -> np.ndarray:
    return np.ones((n, SIZE), np.float32)


@pytest.fixture
def warm(tmp_path: Path, cache: Path) -> Path:
    path = write(tmp_path / "a" / "model.onnx", 1.0)
    ts.compile(path)(batch(1))
    return path


def test_the_working_directory_may_change(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(warm.parent.parent / "b" / "model.onnx", 2.0)
    monkeypatch.chdir(warm.parent)
    net = ts.compile("model.onnx")
    monkeypatch.chdir("../b")
    np.testing.assert_array_equal(net(batch(2)), SIZE)
    np.testing.assert_array_equal(ts.compile("model.onnx")(batch(2)), 2 * SIZE)


def test_a_model_that_was_replaced_is_not_read_for_the_one_before(warm: Path) -> None:
    kept = shutil.copy(warm, warm.with_suffix(".kept"))
    net = ts.compile(warm)
    write(warm, 2.0)
    with pytest.raises(ModelFileError, match=r"model\.onnx was replaced or written to before"):
        net(batch(2))
    np.testing.assert_array_equal(net(batch(1)), SIZE)
    np.testing.assert_array_equal(ts.compile(warm)(batch(2)), 2 * SIZE)
    os.replace(kept, warm)
    np.testing.assert_array_equal(ts.compile(warm)(batch(2)), SIZE)


def test_a_model_that_is_replaced_between_its_hash_and_its_reading(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tinsmith.frontends as module

    load = module.load
    path = write(tmp_path / "a" / "model.onnx", 1.0)
    kept = shutil.copy(path, path.with_suffix(".kept"))

    def late(of: Path) -> ts.Graph:
        return load(write(path, 2.0))

    with monkeypatch.context() as patch:
        patch.setattr(module, "load", late)
        with pytest.raises(ModelFileError, match="was replaced or written to"):
            ts.compile(path)
    os.replace(kept, path)
    np.testing.assert_array_equal(ts.compile(path)(batch(2)), SIZE)


def test_a_model_that_was_written_anew_as_it_was_is_the_same(warm: Path) -> None:
    net = ts.compile(warm)
    shutil.copy(warm, warm.with_suffix(".kept"))
    os.replace(warm.with_suffix(".kept"), warm)
    np.testing.assert_array_equal(net(batch(2)), SIZE)


def test_external_data_that_were_replaced(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a" / "model.onnx", 1.0, external=True)
    ts.compile(path)(batch(1))
    net = ts.compile(path)
    (path.parent / "weights").write_bytes(np.full((SIZE, SIZE), 2.0, np.float32).tobytes())
    with pytest.raises(ModelFileError, match="weights was replaced or written to"):
        net(batch(2))
    np.testing.assert_array_equal(ts.compile(path)(batch(2)), 2 * SIZE)


def test_what_is_no_model_is_not_hashed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be as large as a disk."""
    path, hashed = tmp_path / "zeros.onnx", []
    path.write_bytes(bytes(5000))
    monkeypatch.setattr("tinsmith.compiler.store._sha256", hashed.append)
    with pytest.raises(ModelFileError, match="nothing but zero bytes"):
        ts.compile(path)
    assert hashed == []
