"""Bytes -> arrays: element types, external data, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tinsmith as ts
from tests.frontends.models import floats, info, model
from tinsmith.errors import (
    BudgetExceeded,
    ExternalDataError,
    ModelFileError,
    ModelWarning,
    TinsmithError,
)
from tinsmith.formats import describe
from tinsmith.formats.container import Container
from tinsmith.formats.npz import read_arrays
from tinsmith.formats.onnx import DTYPES, OnnxModel, read, sniff
from tinsmith.frontends import load
from tinsmith.graph import dtype_of

EMPTY = OnnxModel(None, "net.onnx")


def sample(name: str) -> np.ndarray[Any, Any]:
    """Seven values of a dtype, the extreme ones included."""
    dtype = dtype_of(name)
    if name == "object":
        return np.array(["", "a", "ü", "longer text", "0", "\n", "z"], object)
    if name == "bool":
        return np.array([1, 0, 1, 1, 0, 0, 1], bool)
    if dtype.kind == "c":
        return np.array([0, 1j, -1.5, 2 - 3j, 1e3, -1e-3j, 4], dtype)
    if dtype.kind in "iu" or name in ("int4", "uint4", "int2", "uint2"):
        limits = ml_dtypes.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        return np.array([low, high, 0, 1, high - 1, low + 1, 1], object).astype(dtype)
    return np.array([1, 0.5, 2, 4, 0.25, 1, 0.5], np.float32).astype(dtype)


NUMERIC = [name for name in DTYPES.values() if name != "object"]


def equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()


@pytest.mark.parametrize("name", DTYPES.values())
@pytest.mark.parametrize("shape", [(7,), (7, 1), ()], ids=str)
def test_element_types(name: str, shape: tuple[int, ...]) -> None:
    array = sample(name)[:1].reshape(()) if shape == () else sample(name).reshape(shape)
    proto = numpy_helper.from_array(array, "t")
    assert equal(EMPTY.tensor(proto), array)


@pytest.mark.parametrize("name", NUMERIC)
def test_element_types_in_their_own_fields(name: str) -> None:
    """The form that `helper.make_tensor` writes without `raw`."""
    array = sample(name)
    code = next(k for k, v in DTYPES.items() if v == name)
    values = array.tolist() if array.dtype.kind in "iufcb" else array.astype(np.float32).tolist()
    proto = helper.make_tensor("t", code, [7], values)
    assert not proto.HasField("raw_data")
    assert equal(EMPTY.tensor(proto), array)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
@pytest.mark.parametrize("count", range(9))
def test_packed_types_of_any_length(name: str, count: int) -> None:
    array = np.resize(sample(name), count)
    assert equal(EMPTY.tensor(numpy_helper.from_array(array, "t")), array)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("name", ["float32", "int64", "bool", "int4", "object"])
def test_empty_tensors(name: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype_of(name))
    assert equal(EMPTY.tensor(numpy_helper.from_array(array, "t")), array)


def test_weights_in_the_file_are_not_copied(tmp_path: Path) -> None:
    w = floats(64, 64)
    path = tmp_path / "net.onnx"
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", [1, 64])], ["y"])
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    path.write_bytes(proto.SerializeToString())
    record = read(path)
    assert not record.proto.graph.initializer[0].HasField("raw_data")
    got = record.initializer(0)
    np.testing.assert_array_equal(got, w)
    assert not got.flags.owndata and not got.flags.writeable


def test_large_and_small_weights_keep_their_order() -> None:
    """Large ones are lifted out of the message, small ones stay in it."""
    arrays = [floats(n, seed=n) for n in (3, 5000, 1, 700, 0, 4096)]
    proto = model([], [info("x", [1])], ["x"], {f"w{i}": a for i, a in enumerate(arrays)})
    record = read(proto.SerializeToString())
    for i, array in enumerate(arrays):
        assert equal(record.initializer(i), array)


BAD_SIZES = [
    ([3], b"\0" * 8),
    ([2], b"\0" * 12),
    ([], b""),
    ([0], b"\0" * 4),
    ([1 << 60], b"\0" * 4),
]


@pytest.mark.parametrize("dims, raw", BAD_SIZES, ids=str)
def test_raw_data_that_do_not_fit_the_shape(dims: list[int], raw: bytes) -> None:
    proto = TensorProto(name="conv1.w", data_type=1, dims=dims, raw_data=raw)
    with pytest.raises(ModelFileError, match=r"'conv1.w' of net.onnx has .* the file holds"):
        EMPTY.tensor(proto)


def test_typed_data_that_do_not_fit_the_shape() -> None:
    proto = TensorProto(name="w", data_type=1, dims=[3], float_data=[1.0, 2.0])
    with pytest.raises(ModelFileError, match="3 elements of float32; the file holds 2"):
        EMPTY.tensor(proto)
    proto = TensorProto(name="w", data_type=TensorProto.INT4, dims=[2], int32_data=[0x21, 1, 1])
    with pytest.raises(ModelFileError, match=r"2 elements of int4, .* 1 bytes; the file holds 3"):
        EMPTY.tensor(proto)


@pytest.mark.parametrize("fields, message", [
    ({"data_type": 99, "dims": [1]}, "element type 99, which is unknown"),
    ({"data_type": 1, "dims": [-1]}, "a dimension is negative"),
    ({"data_type": 1, "dims": [1] * 100, "raw_data": bytes(4)}, "has the shape .*: maximum"),
    ({"data_type": 1, "dims": [1 << 62, 1 << 62, 0], "raw_data": b""}, "has the shape .*: cannot"),
    ({"data_type": 8, "dims": [1], "raw_data": b"abcd"}, "strings as raw data"),
])  # fmt: skip
def test_bad_tensors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        EMPTY.tensor(TensorProto(name="w", **fields))


def sparse(values: Any, places: Any, shape: list[int]) -> Any:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values, np.float32), "s"),
        numpy_helper.from_array(np.asarray(places), "i"),
        shape,
    )


@pytest.mark.parametrize("values, places, shape, message", [
    ([1.0], [-1], [4], "-1 is negative"),
    ([1.0], [[0, -1]], [2, 2], "-1 is negative"),
    ([1.0], [4], [4], "do not fit"),
    ([1.0], [[0, 2]], [2, 2], "do not fit"),
    ([1.0], [[0, 0, 0]], [2, 2], "do not fit"),
    ([1.0], [0, 1], [4], "1 values at 2 places"),
    ([1.0, 2.0], [0], [4], "2 values at 1 places"),
    ([1.0], [0.0], [4], "indices of float64"),
    ([1.0], 0, [4], "indices of int64"),
    ([1.0], [0], [-4], "a dimension is negative"),
])  # fmt: skip
def test_bad_sparse_tensors(values: Any, places: Any, shape: list[int], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        OnnxModel(None, "net.onnx").sparse(sparse(values, places, shape))


def test_sparse_tensors_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_BUDGET", "constants=1000")
    made = OnnxModel(None, "net.onnx")
    for _ in range(2):
        np.testing.assert_array_equal(made.sparse(sparse([2.0], [1], [100]))[:3], [0, 2, 0])
    with pytest.raises(BudgetExceeded, match="constants"):
        made.sparse(sparse([2.0], [1], [100]))


def wordy() -> onnx.ModelProto:
    """A model with text in many places."""
    relu = helper.make_node("Relu", ["x"], ["r"], name="relu", doc_string="doc")
    split = helper.make_node("StringSplit", ["t"], ["p", "n"], delimiter="cut")
    call = helper.make_node("Twice", ["r"], ["y"], domain="own", by=2.0, overload="over")
    twice = helper.make_node("LeakyRelu", ["a"], ["b"])
    twice.attribute.add(name="alpha", ref_attr_name="by", type=1)
    opset = helper.make_opsetid("", 20)
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [twice], [opset], ["by"], overload="over"
    )
    v = helper.make_tensor_value_info
    graph = helper.make_graph(
        [relu, split, call], "name", [v("x", 1, ["size"]), v("t", TensorProto.STRING, [1])],
        [v("y", 1, ["other"]), v("p", TensorProto.STRING, [1, "parts"]), v("n", 7, [1])],
        value_info=[v("r", 1, ["more"])],
    )  # fmt: skip
    opsets = [opset, helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    made.producer_name, made.producer_version, made.domain = "maker", "first", "where"
    made.metadata_props.add(key="key", value="value")
    return made


def spots(message: Any, path: tuple[Any, ...] = ()) -> Any:
    """Where a message holds text, or bytes: the ways to its fields."""
    for field, value in message.ListFields():
        many = not hasattr(value, "ListFields") and not isinstance(value, str | bytes | int | float)
        for i, one in enumerate(value if many else [value]):
            here = (*path, (field.name, i if many else None))
            if hasattr(one, "ListFields"):
                yield from spots(one, here)
            elif isinstance(one, str | bytes):
                yield here, one


def test_text_that_is_not_utf8_anywhere(tmp_path: Path) -> None:
    """Refused in words, or a model that prints, and that can be saved."""
    whole, found = wordy(), 0
    assert load(whole).name == "name"
    for path, text in spots(whole):
        made: Any = onnx.ModelProto()
        made.CopyFrom(whole)
        holder = made
        for name, i in path[:-1]:
            holder = getattr(holder, name) if i is None else getattr(holder, name)[i]
        (name, i), mark = path[-1], b"@" * 8 if isinstance(text, bytes) else "@" * 8
        if i is None:
            setattr(holder, name, mark)
        else:
            getattr(holder, name)[i] = mark
        data = made.SerializeToString().replace(b"@" * 8, b"\xff\xfe@@@@@\xc0")
        found += b"\xff\xfe" in data
        with contextlib.suppress(TinsmithError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = load(data)
            assert str(graph)
            ts.save(graph, tmp_path / "net.tin")
            assert load(tmp_path / "net.tin").inputs[0].type == graph.inputs[0].type
    assert found > 40


# ---- files that are none


def odd_files(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.close()
    (folder / "circle").symlink_to("circle")
    (folder / "folder").mkdir()
    named = {name: folder / name for name in ("fifo", "socket", "circle", "folder", "absent")}
    return named | {"device": Path("/dev/zero")}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["fifo", "socket", "circle", "folder", "device", "absent"])
def test_what_is_no_regular_file_is_refused_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    path = odd_files(Path())[name]
    signal.alarm(20)
    try:
        for read in (load, ts.compile, read_arrays, Container):
            with pytest.raises(ModelFileError, match=re.escape(path.name)):
                read(path)
        if name != "device":
            with pytest.raises(ExternalDataError, match=name):
                load(external(Path(), location=name))
    finally:
        signal.alarm(0)


# ---- external data

W = floats(4, 3)


def external(folder: Path, **entries: Any) -> Path:
    """A model in `folder` whose weight "w" is stored as the entries say."""
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", [1, 4])], ["y"])
    t = proto.graph.initializer.add(name="w", data_type=1, dims=[4, 3], data_location=1)
    for key, value in entries.items():
        t.external_data.add(key=key, value=str(value))
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"1234567" + W.tobytes() + b"rest")
    path = external(tmp_path, location="sub/w.bin", offset=7, length=W.nbytes)
    (w,) = load(path).constants()
    assert w.const is not None
    np.testing.assert_array_equal(w.const, W)
    assert not w.const.flags.owndata and not w.const.flags.writeable


def test_external_data_without_offset_and_length(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (w,) = load(external(tmp_path, location="w.bin")).constants()
    assert w.const is not None
    np.testing.assert_array_equal(w.const, W)


@pytest.mark.parametrize("location", [
    "../w.bin", "sub/../../w.bin", "/etc/hostname", "C:\\w.bin", "..\\w.bin", "\\\\host\\w.bin", "",
    ".", "w.bin\0", "\0", "//w.bin", "./../w.bin",
])  # fmt: skip
def test_external_paths_stay_in_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(ExternalDataError, match=r"tensor 'w' of net\.onnx"):
        load(external(folder, location=location))


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links here")
def test_external_links_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "dir").symlink_to(tmp_path)
    for location in ("link.bin", "dir/w.bin"):
        with pytest.raises(ExternalDataError, match="leads out of the model's folder"):
            load(external(folder, location=location))
    (folder / "real.bin").write_bytes(W.tobytes())
    (folder / "inside.bin").symlink_to(folder / "real.bin")
    load(external(folder, location="inside.bin"))


@pytest.mark.parametrize("entries, message", [
    ({"location": "gone.bin"}, "'gone.bin' is missing"),
    ({"location": "n" * 5000}, "is missing"),
    ({"location": "folder"}, "'folder' is missing"),
    ({"location": "w.bin", "offset": (1 << 63) - 8}, "which has 48"),
    ({"location": "w.bin", "offset": 1 << 64}, "which has 48"),
    ({"location": "w.bin", "length": -48}, "needs 48 bytes"),
    ({"location": "w.bin", "offset": "9" * 5000}, "offset or length is not a number"),
    ({"location": "w.bin", "offset": 1}, "needs the bytes 1 to 49 of 'w.bin', which has 48"),
    ({"location": "w.bin", "offset": -8}, "needs the bytes -8 to"),
    ({"location": "w.bin", "length": 47}, "needs 48 bytes, its entry in 'w.bin' has 47"),
    ({"location": "w.bin", "length": 1 << 62}, "needs 48 bytes"),
    ({"location": "w.bin", "offset": "x"}, "offset or length is not a number"),
    ({"location": "empty.bin"}, "which has 0"),
])  # fmt: skip
def test_external_data_that_are_missing_or_short(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExternalDataError, match=message):
        load(external(tmp_path, **entries))


def test_external_data_need_a_path(tmp_path: Path) -> None:
    path = external(tmp_path, location="w.bin")
    with pytest.raises(ExternalDataError, match="load the model from its path"):
        load(path.read_bytes())


# ---- files that are not models

GOOD = model(
    [helper.make_node("MatMul", ["x", "w"], ["y"])],
    [info("x", [1, 40])],
    ["y"],
    {"w": floats(40, 20)},
).SerializeToString()


def saved_model() -> bytes:
    """The beginning of a TensorFlow SavedModel: a version, and a message that is longer."""
    return b"\x08\x01\x12\x8a\xae\x01\n\x84\x16" + b"\x12\x05" * 20


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.ones(3))
    return file.getvalue()


NOT_MODELS = [
    (b"", "an empty file"),
    (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "a PNG image"),
    (b"\xff\xd8\xff\xe0" + b"\1" * 50, "a JPEG image"),
    (b"PK\x03\x04" + b"\1" * 50, "a zip archive"),
    (b"\x1f\x8b\x08" + b"\1" * 50, "a gzip archive"),
    (b"\x00" * 100, "nothing but zero bytes"),
    (b"hello world, this is text", "text that starts 'hello world"),
    (b'{"ir_version": 8}', "JSON text"),
    (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
    (b"<!DOCTYPE html><html>", "an HTML page"),
    (b"\x1c\0\0\0TFL3" + b"\1" * 50, "a TensorFlow Lite model"),
    (b"GGUF\3\0\0\0" + b"\1" * 50, "a GGUF model"),
    (saved_model(), "a TensorFlow SavedModel"),
    (archive(), "an archive of numpy arrays"),
    (b"\x80\x04\x95" + b"\1" * 50, "a Python pickle"),
    (b"\xf3\xfe\xfa\xf9" * 30, "binary data of an unknown kind"),
]


@pytest.mark.parametrize("data, found", NOT_MODELS, ids=[m for _, m in NOT_MODELS])
def test_what_is_not_a_model_is_named(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(ModelFileError, match=found):
            read(source)
    assert found in describe(data)
    assert not sniff(data)


def test_the_suffix_is_named_where_the_content_disagrees(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\xf3\xfe\xfa\xf9" * 30)
    with pytest.raises(ModelFileError, match="Its name says ONNX, its content does not"):
        load(path)


@pytest.mark.parametrize("name, data, found", [
    ("net.mnn", b"\x18\0\0\0\x14" + b"\1" * 50, "an MNN model"),
    ("net.tmfile", b"\2\0\0\0\0\0\0@" + b"\1" * 50, "a Tengine model"),
    ("net.tnnproto", b'"1 58 1 4206624770 ,"\n"input 1 3 224 224 ,"\n', "a TNN model"),
    ("net.txt", b'"1 58 1 4206624770 ,"\n"input 1 3 224 224 ,"\n', "a TNN model"),
    ("net.tnnmodel", b"\4\0\xbc\xfa" + b"\0" * 9, "a TNN model"),
    ("saved_model.pb", saved_model(), "a TensorFlow SavedModel"),
    ("net.tflite", b"\x1c\0\0\0TFL3" + b"\1" * 50, "a TensorFlow Lite model"),
    ("net.prototxt", b'name: "net"\nlayer {\n', "a Caffe model"),
    ("net.pt", b"PK\x03\x04" + b"\1" * 50, "a PyTorch model"),
    ("net.keras", b"PK\x03\x04" + b"\1" * 50, "a Keras model"),
])  # fmt: skip
def test_models_of_other_formats_are_named(
    tmp_path: Path, name: str, data: bytes, found: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=f"looks like {found}, not.* Convert it to ONNX first"):
        load(path)


def test_a_name_does_not_hide_what_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "net.mnn"
    path.write_bytes(b"<!DOCTYPE html><html>")
    with pytest.raises(ModelFileError, match=r"looks like an HTML page[^.]*\([^.]*\)\.$"):
        load(path)


@pytest.mark.parametrize("cut", [0.03, 0.3, 0.6, 0.9, 0.999])
def test_truncated_models(cut: float) -> None:
    with pytest.raises(ModelFileError, match=r"truncated|damaged|no graph"):
        load(GOOD[: int(len(GOOD) * cut)])


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(ModelFileError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="cannot load a model from int"):
        load(3)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_never_crash(data: bytes) -> None:
    with pytest.raises(TinsmithError):
        load(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_models_never_crash(data: st.DataObject) -> None:
    """A few bytes of a model are changed: it loads, or fails with an error of ours."""
    damaged = bytearray(GOOD)
    head = [*range(300), *range(len(GOOD) - 300, len(GOOD))]
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.sampled_from(head))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TinsmithError), warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        load(bytes(damaged))


def test_a_model_is_recognised_by_content(tmp_path: Path) -> None:
    path = tmp_path / "strange.bin"
    path.write_bytes(GOOD)
    assert [v.name for v in load(path).outputs] == ["y"]
    assert [v.name for v in load(str(path)).outputs] == ["y"]
    assert [v.name for v in load(GOOD).outputs] == ["y"]
    assert [v.name for v in load(bytearray(GOOD)).outputs] == ["y"]


@pytest.mark.parametrize("take", [load, ts.compile])
@pytest.mark.parametrize("path, told", [("", "empty"), ("~/net.onnx", r"'~'.*expanduser")])
def test_paths_that_are_none(take: Any, path: str, told: str) -> None:
    with pytest.raises(ModelFileError, match=told):
        take(path)
