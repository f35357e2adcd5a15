"""The scopes of ONNX: the names that nodes of a model, a subgraph or a function see, and the import
of these nodes into one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tinsmith.errors import TypeRuleError
from tinsmith.formats.onnx import OnnxModel
from tinsmith.frontends import nodes
from tinsmith.frontends.importing import Broken, Import, Importer, Unsupported
from tinsmith.frontends.onnx.attributes import DOMAINS, checked
from tinsmith.frontends.onnx.call import IMPORTERS, TAKES_LISTS, Call, TensorList
from tinsmith.frontends.onnx.protos import attribute, type_of
from tinsmith.graph import Graph, Origin, Value

_REFUSED = {
    "ai.onnx.ml": "this operator of classical machine learning (ai.onnx.ml) is not supported",
    "ai.onnx.preview.training": "training operators are not supported, but for Gradient",
}


class OnnxImport(Import):
    """The state of the import of one ONNX model, which all scopes share. `functions` are its
    FunctionProtos by (domain, type, overload)."""

    def __init__(
        self, model: OnnxModel, functions: dict[tuple[str, str, str], Any],
        shapes: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        super().__init__(IMPORTERS, model.file, model.files, shapes)
        self.model, self.functions = model, functions


ABSENT = object()
"""In the body of a function, the value of an optional input that the caller left out."""


class Scope(nodes.Scope):
    """The scope of a list of ONNX nodes: of a model, a subgraph, or the body of a function. A
    subgraph (a branch of If, a body of Loop) has a graph of its own, and a `parent` scope. A value
    of the parent that it reads becomes an input of its graph (`captured`: outer Value -> input).
    The body of a function has no parent, sees only its inputs, and adds to the graph of the `call`
    in whose place it is imported; `attrs` are the function's attributes, `origin` is that of the
    call, `depth` counts the calls around. `opsets`: domain -> version of its operators."""

    shared: OnnxImport

    def __init__(
        self, shared: OnnxImport, graph: Graph, opsets: dict[str, int], *,
        parent: Scope | None = None, call: Call | None = None, attrs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        nested = parent is not None or (call is not None and call.scope.nested)
        super().__init__(shared, graph, nested=nested, prefix="" if call is None else call.label)
        self.opsets, self.parent, self.attrs = opsets, parent, attrs
        self.origin = None if call is None else call.origin
        self.depth = call.scope.depth + 1 if call else parent.depth if parent else 0
        self.captured: dict[Value, Value] = {}

    # ---- names

    def opset(self, domain: str) -> int:
        """The version of the operators of a domain; 1 where the model does not say it."""
        return self.opsets.get(domain, 1)

    def look_up(self, name: str) -> Any:
        """What `name` means here: a Value of this graph, a TensorList, BROKEN or ABSENT; None for
        an unknown name. A value of an enclosing scope is captured."""
        if name in self.env:
            return self.env[name]
        outer = self.parent.look_up(name) if self.parent else None
        if isinstance(outer, TensorList):
            items = [self._inner(v, v.name) for v in outer.items]
            self.env[name] = TensorList(items, outer.dtype)
        elif isinstance(outer, Value):
            self.env[name] = self._inner(outer, name)
        return self.env.get(name, outer)

    def _inner(self, outer: Value, name: str) -> Value:
        """The value of this graph for `outer`, a value of the enclosing graph: a copy of a
        constant, else an input, which is made once."""
        if outer in self.captured:
            return self.captured[outer]
        if outer.const is not None:
            inner = self.graph.const(outer.const, name)
        else:
            inner = self.capture_input(name, outer)
        self.named.add(inner)
        return inner

    def capture_input(self, name: str, outer: Value) -> Value:
        """Add an input to this graph for `outer`, a value of the enclosing graph, and record it in
        `captured`."""
        name = self.graph.unique(name)
        inner = self.graph.input(name, outer.type)
        inner.name = name
        self.captured[outer] = inner
        return inner

    def read(self, name: str, node: nodes.SourceNode) -> Any:
        value = super().read(name, node)
        return None if value is ABSENT else value

    # ---- graphs

    def declare(self, infos: Iterable[Any]) -> None:
        """Record the types that ValueInfoProtos declare, for `checked`. Types that a graph cannot
        have are left out."""
        for info in infos:
            try:
                declared = type_of(info.type, info.name)
            except (Unsupported, TypeRuleError):
                continue
            if declared is not None:
                self.declared[info.name] = declared

    def formal(self, value: Value, info: Any) -> None:
        """Bind the name of an input of a body to `value`, or to a check of the type that `info`, a
        ValueInfoProto, declares for it."""
        self.declare([info])
        self.env[info.name] = self.checked(value, info.name, self.declared.get(info.name))

    def import_nodes(self, protos: Sequence[Any], results: Iterable[str]) -> None:
        self.run(protos, partial(Call, self), results)

    def output(self, name: str) -> Value | Broken:
        value = self.look_up(name)
        if isinstance(value, TensorList):
            self.env[name] = self.whole(value, name, Origin(self.shared.file, name, "output"))
        return super().output(name)

    def whole(self, value: Any, label: str, origin: Origin) -> Any:
        """A TensorList as a Value, a sequence: the output of a new node with the origin `origin`,
        named by `label`. Any other value as it is."""
        if not isinstance(value, TensorList):
            return value
        from tinsmith.ops import OPS

        name = "SequenceConstruct" if value.items else "SequenceEmpty"
        attrs: dict[str, Any] = {} if value.items else {"dtype": value.dtype}
        node = self.graph.add(
            OPS[name], *value.items, name=f"{label}/{name}", origin=origin, **attrs
        )
        return node.output

    # ---- nodes

    def importer_of(self, node: Call) -> Importer:
        """The function that imports a node: by a function of the model, else by its importer
        function, else by ONNX's function body. Raises Unsupported if it has none."""
        local = self.shared.functions.get((node.domain, node.type, node.proto.overload))
        function = None if local else IMPORTERS.get(node.key)
        if local is None and function is None:
            from tinsmith.frontends.onnx.functions import find_function

            if not find_function(self, node.proto, None):
                raise Unsupported(_REFUSED.get(node.domain, ""))
        return partial(self._call, function, local)

    def _call(self, function: Importer | None, local: Any, call: Call) -> Any:
        if function and call.type not in TAKES_LISTS:
            call.inputs = [call.whole(v) for v in call.inputs]
        call.attrs = self.attributes(call.proto)
        if local is None and call.domain in DOMAINS:
            call.attrs = {k: checked(call.type, k, v) for k, v in call.attrs.items()}
        return function(call) if function else self._expand(call, local)

    def _expand(self, call: Call, local: Any) -> Any:
        from tinsmith.frontends.onnx.functions import expand, find_function

        body = local or find_function(self, call.proto, call)
        if body is None:
            raise Unsupported("")
        return expand(call, body)

    def attributes(self, proto: Any) -> dict[str, Any]:
        """The attributes of a NodeProto as Python values. An attribute that refers to one of the
        enclosing function has its value there, and is left out if the caller gave none."""
        found = {}
        for a in proto.attribute:
            if not a.ref_attr_name:
                found[a.name] = attribute(a, self.shared.model)
            elif self.attrs is not None and a.ref_attr_name in self.attrs:
                found[a.name] = self.attrs[a.ref_attr_name]
        return found
