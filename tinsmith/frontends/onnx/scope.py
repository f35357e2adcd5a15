"""The names that nodes see, and the import of a list of nodes into one graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from tinsmith.errors import GraphError, ModelFileError, TinsmithError
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends.onnx.call import (
    IMPORTERS,
    STANDARD,
    TAKES_LISTS,
    Call,
    TensorList,
    Unsupported,
    qualified,
)
from tinsmith.frontends.onnx.protos import attribute, type_of
from tinsmith.graph import Graph, Origin, Type, Value
from tinsmith.graph.types import compatible
from tinsmith.ops.declared import claim, declare
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Problem:
    """Why one node was not imported."""

    type: str
    domain: str
    opset: int
    node: str
    reason: str


@dataclass
class Import:
    """What all scopes of one model share."""

    model: OnnxModel
    functions: dict[tuple[str, str, str], Any]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Broken:
    """Stands for a value whose node was not imported, so that its readers are passed over."""


BROKEN = Broken()

_MISFITS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What importers, type rules and ONNX's own code raise on attributes of the wrong kind."""

_REFUSED = {
    "ai.onnx.ml": "this operator of classical machine learning (ai.onnx.ml) is not supported",
    "ai.onnx.preview.training": "training operators are not supported, but for Gradient",
}


_HARMLESS = {"consumed_inputs"}
"""Attributes of older opsets that mean nothing in newer ones, where files still have them."""


class Absent:
    """Stands for an optional input that the caller of a function left out."""


ABSENT = Absent()


class Skipped(Unsupported):
    """A node that reads what was not imported, where that was recorded already."""


class Scope:
    """The values that a list of nodes sees by name, and the graph they are imported into.

    A subgraph has a parent, whose values become inputs of the subgraph's graph when they are
    read (`captured`). The body of a function has none, and shares its caller's graph.
    """

    def __init__(
        self,
        shared: Import,
        graph: Graph,
        opsets: dict[str, int],
        *,
        parent: Scope | None = None,
        prefix: str = "",
        attrs: dict[str, Any] | None = None,
        origin: Origin | None = None,
        depth: int = 0,
    ) -> None:
        self.shared, self.graph, self.opsets, self.parent = shared, graph, opsets, parent
        self.prefix, self.attrs, self.origin, self.depth = prefix, attrs, origin, depth
        self.broken = False
        self.nested = parent is not None
        """Whether the nodes are those of a body, which may never run."""
        self.env: dict[str, Any] = {}
        self.captured: dict[Value, Value] = {}  # outer value -> input of this graph
        self.declared: dict[str, Type] = {}
        self.named: set[Value] = set()
        self.labels: dict[int, str] = {}
        self.reads: set[str] = set()

    # ---- names

    def opset(self, domain: str) -> int:
        return self.opsets.get("" if domain in STANDARD else domain, 1)

    def label(self, proto: Any) -> str:
        name = proto.name or next((o for o in proto.output if o), proto.op_type)
        return f"{self.prefix}/{name}" if self.prefix else name

    def note(self, text: str) -> None:
        if text not in self.shared.notes:
            self.shared.notes.append(text)

    def is_read(self, name: str) -> bool:
        """Whether a node of this scope, or its result, reads this value."""
        return name in self.reads

    def bind(self, name: str, value: Value | Broken) -> None:
        if name in self.env:
            raise GraphError(f"{self.shared.model.name} computes the value {name!r} twice")
        self.env[name] = value

    def look_up(self, name: str) -> Any:
        """The value of that name as this graph sees it, BROKEN or ABSENT; None where nothing has
        that name."""
        if name in self.env:
            return self.env[name]
        outer = self.parent.look_up(name) if self.parent else None
        if isinstance(outer, TensorList):
            items = [self.captured.get(v) or self._capture(v, v.name) for v in outer.items]
            self.env[name] = TensorList(items, outer.dtype)
            return self.env[name]
        if isinstance(outer, Value):
            inner = self.captured.get(outer)
            if inner is None:
                inner = self._capture(outer, name)
            self.env[name] = inner
            return inner
        return outer

    def _capture(self, outer: Value, name: str) -> Value:
        """A value of the graph around this one, as a constant or an input of this one."""
        if outer.const is not None:
            inner = self.graph.const(outer.const, name)
        else:
            inner = self.capture_input(name, outer)
        self.named.add(inner)
        return inner

    def capture_input(self, name: str, outer: Value) -> Value:
        """A new input of this graph that stands for a value of the one around it."""
        name = self.graph.unique(name)
        inner = self.graph.input(name, outer.type)
        inner.name = name
        self.captured[outer] = inner
        return inner

    def check_text(self, *names: Any) -> None:
        """Names that are not UTF-8 come out of protobuf as bytes."""
        if bad := [n for n in names if not isinstance(n, str)]:
            raise ModelFileError(f"{self.shared.model.name} holds a name that is no text: {bad[0]}")

    # ---- graphs

    def declare(self, infos: Iterable[Any]) -> None:
        """Keep the types of value_info and of outputs: those that do not follow are checked."""
        for info in infos:
            try:
                declared = type_of(info.type, info.name)
            except Unsupported:
                continue
            if declared is not None:
                self.declared[info.name] = declared

    def formal(self, value: Value, info: Any) -> Value:
        """An input of a body, behind a check of the rank that is declared of it."""
        self.declare([info])
        return self.checked(value, info.name, self.declared.get(info.name))

    def add_constant(self, name: str, array: Any) -> None:
        value = self.graph.const(array, name)
        value.name = name
        self.named.add(value)
        self.bind(name, value)

    def run(self, nodes: list[Any], results: list[str]) -> None:
        """Import nodes, in any order that the file lists them in."""
        reserved = {v.name for v in self.graph.inputs}
        for proto in nodes:
            self.check_text(proto.op_type, proto.name, proto.domain, *proto.input, *proto.output)
            self.reads.update(_reads(proto))
            if not self.prefix:
                self.labels[id(proto)] = self.graph.unique_node(self.label(proto))
                for name in proto.output:
                    if name and name not in reserved:
                        reserved.add(self.graph.unique(name))
        self.reads.update(results)
        for proto in _sorted(nodes, self):
            self.import_node(proto)

    def output(self, name: str) -> Value | Broken:
        """The value of a graph output, under its own name."""
        value = self.look_up(name)
        if value is None:
            raise GraphError(
                f"the output {name!r} of {self.shared.model.name} is computed by no node"
            )
        value = self.whole(value, name, Origin(self.shared.model.file, name, "output"))
        if isinstance(value, Broken) or value.name == name:
            return value
        if value.const is not None:
            alias = self.graph.const(value.const)
        else:
            from tinsmith.ops import OPS

            alias = self.graph.add(OPS["Identity"], value, name=name).outputs[0]
        alias.name = name
        return alias

    def whole(self, value: Any, label: str, origin: Origin) -> Any:
        """A TensorList as one value of the graph, a sequence; anything else as it is."""
        from tinsmith.ops import OPS

        if not isinstance(value, TensorList):
            return value
        name = "SequenceConstruct" if value.items else "SequenceEmpty"
        attrs: dict[str, Any] = {} if value.items else {"dtype": value.dtype}
        node = self.graph.add(
            OPS[name], *value.items, name=f"{label}/{name}", origin=origin, **attrs
        )
        return node.output

    # ---- nodes

    def import_node(self, proto: Any) -> None:
        from tinsmith.frontends.onnx.functions import find_function

        domain = "" if proto.domain in STANDARD else proto.domain
        label = self.label(proto)
        origin = self.origin or Origin(self.shared.model.file, label, proto.op_type)

        def fail(reason: str) -> None:
            problem = Problem(proto.op_type, domain, self.opset(domain), label, reason)
            self.shared.problems.append(problem)

        results: Any = None
        try:
            inputs = [self._read(name, proto) if name else None for name in proto.input]
            inputs = [None if v is ABSENT else v for v in inputs]
            local = self.shared.functions.get((domain, proto.op_type, proto.overload))
            function = None if local else IMPORTERS.get(qualified(domain, proto.op_type))
            if local is None and function is None and not find_function(self, proto, None):
                fail(_REFUSED.get(domain, ""))
            elif not any(isinstance(v, Broken) for v in inputs):
                if function and proto.op_type not in TAKES_LISTS:
                    inputs = [self.whole(v, label, origin) for v in inputs]
                call = Call(self, proto, inputs, self.attributes(proto), origin)
                results = function(call) if function else self._expand(call, local)
                self._unread(call)
        except Skipped:
            pass
        except TinsmithError as error:
            if isinstance(error, GraphError):
                raise
            fail(str(error))
        except _MISFITS as error:
            fail(f"its inputs or attributes are not as expected ({type(error).__name__}: {error})")
        self._bind_results(proto, results, label)

    def _read(self, name: str, proto: Any) -> Any:
        value = self.look_up(name)
        if value is None:
            raise GraphError(
                f"{self.label(proto)!r} ({proto.op_type}) of {self.shared.model.name} "
                f"reads {name!r}, which is neither an input, a weight, nor an output of a node"
            )
        return value

    def _expand(self, call: Call, local: Any) -> Any:
        from tinsmith.frontends.onnx.functions import expand, find_function

        body = local or find_function(self, call.proto, call)
        if body is None:
            raise Unsupported("")
        return expand(call, body)

    def attributes(self, proto: Any) -> dict[str, Any]:
        """The attributes of a node, those that refer to the caller's resolved."""
        found = {}
        for a in proto.attribute:
            if not a.ref_attr_name:
                found[a.name] = attribute(a, self.shared.model)
            elif self.attrs is not None and a.ref_attr_name in self.attrs:
                found[a.name] = self.attrs[a.ref_attr_name]
        return found

    def _unread(self, call: Call) -> None:
        """Refuse attributes that an operator does not have; note those of which nobody can tell.

        Names that begin with _ are notes that tools leave for themselves.
        """
        from tinsmith.frontends.onnx.functions import schema_of

        unread = call.attrs.keys() - call.read
        schema = schema_of(call.type, call.opset, call.domain) if unread else None
        for name in sorted(unread - set(schema.attributes if schema else ())):
            if schema is None or name.startswith("_") or name in _HARMLESS:
                call.note(f"its attribute {name!r} is not known and was not used")
                continue
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise Unsupported(
                f"its attribute {name!r} is not one of {call.type} in opset {call.opset}: {known}"
            )

    def _bind_results(self, proto: Any, results: Any, label: str) -> None:
        values = results if isinstance(results, tuple) else (results,)
        for i, name in enumerate(proto.output):
            if not name:
                continue
            value = values[i] if i < len(values) else None
            if value is None:
                self.bind(name, BROKEN)
                if results is not None and name in self.reads:
                    domain = "" if proto.domain in STANDARD else proto.domain
                    reason = f"its output {i} ({name!r}) is not supported"
                    self.shared.problems.append(
                        Problem(proto.op_type, domain, self.opset(domain), label, reason)
                    )
                continue
            if isinstance(value, Value) and value not in self.named:
                value = self._name(value, name, proto if i == 0 else None)
            self.bind(name, value)

    def _name(self, value: Value, name: str, proto: Any) -> Value:
        """The value of a node that gets a name; what the model declares of it is checked."""
        self.named.add(value)
        if self.prefix:
            value.name = self.graph.unique(f"{self.prefix}/{name}")
            return value
        value.name = name
        if value.producer is not None and proto is not None:
            value.producer.name = self.labels[id(proto)]
        return self.checked(value, name, self.declared.get(name))

    def checked(self, value: Value, name: str, declared: Type | None) -> Value:
        """A value behind a check of what is declared of it and does not follow from what is known;
        what contradicts that is noted."""
        node = value.producer
        if declared is None or value.const is not None:
            return value
        if not compatible(value.type, declared):
            if node is not None:
                file = self.shared.model.name
                self.note(f"{file} declares {name!r} as {declared}; it is {value.type}")
            return value
        # What is free now will tell its sizes.
        told = node is not None and all(v is None or v.type.is_static for v in node.inputs)
        shape = claim(value.type, declared, numbers=told)
        if shape is None:
            return value
        origin = Origin(self.shared.model.file, name, "input") if node is None else node.origin
        value = declare(value, shape, origin)
        self.named.add(value)
        return value


def _reads(proto: Any) -> set[str]:
    """The names that a node reads, those its subgraphs take from outside included."""
    names = {name for name in proto.input if name}
    for a in proto.attribute:
        for graph in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {o for n in graph.node for o in n.output}
            inner |= {t.values.name for t in graph.sparse_initializer}
            reads = {v.name for v in graph.output}.union(*map(_reads, graph.node))
            names |= reads - inner
    return names


def _sorted(nodes: list[Any], scope: Scope) -> list[Any]:
    """The nodes in an order in which each comes after those it reads; the given one if it is."""
    producer = {name: i for i, proto in enumerate(nodes) for name in proto.output if name}
    needs = [{producer[name] for name in _reads(proto) if name in producer} for proto in nodes]
    if all(j < i for i, need in enumerate(needs) for j in need):
        return nodes
    users: list[list[int]] = [[] for _ in nodes]
    for i, need in enumerate(needs):
        for j in need:
            users[j].append(i)
    waiting = [len(need) for need in needs]
    ready = [i for i, count in enumerate(waiting) if not count]
    order = []
    while ready:
        i = ready.pop(0)
        order.append(i)
        for user in users[i]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if len(order) != len(nodes):
        stuck = [scope.label(nodes[i]) for i, count in enumerate(waiting) if count][:5]
        raise GraphError(
            f"{scope.shared.model.name} has a cycle through {', '.join(map(repr, stuck))}"
        )
    return [nodes[i] for i in order]
