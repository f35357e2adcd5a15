"""Attributes and types of ONNX messages as Python values."""

from __future__ import annotations

from typing import Any

from tinsmith.formats.onnx import DTYPES, OnnxModel
from tinsmith.frontends.onnx.call import Unsupported
from tinsmith.graph import Dim, MapType, Type
from tinsmith.graph.types import HOLDERS
from tinsmith.ops import fresh

_KINDS = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors",
    10: "graphs", 11: "sparse_tensor", 13: "tp",
}  # fmt: skip
"""AttributeProto.AttributeType -> the field that has the value."""
_ANONYMOUS = {"", "?", "None", "-1"}


def attribute(a: Any, model: OnnxModel) -> Any:
    """The value of an AttributeProto: a number, a str, an array, a GraphProto, a TypeProto, or a
    list of these. `model` reads tensors. Raises Unsupported for an unknown kind."""
    kind = _KINDS.get(a.type)
    if kind is None:  # files from before attributes had a type
        kind = next((k for k in _KINDS.values() if _is_set(a, k)), None)
    if kind is None:
        raise Unsupported(f"its attribute {a.name!r} has the kind {a.type}, which is unknown")
    value = getattr(a, kind)
    if kind == "s":
        return value.decode("utf-8", "surrogateescape")
    if kind == "strings":
        return [s.decode("utf-8", "surrogateescape") for s in value]
    if kind == "t":
        return model.copied(value)
    if kind == "sparse_tensor":
        return model.sparse(value)
    if kind == "tensors":
        return [model.copied(t) for t in value]
    return list(value) if kind in ("floats", "ints", "graphs") else value


def _is_set(a: Any, kind: str) -> bool:
    value = getattr(a, kind)
    repeated = kind in ("floats", "ints", "strings", "tensors", "graphs")
    return bool(len(value)) if repeated else a.HasField(kind)


def type_of(proto: Any, name: str) -> Type | None:
    """The Type of a TypeProto; None where that has no element type. Raises Unsupported, which calls
    the value `name`, for values that a graph cannot have (sparse tensors)."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind in ("sequence_type", "optional_type"):
        item = type_of(getattr(proto, kind).elem_type, name)
        return None if item is None else HOLDERS[kind.removesuffix("_type")](item)
    if kind == "map_type":
        item = type_of(proto.map_type.value_type, name)
        return None if item is None else MapType(item)
    if kind != "tensor_type":
        shown = kind.removesuffix("_type").replace("_", " ")
        raise Unsupported(
            f"{name!r} is a {shown}; tensors, sequences, optionals and maps are supported"
        )
    tensor = proto.tensor_type
    if not tensor.elem_type:
        return None
    if tensor.elem_type not in DTYPES:
        raise Unsupported(f"{name!r} has the element type {tensor.elem_type}, which is unknown")
    dtype = DTYPES[tensor.elem_type]
    if not tensor.HasField("shape"):
        return Type(dtype, None)  # type: ignore[arg-type]
    return Type(dtype, tuple(_dim(d) for d in tensor.shape.dim))  # type: ignore[arg-type]


def _dim(d: Any) -> Dim:
    """A dimension of a TensorShapeProto: its number or symbol; a new symbol where it has neither,
    or only "?", "None" or "-1". Other symbols that begin with "?", as new ones do, get "dim"
    before."""
    if d.HasField("dim_value") and d.dim_value >= 0:
        return d.dim_value
    known = isinstance(d.dim_param, str) and d.dim_param not in _ANONYMOUS
    if not known:
        return fresh()
    return f"dim{d.dim_param}" if d.dim_param.startswith("?") else d.dim_param
