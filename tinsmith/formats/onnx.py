"""Reads ONNX files: protobuf messages and numpy arrays.

Large weights are not copied, but views of the mapped model file or external files. Such arrays are
read-only, and may be unaligned."""

from __future__ import annotations

import importlib.util
import ntpath
import os
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tinsmith import budget
from tinsmith.errors import ExternalDataError, ModelFileError
from tinsmith.formats import describe
from tinsmith.formats.mapped import Files, opened
from tinsmith.formats.nibbles import BITS, packed_size, unpacked
from tinsmith.formats.protobuf import BYTES, VARINT, encode_varint, fields
from tinsmith.graph import dtype_of
from tinsmith.graph.types import name_of

DTYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "object", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""TensorProto.DataType -> dtype name; strings are `object`."""

_STRING = 8
_LIFT = 1024  # raw_data of fewer bytes stays in the message

# ModelProto field -> wire type, for recognition
_MODEL = {1: VARINT, 5: VARINT, **dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), BYTES)}


def sniff(head: bytes, path: str = "") -> bool:
    """Whether a file begins with fields of a ModelProto, the graph or an opset among them, or an IR
    version first. `path` is ignored."""
    seen = set()
    try:
        for field in fields(head, 0, 1 << 62, "file"):
            if _MODEL.get(field.number) != field.wire:
                return False
            if field.number == 2 and head[field.start : field.start + 1] == b"\n":
                return False  # no text, a message: TensorFlow's SavedModel
            seen.add(field.number)
            if field.number == 7 or field.end >= len(head):
                break
    except (ModelFileError, IndexError):
        pass
    return bool(seen & {7, 8}) or (1 in seen and head[:1] == b"\x08" and 0 < head[1] < 64)


class OnnxModel:
    """An ONNX model: the ModelProto `proto`, without its large weights, and methods that read
    tensors as arrays.

    file    the name of its file, for messages; "" if it comes from no file
    folder  where files with external data lie; None: there can be none
    lifted  index of an initializer -> its bytes, which are not in `proto`
    files   the files opened so far; those with external data are added
    """

    def __init__(
        self,
        proto: Any,
        file: str = "",
        folder: Path | None = None,
        lifted: Mapping[int, memoryview] | None = None,
        files: Files | None = None,
    ) -> None:
        self.proto, self.file, self.folder = proto, file, folder
        self.name = file or "the model"
        self.files = Files() if files is None else files
        self._lifted = lifted or {}
        self._mapped: dict[Path, Any] = {}
        self._spent = 0

    def initializer(self, index: int) -> np.ndarray[Any, Any]:
        """The array of `proto.graph.initializer[index]`."""
        return self.tensor(self.proto.graph.initializer[index], self._lifted.get(index))

    def tensor(self, t: Any, raw: memoryview | None = None) -> np.ndarray[Any, Any]:
        """The array of a TensorProto, as a view of the file where possible. `raw`: its data, if
        they are not in `t`. Raises ModelFileError if they do not fit its type and shape,
        ExternalDataError if an external file lacks them or must not be read."""
        label = f"the tensor {t.name!r} of {self.name}"
        if t.data_type not in DTYPES:
            raise ModelFileError(f"{label} has the element type {t.data_type}, which is unknown")
        dtype, shape = dtype_of(DTYPES[t.data_type]), tuple(t.dims)
        if any(d < 0 for d in shape):
            raise ModelFileError(f"{label} has the shape {list(shape)}: a dimension is negative")
        if t.data_location == 1:
            raw = self._external(t, packed_size(dtype, prod(shape)), label)
        elif raw is None and t.HasField("raw_data"):
            raw = memoryview(t.raw_data)
        if raw is None:
            flat = _typed(t, dtype, prod(shape), label)
        elif t.data_type == _STRING:
            raise ModelFileError(f"{label} holds strings as raw data, which ONNX does not allow")
        else:
            flat = _from_raw(raw, dtype, prod(shape), label)
        return _shaped(flat, shape, label)

    def copied(self, t: Any) -> np.ndarray[Any, Any]:
        """As `tensor`, for a tensor in a function or subgraph. It is read again in each expansion,
        so it counts against the budget of constants. Raises BudgetExceeded, too."""
        array = self.tensor(t)
        self.spend(array.nbytes, f"the constants of {self.name}, functions expanded")
        return array

    def spend(self, nbytes: int, what: str) -> None:
        """Count `nbytes` of constants that the import makes, beyond those in the file, against
        their budget; `what` names them. Raises BudgetExceeded."""
        self._spent += nbytes
        budget.check("constants", self._spent, what)

    def sparse(self, t: Any) -> np.ndarray[Any, Any]:
        """The dense array of a SparseTensorProto; it counts against the budget of constants. Raises
        ModelFileError for indices that do not fit, BudgetExceeded."""
        values, indices = self.tensor(t.values), self.tensor(t.indices)
        shape = tuple(t.dims)
        label = f"the sparse tensor {t.values.name!r} of {self.name}"
        if any(d < 0 for d in shape):
            raise ModelFileError(f"{label} has the shape {list(shape)}: a dimension is negative")
        if indices.dtype != np.int64 or indices.ndim not in (1, 2):
            raise ModelFileError(f"{label} has indices of {indices.dtype}{list(indices.shape)}")
        if len(indices) != values.size:
            raise ModelFileError(f"{label} has {values.size} values at {len(indices)} places")
        if indices.size and indices.min() < 0:
            raise ModelFileError(f"{label}: its indices do not fit: {indices.min()} is negative")
        self.spend(prod(shape) * values.dtype.itemsize, f"{label}, made dense as those before it")
        flat = np.zeros(prod(shape), values.dtype)
        try:
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), shape)
            flat[indices] = values
        except (IndexError, ValueError) as error:
            raise ModelFileError(f"{label}: its indices do not fit: {error}") from error
        return _shaped(flat, shape, label)

    def _external(self, t: Any, size: int, label: str) -> memoryview:
        """The `size` bytes of a tensor in an external file, which is mapped once. Raises
        ExternalDataError."""
        entries = {e.key: e.value for e in t.external_data}
        path = _external_path(self.folder, entries.get("location", ""), label)
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries.get("length") or size)
        except ValueError as error:
            raise ExternalDataError(f"{label}: offset or length is not a number: {error}") from None
        if length != size:
            raise ExternalDataError(
                f"{label} needs {size} bytes, its entry in {path.name!r} has {length}"
            )
        if path not in self._mapped:
            try:
                self._mapped[path] = self.files.map(path)
            except OSError as error:
                raise ExternalDataError(
                    f"{label}: {str(path)!r} cannot be read: {error}"
                ) from error
        data = self._mapped[path]
        if offset < 0 or offset + size > len(data):
            raise ExternalDataError(
                f"{label} needs the bytes {offset} to {offset + size} of {path.name!r}, "
                f"which has {len(data)}: is the file truncated?"
            )
        return memoryview(data)[offset : offset + size]


def is_proto(source: Any) -> bool:
    return hasattr(source, "opset_import") and hasattr(source, "graph")


def read(source: Any) -> OnnxModel:
    """Read a model from a path, bytes, or a ModelProto. Raises ModelFileError if it is missing,
    damaged, or not ONNX."""
    if is_proto(source):
        return OnnxModel(source)
    file, data, files = opened(source)
    folder = Path(source).parent if file else None
    name = file or "the model"
    head = bytes(data[: 1 << 12])
    if not sniff(head):
        raise ModelFileError(f"{name} is not an ONNX model: it looks like {describe(head)}")
    try:
        slim, lifted = _lift(data)
    except ModelFileError as error:
        raise ModelFileError(f"{name} cannot be read as ONNX: {error}") from None
    return OnnxModel(_parse(slim, name, len(data)), file, folder, lifted, files)


def _parse(data: bytes, name: str, size: int) -> Any:
    """Parse a ModelProto without its large weights (`_lift`). `name` and `size` (bytes of the whole
    file) are for messages. Raises ModelFileError."""
    from google.protobuf.message import DecodeError

    proto = _messages().ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            f"{name} ({size} bytes) cannot be read as ONNX: it is truncated or damaged ({error})"
        ) from None
    if not proto.HasField("graph"):
        raise ModelFileError(f"{name} holds no graph: it is truncated, or not an ONNX model")
    return proto


def _messages() -> Any:
    """Import the module of ONNX's protobuf messages without the rest of `onnx`, which takes four
    times as long. A later `import onnx` uses the same module."""
    name = "onnx.onnx_ml_pb2"
    if name not in sys.modules and "onnx" not in sys.modules:
        found = importlib.util.find_spec("onnx")
        for folder in (found.submodule_search_locations or ()) if found else ():
            file = Path(folder) / "onnx_ml_pb2.py"
            spec = importlib.util.spec_from_file_location(name, file) if file.exists() else None
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return sys.modules.setdefault(name, module)
    return importlib.import_module(name)


def _lift(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    """Cut the large weights (initializers with raw data of _LIFT bytes or more) out of a
    ModelProto, so that protobuf does not copy them. Return (bytes of the rest, index of an
    initializer -> its bytes). Raises ModelFileError for two graphs."""
    lifted: dict[int, memoryview] = {}
    out = bytearray()
    graphs = 0
    for field in fields(data, 0, len(data), "model"):
        if field.number != 7 or field.wire != BYTES:
            out += data[field.begin : field.end]
            continue
        graphs += 1
        if graphs > 1:
            raise ModelFileError("it holds two graphs")
        graph = _lift_graph(data, field.start, field.end, lifted)
        out += b"\x3a" + encode_varint(len(graph)) + graph
    return bytes(out), lifted


def _lift_graph(data: memoryview, start: int, end: int, lifted: dict[int, memoryview]) -> bytearray:
    """The bytes of the GraphProto in `data[start:end]` without its large weights, which are added
    to `lifted`, by index."""
    out = bytearray()
    index = 0
    for field in fields(data, start, end, "graph"):
        if field.number != 5 or field.wire != BYTES:
            out += data[field.begin : field.end]
            continue
        if field.end - field.start < _LIFT:
            out += data[field.begin : field.end]
        else:
            tensor = bytearray()
            for part in fields(data, field.start, field.end, "weight"):
                if part.number == 9 and part.wire == BYTES and part.end - part.start >= _LIFT:
                    lifted[index] = data[part.start : part.end]
                else:
                    tensor += data[part.begin : part.end]
            out += b"\x2a" + encode_varint(len(tensor)) + tensor
        index += 1
    return out


def _from_raw(
    raw: memoryview, dtype: np.dtype[Any], count: int, label: str
) -> np.ndarray[Any, Any]:
    """`count` elements from the bytes `raw` as a flat array: a view, unless several lie in a byte.
    Raises ModelFileError if the number of bytes is wrong."""
    size = packed_size(dtype, count)
    if len(raw) != size:
        raise ModelFileError(
            f"{label} has {count} elements of {dtype.name}, which are {size} bytes; "
            f"the file holds {len(raw)}"
        )
    if name_of(dtype) in BITS:
        return unpacked(np.frombuffer(raw, np.uint8), dtype, count)
    return np.frombuffer(raw, dtype) if size else np.zeros(count, dtype)


def _typed(t: Any, dtype: np.dtype[Any], count: int, label: str) -> np.ndarray[Any, Any]:
    """`count` elements, as a flat array, of a TensorProto whose data are in the field for its type,
    such as `float_data`. Raises ModelFileError, with `label`, if their number is another."""
    name = DTYPES[t.data_type]
    if name == "object":
        flat = np.array([s.decode("utf-8", "surrogateescape") for s in t.string_data], object)
    elif name in ("float32", "complex64"):
        flat = np.array(t.float_data, np.float32).view(dtype)
    elif name in ("float64", "complex128"):
        flat = np.array(t.double_data, np.float64).view(dtype)
    elif name == "int64":
        flat = np.array(t.int64_data, np.int64)
    elif name in ("uint32", "uint64"):
        flat = np.array(t.uint64_data, np.uint64).astype(dtype)
    else:
        words = np.array(t.int32_data, np.int32)
        if name in BITS:
            flat = _from_raw(words.astype(np.uint8).data, dtype, count, label)
        elif name in ("int8", "int16", "int32", "uint8", "uint16", "bool"):
            flat = words.astype(dtype)
        else:  # the bit patterns of 16-bit and 8-bit floats
            flat = words.astype(f"u{dtype.itemsize}").view(dtype)
    if flat.size != count:
        raise ModelFileError(
            f"{label} has {count} elements of {dtype.name}; the file holds {flat.size}"
        )
    return flat


def _shaped(flat: np.ndarray[Any, Any], shape: tuple[int, ...], label: str) -> np.ndarray[Any, Any]:
    """Reshape an array to a shape of as many elements. Raises ModelFileError where numpy has no
    such shape: too many axes, or too large sizes."""
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise ModelFileError(f"{label} has the shape {list(shape)}: {error}") from error


def _external_path(folder: Path | None, location: str, label: str) -> Path:
    """The path of an external file, `location` in the model's folder. Raises ExternalDataError,
    with the tensor's `label`, for a place outside the folder, a missing file, or if `folder` is
    None (the model was bytes)."""
    if folder is None:
        raise ExternalDataError(
            f"{label} is stored in {location!r}: load the model from its path to find that file"
        )
    parts = PurePosixPath(location.replace("\\", "/")).parts
    absolute = location.startswith(("/", "\\")) or ntpath.splitdrive(location)[0]
    if not parts or absolute or "\0" in location:
        raise ExternalDataError(f"{label}: {location!r} is not a path relative to the model")
    try:
        home = folder.resolve()
        path = folder.joinpath(*parts)  # as it is named: where links lead may change
        inside = path.resolve().is_relative_to(home)
    except (OSError, RuntimeError) as error:  # links in a circle
        raise ExternalDataError(f"{label}: {location!r} leads nowhere: {error}") from error
    if ".." in parts or not inside:
        raise ExternalDataError(f"{label}: {location!r} leads out of the model's folder {home}")
    if not os.path.isfile(path):  # of a name that is too long, too, this says only no
        raise ExternalDataError(f"{label}: its data file {location!r} is missing in {home}")
    return path
