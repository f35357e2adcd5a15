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
    """An ONNX sequence whose length and elements are known when it is imported, so that the graph
    needs no sequence: `items` are its tensors, `dtype` names their element type, which an empty one
    does not tell otherwise."""

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
    """Decorator: register an importer function for operators of these names. With `lists` it gets
    sequences of known elements as TensorLists; other functions see a value of the graph that is a
    sequence."""
    TAKES_LISTS.update(names if lists else ())
    return IMPORTERS(*names)


def check_text(model: str, *names: Any) -> None:
    """Raise ModelFileError for one of `names` that is not UTF-8: protobuf gives that as bytes.
    `model` names the file."""
    if bad := [n for n in names if not isinstance(n, str)]:
        raise ModelFileError(f"{model} holds a name that is no text: {bad[0]}")


class Call(SourceNode):
    """One ONNX node while it is imported: `attrs` are its attributes as Python values."""

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
        self.key = f"{self.domain}.{self.type}" if self.domain else self.type
        self.origin = scope.origin or self.origin
        self.needs = reads(proto)

    def dtype(self, name: str, default: str | None = None) -> str | None:
        """The name of the element type that the attribute `name` holds as a TensorProto.DataType;
        `default` where it is absent or 0."""
        code = self.attr(name)
        return default if not code else self.dtype_name(code)

    def dtype_name(self, code: int) -> str:
        if code not in DTYPES:
            raise Unsupported(f"the element type {code} is unknown")
        return DTYPES[code]

    def whole(self, value: Any) -> Any:
        """`value` as a value of the graph: of a TensorList a sequence that is made there, else
        itself."""
        return self.scope.whole(value, self.label, self.origin)

    def check_attrs(self) -> None:
        """Raise Unsupported for attributes that the importer function did not read and the operator
        does not have in this opset; only note them if that is not known, or if they cannot matter.

        Names that begin with _ are notes that tools leave for themselves.
        """
        unread = self.unread()
        if not unread:
            return
        from tinsmith.frontends.onnx.functions import schema_of

        schema = schema_of(self.type, self.opset, self.domain)
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
    """The names of the values that a NodeProto reads, those that its subgraphs take from outside
    included."""
    names = {name for name in proto.input if name}
    for a in proto.attribute:
        for graph in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {o for n in graph.node for o in n.output}
            inner |= {t.values.name for t in graph.sparse_initializer}
            read = {v.name for v in graph.output}.union(*map(reads, graph.node))
            names |= read - inner
    return names
