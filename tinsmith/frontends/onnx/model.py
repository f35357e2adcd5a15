"""A whole ONNX model -> Graph."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tinsmith.errors import ImportFailed, ModelWarning, warn
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends.onnx.call import IMPORTERS, STANDARD, Unsupported, qualified
from tinsmith.frontends.onnx.protos import type_of
from tinsmith.frontends.onnx.scope import Broken, Import, Problem, Scope
from tinsmith.graph import Graph, Holder, MapType, Type, Value
from tinsmith.ops.declared import drop_idle

KNOWN = 22
"""The opset of the oldest onnx that is supported: up to here the package need not be asked."""

OF_EXPORTERS = frozenset({"main_graph", "torch_jit", "torch-jit-export", "tf2onnx"})
"""Names that exporters give to every model alike."""


def import_model(model: OnnxModel) -> Graph:
    """The graph of a model; ImportFailed lists everything that could not be imported.

    `graph.meta["notes"]` lists what was imported, but looked odd; a ModelWarning says so too.
    """
    proto = model.proto
    opsets = {("" if o.domain in STANDARD else o.domain): o.version for o in proto.opset_import}
    if "" not in opsets:
        opsets[""] = _newest() if opsets else 1
    functions = {
        ("" if f.domain in STANDARD else f.domain, f.name, f.overload): f for f in proto.functions
    }
    shared = Import(model, functions)
    graph = Graph(_named(proto.graph.name, model.file), model.file)
    graph.meta["format"] = "onnx"
    graph.meta["opset"] = opsets[""]
    if proto.producer_name:
        graph.meta["producer"] = f"{proto.producer_name} {proto.producer_version}".strip()
    if opsets[""] > KNOWN and opsets[""] > _newest():
        shared.notes.append(
            f"{model.name} has opset {opsets['']}; "
            f"the newest known is {_newest()}, which is used instead"
        )
    scope = Scope(shared, graph, opsets)
    _fill(scope, proto.graph)
    if shared.problems:
        raise ImportFailed(describe(shared.problems, model.name))
    if shared.notes:
        graph.meta["notes"] = tuple(shared.notes)
        warn("; ".join(shared.notes), ModelWarning)
    return graph


def _named(name: str, file: str) -> str:
    """The name of a model: its own, or its file's where an exporter named it like all others."""
    return Path(file).stem if file and name in OF_EXPORTERS | {""} else name


def import_body(parent: Scope, proto: Any, inputs: list[Type | None], name: str) -> Scope:
    """The scope of a subgraph, imported: its graph, and the outer values it captured.

    `inputs` has the types that the caller knows; what else is declared of them is checked.
    """
    graph = Graph(name, parent.graph.file)
    scope = Scope(parent.shared, graph, parent.opsets, parent=parent, attrs=parent.attrs)
    scope.depth = parent.depth
    _fill(scope, proto, inputs)
    return scope


def _fill(scope: Scope, proto: Any, types: list[Type | None] | None = None) -> None:
    model, shared, top = scope.shared.model, scope.shared, scope.parent is None
    weights = {t.name for t in proto.initializer}
    weights |= {t.values.name for t in proto.sparse_initializer}
    scope.check_text(*weights, *(v.name for v in [*proto.input, *proto.output]))
    for i, info in enumerate(v for v in proto.input if not (top and v.name in weights)):
        given = types[i] if types is not None and i < len(types) else None
        type = given or _input_type(shared, info, scope)
        value = scope.graph.input(info.name, type)
        scope.named.add(value)
        scope.bind(info.name, value if given is None else scope.formal(value, info))
    for i, tensor in enumerate(proto.initializer):
        array = model.initializer(i) if top else model.tensor(tensor)
        scope.add_constant(tensor.name, array)
    for tensor in proto.sparse_initializer:
        scope.add_constant(tensor.values.name, model.sparse(tensor))
    scope.declare([*proto.value_info, *proto.output])
    scope.run(list(proto.node), [v.name for v in proto.output])
    outputs = [scope.output(v.name) for v in proto.output]
    scope.broken = any(isinstance(v, Broken) for v in outputs)
    scope.graph.outputs = [v for v in outputs if isinstance(v, Value)]
    drop_idle(scope.graph)


def _input_type(shared: Import, info: Any, scope: Scope) -> Type:
    try:
        type = type_of(info.type, info.name)
        reason = f"the input {info.name!r} has no element type"
        held = type
        while isinstance(held, Holder):
            if isinstance(held, MapType):
                type = None
                reason = f"{info.name!r} is a map; inputs are tensors, sequences and optionals"
            held = held.item
    except Unsupported as error:
        type, reason = None, str(error)
    if type is None:
        shared.problems.append(Problem("input", "", scope.opset(""), info.name, reason))
        return Type("float32", None)  # type: ignore[arg-type]
    return type


def _newest() -> int:
    from onnx import defs

    return defs.onnx_opset_version()


def describe(problems: list[Problem], model: str) -> str:
    """All problems in one message: grouped by operator and reason, with the first nodes."""
    groups: dict[tuple[str, str, int, str], list[str]] = defaultdict(list)
    for p in problems:
        groups[p.domain, p.type, p.opset, p.reason].append(p.node)
    lines = [f"{model} cannot be imported; {len(problems)} nodes are not understood:"]
    for (domain, type, opset, reason), nodes in groups.items():
        where = ", ".join(map(repr, nodes[:3])) + (", ..." if len(nodes) > 3 else "")
        why = reason or "there is no importer for this operator" + _close(domain, type)
        lines.append(f"  {qualified(domain, type)} (opset {opset}) x{len(nodes)}: {why} [{where}]")
    if any(not p.reason for p in problems):
        lines.append(
            "What helps: export with only standard operators, or register an importer: "
            "tinsmith.frontends.onnx.call.importer('domain.Type')"
        )
    return "\n".join(lines)


def _close(domain: str, type: str) -> str:
    from tinsmith.errors import suggest

    return "." + suggest(qualified(domain, type), IMPORTERS)
