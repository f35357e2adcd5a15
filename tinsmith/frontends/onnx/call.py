"""One ONNX node while it is imported, and the table of importer functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tinsmith.errors import ModelFileError
from tinsmith.formats.onnx import DTYPES
from tinsmith.frontends.importing import Importer, Importers, Unsupported
from tinsmith.frontends.nodes import SourceNode
from tinsmith.graph import Value

if TYPE_CHECKING:
    from tinsmith.frontends.onnx.scope import Scope


class TensorList:
    """An ONNX sequence whose length and elements are known when it is imported.

    `dtype` names the element type, which an empty one does not tell otherwise.
    """

    def __init__(self, items: Iterable[Value], dtype: str = "float32") -> None:
        self.items, self.dtype = tuple(items), dtype


Result = Value | TensorList | tuple[Value | None, ...]

IMPORTERS = Importers(
    "ONNX operator",
    "tinsmith.frontends.onnx",
    "What helps: export with only standard operators, or register an importer: "
    "tinsmith.frontends.onnx.call.importer('domain.Type')",
)
"""Operator type -> importer; the name is "domain.Type" outside the default domain."""

TAKES_LISTS: set[str] = set()
"""Operator types whose importers take a TensorList."""

STANDARD = ("", "ai.onnx")

_HARMLESS = {"consumed_inputs"}
"""Attributes of older opsets that mean nothing in newer ones, where files still have them."""


def importer(*names: str, lists: bool = False) -> Callable[[Importer], Importer]:
    """Decorator: register an importer function for these operator types.

    `lists` says that it takes a TensorList; other importers see a value that is a sequence.
    """
    TAKES_LISTS.update(names if lists else ())
    return IMPORTERS(*names)


def qualified(domain: str, type: str) -> str:
    return type if domain in STANDARD else f"{domain}.{type}"


def check_text(model: str, *names: Any) -> None:
    """Raises ModelFileError for a name that is not UTF-8, which comes out of protobuf as bytes."""
    if bad := [n for n in names if not isinstance(n, str)]:
        raise ModelFileError(f"{model} holds a name that is no text: {bad[0]}")


class Call(SourceNode):
    """One ONNX node: `attrs` are its attributes as Python values."""

    scope: Scope

    def __init__(self, scope: Scope, proto: Any) -> None:
        names = (proto.op_type, proto.name, proto.domain, proto.overload)
        attrs = [a.name for a in proto.attribute]
        check_text(scope.shared.name, *names, *proto.input, *proto.output, *attrs)
        self.proto = proto
        self.domain: str = "" if proto.domain in STANDARD else proto.domain
        self.opset = scope.opset(self.domain)
        super().__init__(
            scope, proto.op_type, proto.name, proto.input, proto.output,
            edition=f"opset {self.opset}",
        )  # fmt: skip
        self.key = qualified(self.domain, self.type)
        self.origin = scope.origin or self.origin
        self.needs = reads(proto)

    def dtype(self, name: str, default: str | None = None) -> str | None:
        """The dtype name for an attribute that holds a TensorProto.DataType."""
        code = self.attr(name)
        return default if not code else self.dtype_name(code)

    def dtype_name(self, code: int) -> str:
        if code not in DTYPES:
            raise Unsupported(f"the element type {code} is unknown")
        return DTYPES[code]

    def whole(self, value: Any) -> Any:
        """A TensorList as one value of the graph, a sequence; anything else as it is."""
        return self.scope.whole(value, self.label, self.origin)

    def check_attrs(self) -> None:
        """Refuse attributes that an operator does not have; note those of which nobody can tell.

        Names that begin with _ are notes that tools leave for themselves.
        """
        from tinsmith.frontends.onnx.functions import schema_of

        unread = self.unread()
        schema = schema_of(self.type, self.opset, self.domain) if unread else None
        known = sorted(schema.attributes) if schema else []
        for name in unread:
            if name in known:
                continue
            if schema is None or name.startswith("_") or name in _HARMLESS:
                self.note(f"its attribute {name!r} is not known and was not used")
                continue
            raise Unsupported(
                f"its attribute {name!r} is not one of {self.type} in opset {self.opset}: "
                f"{', '.join(known) or 'none'}"
            )


def reads(proto: Any) -> set[str]:
    """The names that a node reads, those its subgraphs take from outside included."""
    names = {name for name in proto.input if name}
    for a in proto.attribute:
        for graph in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {o for n in graph.node for o in n.output}
            inner |= {t.values.name for t in graph.sparse_initializer}
            read = {v.name for v in graph.output}.union(*map(reads, graph.node))
            names |= read - inner
    return names
