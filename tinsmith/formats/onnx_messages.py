"""Makes ONNX messages from numpy arrays and Python values, and writes model files."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.formats.nibbles import packed, packed_size
from tinsmith.formats.onnx import DTYPES
from tinsmith.formats.whole import whole_file
from tinsmith.graph import OptionalType, SequenceType, Type
from tinsmith.graph.types import MapType

CODES = {name: code for code, name in DTYPES.items()}
"""Dtype name -> TensorProto.DataType."""
_LARGEST = 2**31 - 2**20  # bytes of weights inside a model; protobuf reads messages below 2 GiB
_ALIGNMENT = 4096  # of weights in a file of their own, so that they can be mapped
_SMALL = 1024  # bytes; smaller weights stay in the model


def code_of(dtype: Any) -> int:
    """The number in TensorProto.DataType of an element type, given as a dtype or by name."""
    return CODES[np.dtype(dtype).name if not isinstance(dtype, str) else dtype]


def type_proto(type: Type, key: str = "int64") -> Any:
    """The TypeProto of a type. Unnamed free dimensions, "?7", become unknown dims. `key` is the
    dtype of the keys of maps."""
    from onnx import helper

    if isinstance(type, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type.item, key))
    if isinstance(type, OptionalType):
        return helper.make_optional_type_proto(type_proto(type.item, key))
    if isinstance(type, MapType):
        return helper.make_map_type_proto(CODES[key], type_proto(type.item))
    dims = type.shape
    if dims is not None:
        dims = [None if isinstance(d, str) and d.startswith("?") else d for d in dims]
    return helper.make_tensor_type_proto(code_of(type.dtype), dims)


def tensor_proto(array: np.ndarray[Any, Any], name: str) -> Any:
    """The TensorProto of an array, with its elements inside."""
    from onnx import TensorProto

    proto = TensorProto(name=name, data_type=code_of(array.dtype), dims=array.shape)
    if array.dtype == object:
        flat = [str(s).encode("utf-8", "surrogateescape") for s in array.reshape(-1)]
        proto.string_data.extend(flat)
    else:
        proto.raw_data = raw(array)
    return proto


def raw(array: np.ndarray[Any, Any]) -> bytes:
    """The elements of an array as in a file: little-endian, those of 4 and 2 bits packed."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return packed(array).tobytes()


def attribute_proto(name: str, value: Any) -> Any:
    """The AttributeProto `name` of a Python value: a number, text, an array, a message (GraphProto,
    TypeProto), or a list of numbers or texts."""
    from onnx import AttributeProto, helper

    if isinstance(value, np.ndarray):
        value = tensor_proto(value, "")
    empty = isinstance(value, list | tuple) and not value
    kind = AttributeProto.INTS if empty else None  # which an empty list does not tell
    return helper.make_attribute(name, value, attr_type=kind)


def save(proto: Any, weights: dict[str, np.ndarray[Any, Any]], path: Path, inside: int) -> None:
    """Add initializers (`weights`, by name) to a ModelProto, and write it. They go into the file if
    they take at most `inside` bytes together, else, but for small ones, into `<path>.data`. Each
    file is written under another name, then renamed, the weights first. Raises OSError."""
    if sum(packed_size(a.dtype, a.size) for a in weights.values()) <= min(inside, _LARGEST):
        proto.graph.initializer.extend(tensor_proto(a, name) for name, a in weights.items())
    else:
        _save_weights(proto, weights, path.with_name(f"{path.name}.data"))
    with whole_file(path) as file:
        file.write(proto.SerializeToString(deterministic=True))


def _save_weights(proto: Any, weights: dict[str, np.ndarray[Any, Any]], path: Path) -> None:
    """Write weights to the file `path`, aligned, and add them to the ModelProto as initializers
    that refer to it; small ones and text go into the ModelProto itself."""
    from onnx import TensorProto

    with whole_file(path) as file:
        for name, array in weights.items():
            size = packed_size(array.dtype, prod(array.shape))
            if size < _SMALL or array.dtype == object:
                proto.graph.initializer.append(tensor_proto(array, name))
                continue
            at = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(at)
            file.write(raw(array))
            tensor = TensorProto(name=name, data_type=code_of(array.dtype), dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", path.name), ("offset", at), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            proto.graph.initializer.append(tensor)
