"""Models in several files: what was compiled of other contents answers for none of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tinsmith as ts
from tinsmith.errors import ExternalDataError, ModelFileError
from tinsmith.formats.container import MAGIC
from tinsmith.formats.onnx import DTYPES, packed_size
from tinsmith.graph import dtype_of

SIZE = 8
X = np.arange(1, SIZE + 1, dtype=np.float32)
FILL = {"bool": (b"\1", b"\0")}
"""The bytes of which a file is made first and then: numbers of any element type."""
TYPES = {n: t for n, t in DTYPES.items() if t not in ("object", "complex64", "complex128")}


def external(kind: int, dims: list[int], name: str = "w") -> TensorProto:
    """A tensor in the file "w.bin"."""
    tensor = TensorProto(name=name, data_type=kind, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    return tensor


def info(name: str, *dims: int, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def constant(kind: int) -> Any:
    return helper.make_node("Constant", [], ["w"], value=external(kind, [SIZE]))


def cast() -> Any:
    return helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)


def product() -> Any:
    return helper.make_node("Mul", ["x", "f"], ["y"])


def initializer(kind: int) -> Any:
    return {"nodes": [cast(), product()], "initializer": [external(kind, [SIZE])]}


def attribute(kind: int) -> Any:
    return {"nodes": [constant(kind), cast(), product()]}


def function(kind: int) -> Any:
    own, opsets = [constant(kind), cast(), product()], [helper.make_opsetid("", 25)]
    made = helper.make_function("own", "Scale", ["x"], ["y"], own, opsets)
    return {"nodes": [helper.make_node("Scale", ["x"], ["y"], domain="own")], "functions": [made]}


def branch(kind: int) -> Any:
    """An If that stays one: its condition is an input."""
    bodies = {
        f"{name}_branch": helper.make_graph(
            [cast(), product()], name, [], [info("y", SIZE)], [external(kind, [SIZE])]
        )
        for name in ("then", "else")
    }
    return {
        "nodes": [helper.make_node("If", ["c"], ["y"], **bodies)],
        "inputs": [info("c", kind=TensorProto.BOOL)],
    }


def sparse(kind: int) -> Any:
    places = helper.make_tensor("at", TensorProto.INT64, [SIZE], range(SIZE))
    made = helper.make_sparse_tensor(external(kind, [SIZE]), places, [SIZE])
    return {"nodes": [cast(), product()], "sparse_initializer": [made]}


USES: dict[str, Callable[[int], Any]] = {
    f.__name__: f for f in (initializer, attribute, function, branch, sparse)
}


def write(folder: Path, use: str, kind: int) -> Path:
    """y = x w; w is external, of some element type, and in some place of the model."""
    parts: dict[str, Any] = USES[use](kind)
    graph = helper.make_graph(
        parts["nodes"], "g", [info("x", SIZE), *parts.get("inputs", [])], [info("y", SIZE)],
        parts.get("initializer", []), sparse_initializer=parts.get("sparse_initializer", []),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 25), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=parts.get("functions", []))
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    fill(folder, kind, 0)
    return path


def fill(folder: Path, kind: int, which: int, replace: bool = False) -> None:
    """Write the weights, in place or by a rename; their times stay as they are."""
    name = TYPES[kind]
    data = FILL.get(name, (b"\x3f", b"\x40"))[which] * packed_size(dtype_of(name), SIZE)
    file = folder / "w.bin"
    times = file.stat().st_mtime_ns if file.exists() else None
    if replace:
        (folder / "new").write_bytes(data)
        os.replace(folder / "new", file)
    else:
        file.write_bytes(data)
    if times is not None:
        os.utime(file, ns=(times, times))


def feeds(net: ts.Net) -> list[np.ndarray]:
    return [X, np.array(True)][: len(net.inputs)]


def result(path: Path, **options: Any) -> np.ndarray:
    net = ts.compile(path, **options)
    return net.run(feeds(net))[0]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", TYPES, ids=TYPES.get)
def test_changed_files_give_their_own_numbers(
    tmp_path: Path, cache: Path, use: str, kind: int
) -> None:
    path = write(tmp_path, use, kind)
    first = result(path)
    np.testing.assert_array_equal(result(path), first)
    for which, replace in ((1, False), (0, True)):
        fill(tmp_path, kind, which, replace)
        got = result(path)
        np.testing.assert_array_equal(got, result(path, cache=False))
        assert np.array_equal(got, first) == (which == 0)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT4])
def test_a_changed_file_that_nobody_reads_is_one_of_the_model(
    tmp_path: Path, cache: Path, kind: int
) -> None:
    path = write(tmp_path, "initializer", kind)
    model = onnx.load(path, load_external_data=False)
    model.graph.node[1].input[1] = "x"
    del model.graph.node[0]
    path.write_bytes(model.SerializeToString())
    assert [f.name for f in ts.load(path).files] == ["model.onnx", "w.bin"]
    result(path)
    assert ts.compile(path).program().stored
    fill(tmp_path, kind, 1)
    assert not ts.compile(path).program().stored


def test_files_of_equal_content_have_programs_in_common(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path, "initializer", TensorProto.INT4)
    result(path)
    fill(tmp_path, TensorProto.INT4, 0, replace=True)
    assert ts.compile(path).program().stored
    other = tmp_path / "other"
    other.mkdir()
    write(other, "initializer", TensorProto.INT4)
    assert ts.compile(other / "model.onnx").program().stored


def test_a_link_that_leads_elsewhere_now(tmp_path: Path, cache: Path) -> None:
    kind = TensorProto.INT4
    path = write(tmp_path, "initializer", kind)
    files = [tmp_path / "first", tmp_path / "second"]
    for which, file in enumerate(files):
        fill(tmp_path, kind, which)
        os.replace(tmp_path / "w.bin", file)
    found = []
    for file in files:
        (tmp_path / "w.bin").unlink(missing_ok=True)
        (tmp_path / "w.bin").symlink_to(file.name)
        found.append(result(path))
    assert not np.array_equal(*found)


def test_a_file_that_is_gone_is_missed(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path, "initializer", TensorProto.INT4)
    result(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ExternalDataError, match="is missing"):
        ts.compile(path)


def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the new content's hash would stand for the old numbers."""
    import tinsmith.frontends as module

    load = module.load
    path = write(tmp_path, "initializer", TensorProto.INT4)

    def early(of: Path) -> ts.Graph:
        graph = load(of)
        fill(tmp_path, TensorProto.INT4, 1)
        return graph

    with monkeypatch.context() as patch:
        patch.setattr(module, "load", early)
        with pytest.raises(ModelFileError, match=r"w\.bin was replaced or written to"):
            ts.compile(path)
    np.testing.assert_array_equal(result(path), result(path, cache=False))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT4], ids=["mapped", "unpacked"])
def test_a_net_that_is_in_use_keeps_its_numbers(tmp_path: Path, cache: Path, kind: int) -> None:
    path = write(tmp_path, "initializer", kind)
    net = ts.compile(path)
    want = net(X)
    fill(tmp_path, kind, 1)
    np.testing.assert_array_equal(net(X), want)


def test_graphs_say_which_files_they_were_read_from(tmp_path: Path) -> None:
    path = write(tmp_path, "initializer", TensorProto.INT4)
    graph = ts.load(path)
    names = {"model.onnx", "w.bin"}
    assert {f.name for f in graph.files} == {f.name for f in graph.clone().files} == names
    assert all(f.is_absolute() for f in graph.files)
    ts.save(graph, tmp_path / "net.tin")
    assert (tmp_path / "net.tin").read_bytes().startswith(MAGIC)
    assert [f.name for f in ts.load(tmp_path / "net.tin").files] == ["net.tin"]
