"""Operators defined by others: functions of a model, and function bodies by which ONNX defines some
of its own operators."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.formats.onnx_messages import type_proto
from tinsmith.frontends.importing import Broken, Skipped
from tinsmith.frontends.onnx.call import STANDARD, Call, Result, TensorList, Unsupported
from tinsmith.frontends.onnx.protos import attribute
from tinsmith.graph import Holder

if TYPE_CHECKING:
    from tinsmith.frontends.onnx.scope import Scope

_DEPTH = 32


@cache
def schema_of(type: str, opset: int, domain: str) -> Any:
    """ONNX's schema (an OpSchema) of an operator in an opset; None where ONNX has none."""
    from onnx import defs

    newest = defs.onnx_opset_version() if not domain else opset
    try:
        return defs.get_schema(type, min(max(opset, 1), newest), domain)
    except defs.SchemaError:
        return None


def find_function(scope: Scope, proto: Any, call: Call | None) -> Any:
    """The body (a FunctionProto) by which ONNX defines the operator of a NodeProto, or None. Some
    bodies depend on the types of `call.inputs`: TensorLists there are first replaced by sequences,
    and an input of unknown rank raises Unsupported. With `call` None the result only tells, by
    being true or false, whether there is a body."""
    domain = "" if proto.domain in STANDARD else proto.domain
    opset = scope.opset(domain)
    schema = schema_of(proto.op_type, opset, domain)
    if schema is None:
        return None
    if versions := [v for v in schema.function_opset_versions if v <= opset]:
        return _parse(schema.get_function_with_opset_version(max(versions)))
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions or call is None:
        return versions or None
    call.inputs[:] = [call.whole(v) for v in call.inputs]
    unranked = [v for v in call.inputs if v is not None and v.shape is None]
    if any(not isinstance(v.type, Holder) for v in unranked):
        raise Unsupported("it is expanded by its definition, which needs the ranks of its inputs")
    types = [type_proto(v.type).SerializeToString() if v else b"" for v in call.inputs]
    node = _resolved(call).SerializeToString()
    body = schema.get_context_dependent_function_with_opset_version(max(versions), node, types)
    return _parse(body) if body else None


def _parse(body: Any) -> Any:
    import onnx

    if not isinstance(body, bytes):
        return body
    proto = onnx.FunctionProto()
    proto.ParseFromString(body)
    return proto


def _resolved(call: Call) -> Any:
    """A copy of the call's NodeProto in which an attribute that refers to one of the enclosing
    function has that one's value, or is left out without it."""
    from onnx import NodeProto, helper, numpy_helper

    proto = NodeProto()
    proto.CopyFrom(call.proto)
    refers = [a.name for a in proto.attribute if a.ref_attr_name]
    if refers:
        kept = [a for a in proto.attribute if not a.ref_attr_name]
        del proto.attribute[:]
        proto.attribute.extend(kept)
        for name in refers:
            if (value := call.attrs.get(name)) is not None:
                array = isinstance(value, np.ndarray)
                value = numpy_helper.from_array(value) if array else value
                proto.attribute.append(helper.make_attribute(name, value))
    return proto


def expand(call: Call, body: Any) -> Result:
    """Import the nodes of `body`, a FunctionProto, in place of its call; return the outputs of the
    call, None for absent ones. Raises Skipped if one was not imported, Unsupported for calls that
    are nested too deeply."""
    from tinsmith.frontends.onnx.scope import ABSENT, Scope

    outer = call.scope
    call.ignore(*call.attrs)
    if call.label.count("/") > _DEPTH * 4 or outer.depth >= _DEPTH:
        raise Unsupported(
            f"functions call each other more than {_DEPTH} deep here, or one calls itself"
        )
    opsets = {("" if o.domain in STANDARD else o.domain): o.version for o in body.opset_import}
    inner = Scope(
        outer.shared, outer.graph, {**outer.opsets, **opsets}, call=call,
        attrs={**_defaults(call, body), **call.attrs},
    )  # fmt: skip
    for name, value in zip(body.input, call.inputs, strict=False):
        if value is not None:
            inner.env[name] = value
            inner.named.update(value.items if isinstance(value, TensorList) else [value])
    for name in body.input:
        inner.env.setdefault(name, ABSENT)
    inner.import_nodes(body.node, body.output)
    results = [inner.look_up(name) for name in body.output]
    if any(isinstance(v, Broken) for v in results):
        raise Skipped("")
    return tuple(v if v is not ABSENT else None for v in results)  # type: ignore[return-value]


def _defaults(call: Call, body: Any) -> dict[str, Any]:
    """The default values of a function's attributes: those in the operator's schema, and over them
    those in `body`, a FunctionProto."""
    model = call.scope.shared.model
    found: dict[str, Any] = {}
    if schema := schema_of(call.type, call.opset, call.domain):
        for name, a in schema.attributes.items():
            if a.default_value.name:
                found[name] = attribute(a.default_value, model)
    found.update({a.name: attribute(a, model) for a in body.attribute_proto})
    return found
