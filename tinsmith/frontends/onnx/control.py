"""Importers of operators that hold graphs: If, Loop, Scan, SequenceMap."""

from __future__ import annotations

from typing import Any

from tinsmith.frontends.importing import Skipped
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.onnx.model import import_body
from tinsmith.frontends.onnx.scope import Scope
from tinsmith.graph import Graph, SequenceType, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops._rules import axis_of
from tinsmith.ops.control import kept_type, per
from tinsmith.ops.sequence import item_of

_ROUNDS = 8  # a state's dimensions settle in as many iterations as it has dimensions, at most


@importer("If")
def if_(call: Call) -> Result:
    names = ("then_branch", "else_branch")
    branches = [_body(call, call.required(name), [], name) for name in names]
    if any(b.broken for b in branches):
        raise Skipped("")
    captured = _captures(branches)
    yes, no = (b.graph for b in branches)
    return call.emit("If", call[0], *captured, then_branch=yes, else_branch=no)


@importer("Loop")
def loop(call: Call) -> Result:
    states = [_state(v) for v in call.inputs[2:]]
    flags = [Type("int64", ()), Type("bool", ())]  # type: ignore[arg-type]
    body = _settled(call, call.required("body"), flags, states, [], 1)
    captured = _captures([body])
    values = [call.arg(0), call.arg(1), *states, *captured]
    return call.emit("Loop", *values, body=body.graph, captured=len(captured))


@importer("SequenceMap")
def sequence_map(call: Call) -> Result:
    """Import SequenceMap, which runs a body for each element of one or more sequences. Outer values
    that the body reads become the last inputs."""
    values = [_state(v) for v in call.inputs]
    types: list[Type | None] = [
        item_of(v) if isinstance(v.type, SequenceType) else v.type for v in values
    ]
    body = _body(call, call.required("body"), types, "body")
    if body.broken:
        raise Skipped("")
    captured = _captures([body])
    return call.emit("SequenceMap", *values, *captured, body=body.graph, captured=len(captured))


@importer("Scan")
def scan(call: Call) -> Result:
    if call.opset < 9:
        return _scan_batches(call)
    count = call.required("num_scan_inputs")
    values = [_state(v) for v in call.inputs]
    if not 0 < count <= len(values):
        raise Unsupported(f"num_scan_inputs is {count}, it has {len(values)} inputs")
    states, inputs = values[:-count], values[-count:]
    attrs = call.given(
        "scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"
    )
    axes = per(attrs.get("scan_input_axes"), count, "scan_input_axes")
    rows = [_row(v.type, axis) for v, axis in zip(inputs, axes, strict=True)]
    body = _settled(call, call.required("body"), [], states, rows, 0)
    captured = _captures([body])
    return call.emit(
        "Scan", *values, *captured, body=body.graph, num_scan_inputs=count, captured=len(captured),
        **attrs,
    )  # fmt: skip


def _scan_batches(call: Call) -> Result:
    """Import a Scan of opset 8, which scans axis 1 of each element of a batch (axis 0): as a Scan
    over axis 0, whose body is a Scan over axis 1."""
    if call.arg(0) is not None:
        raise Unsupported("sequence lengths of Scan (opset 8) are not supported")
    count = call.required("num_scan_inputs")
    values = [_state(v) for v in call.inputs[1:]]
    if not 0 < count <= len(values):
        raise Unsupported(f"num_scan_inputs is {count}, it has {len(values)} inputs")
    each = Graph(f"{call.label}.batch", call.scope.graph.file)
    rows = [each.input(v.name, _row(v.type, 0)) for v in values]
    types = [_row(v.type, 0) for v in rows[-count:]]
    body = _settled(call, call.required("body"), [], rows[:-count], types, 0)
    captured = _captures([body])
    inner = [*rows, *(each.input(each.unique(v.name), v.type) for v in captured)]
    attrs = {"num_scan_inputs": count, "scan_input_directions": call.attr("directions")}
    node = each.add(OPS["Scan"], *inner, body=body.graph, captured=len(captured), **attrs)
    each.outputs = list(node.outputs)
    return call.emit(
        "Scan", *values, *captured, body=each, num_scan_inputs=len(values), captured=len(captured)
    )


def _state(value: Value | None) -> Value:
    """`value`, an input that must be there. Raises Unsupported for None."""
    if value is None:
        raise Unsupported("an input that it needs is missing")
    return value


def _row(type: Type, axis: int) -> Type:
    """The type of one slice of a scanned input: `type` without `axis`. Raises TypeRuleError for an
    axis that it does not have."""
    if type.shape is None:
        return type
    at = axis_of(axis, len(type.shape), "scan_input_axes")
    return type.like(shape=type.shape[:at] + type.shape[at + 1 :])


def _body(call: Call, proto: Any, types: list[Type | None], name: str) -> Scope:
    return import_body(call.scope, proto, types, f"{call.label}.{name}")


def _settled(
    call: Call, proto: Any, lead: list[Type], states: list[Value], rest: list[Type], skip: int
) -> Scope:
    """Import a loop body; return its scope. Its inputs have the types `lead`, those of `states`
    (initial values), and `rest`; `skip` outputs come before the states. It is imported again, with
    more general types of states, until an iteration returns the types that it takes. Raises Skipped
    if a node of the body cannot be imported, Unsupported if types do not settle."""
    types = [v.type for v in states]
    own: set[str] = set()
    for _ in range(_ROUNDS):
        body = _body(call, proto, [*lead, *types, *rest], "body")
        if body.broken:
            raise Skipped("")
        after = [v.type for v in body.graph.outputs[skip : skip + len(states)]]
        joined = [kept_type(a, b, own) for a, b in zip(types, after, strict=True)]
        if joined == types:
            return body
        types = joined
    raise Unsupported("the types of its states do not settle")


def _captures(scopes: list[Scope]) -> list[Value]:
    """The outer values that any of the bodies `scopes` reads. Gives each body an input for each of
    these, in this order, after its own inputs."""
    outer = list(dict.fromkeys(v for s in scopes for v in s.captured))
    for s in scopes:
        mine = set(s.captured.values())
        own = [v for v in s.graph.inputs if v not in mine]
        extra = [s.captured[v] if v in s.captured else s.capture_input(v.name, v) for v in outer]
        s.graph.inputs = own + extra
    return outer
