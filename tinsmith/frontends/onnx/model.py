"""A whole ONNX model -> Graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinsmith.errors import TypeRuleError
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends.onnx.call import STANDARD, Unsupported, check_text
from tinsmith.frontends.onnx.protos import type_of
from tinsmith.frontends.onnx.scope import OnnxImport, Scope
from tinsmith.graph import Graph, Holder, MapType, Type

KNOWN = 22
"""An opset that every supported version of the package onnx knows, so that it need not be asked."""


def import_model(model: OnnxModel, shapes: Mapping[str, Any] | None = None) -> Graph:
    """The graph of a model; `shapes` is the option `input_shapes`, {name of an input: dims}. Raises
    ImportFailed with all problems. Oddities are in a ModelWarning and in `graph.meta["notes"]`."""
    proto = model.proto
    opsets = {("" if o.domain in STANDARD else o.domain): o.version for o in proto.opset_import}
    if "" not in opsets:
        opsets[""] = _newest() if opsets else 1
    check_text(model.name, *_names(proto))
    functions = {
        ("" if f.domain in STANDARD else f.domain, f.name, f.overload): f for f in proto.functions
    }
    shared = OnnxImport(model, functions, shapes)
    graph = Graph(Path(model.file).stem or proto.graph.name, model.file)
    graph.meta["format"] = "onnx"
    graph.meta["graph"] = proto.graph.name
    graph.meta["opset"] = opsets[""]
    if proto.producer_name:
        graph.meta["producer"] = f"{proto.producer_name} {proto.producer_version}".strip()
    if opsets[""] > KNOWN and opsets[""] > _newest():
        shared.note(
            f"{model.name} has opset {opsets['']}; "
            f"the newest known is {_newest()}, which is used instead"
        )
    scope = Scope(shared, graph, opsets)
    _fill(scope, proto.graph)
    return shared.finish(graph)


def _names(proto: Any) -> Iterator[Any]:
    """All names in a ModelProto outside of its graph, for `check_text`."""
    yield from (proto.graph.name, proto.producer_name, proto.producer_version)
    yield from (o.domain for o in proto.opset_import)
    for f in proto.functions:
        yield from (f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute)
        yield from (o.domain for o in f.opset_import)
        yield from (a.name for a in f.attribute_proto)


def import_body(parent: Scope, proto: Any, inputs: list[Type | None], name: str) -> Scope:
    """Import a subgraph (a GraphProto) to a graph of its own, called `name`; return its scope, with
    that `graph` and the outer values that it `captured`. `inputs` are the types of its inputs, None
    for those that it declares; what it declares beyond that is checked in the run."""
    graph = Graph(name, parent.graph.file)
    scope = Scope(parent.shared, graph, parent.opsets, parent=parent, attrs=parent.attrs)
    _fill(scope, proto, inputs)
    return scope


def _fill(scope: Scope, proto: Any, types: list[Type | None] | None = None) -> None:
    """Import a GraphProto into a scope: inputs, weights, nodes and outputs. `types`, of a body
    only, are the `inputs` of `import_body`."""
    model, top = scope.shared.model, scope.parent is None
    weights = {t.name for t in proto.initializer}
    weights |= {t.values.name for t in proto.sparse_initializer}
    named = [*proto.input, *proto.output, *proto.value_info]
    check_text(model.name, proto.name, *weights, *(v.name for v in named))
    for i, info in enumerate(v for v in proto.input if not (top and v.name in weights)):
        given = types[i] if types is not None and i < len(types) else None
        type = given or _input_type(info, scope)
        value = scope.add_input(info.name, scope.shared.typed(info.name, type) if top else type)
        if given is not None:
            scope.formal(value, info)
    for i, tensor in enumerate(proto.initializer):
        array = model.initializer(i) if top else model.copied(tensor)
        scope.add_constant(tensor.name, array)
    for tensor in proto.sparse_initializer:
        scope.add_constant(tensor.values.name, model.sparse(tensor))
    scope.declare([*proto.value_info, *proto.output])
    outputs = [v.name for v in proto.output]
    scope.import_nodes(proto.node, outputs)
    scope.set_outputs(outputs)


def _input_type(info: Any, scope: Scope) -> Type:
    """The type that the model declares for an input. If it declares none, or one that inputs cannot
    have, that is recorded as a problem, and the result is float32 of unknown rank."""
    try:
        type = type_of(info.type, info.name)
        reason = f"the input {info.name!r} has no element type"
        held = type
        while isinstance(held, Holder):
            if isinstance(held, MapType):
                type = None
                reason = f"{info.name!r} is a map; inputs are tensors, sequences and optionals"
            held = held.item
    except (Unsupported, TypeRuleError) as error:
        type, reason = None, str(error)
    if type is None:
        scope.shared.fail("input", info.name, reason, f"opset {scope.opset('')}")
        return Type("float32", None)  # type: ignore[arg-type]
    return type


def _newest() -> int:
    from onnx import defs

    return defs.onnx_opset_version()
