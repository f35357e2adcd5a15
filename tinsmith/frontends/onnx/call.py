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
    """An ONNX sequence of known length, which exists only while the model is imported: the graph
    has its tensors, `items`, and no sequence. `dtype` is the name of their element type."""

    def __init__(self, items: Iterable[Value], dtype: str = "float32") -> None:
        self.items, self.dtype = tuple(items), dtype


Result = Value | TensorList | tuple[Value | None, ...]

IMPORTERS = Importers(
    "ONNX operator",
    "tinsmith.frontends.onnx",
    "What helps: export with only standard operators, or register an importer: "
    "tinsmith.frontends.onnx.call.importer('domain.Type')",
)
"""Operator type -> importer function; types outside the default domain are "domain.Type"."""

TAKES_LISTS: set[str] = set()
"""Operator types whose importer functions take a TensorList as input."""

STANDARD = ("", "ai.onnx")

_HARMLESS = {"consumed_inputs"}
"""Attributes of older opsets that mean nothing, and that files of newer opsets may still have."""


def importer(*names: str, lists: bool = False) -> Callable[[Importer], Importer]:
    """Decorator: register an importer function for operators of these names ("domain.Type" outside
    of the default domain). With `lists` it gets sequences of known length as TensorLists, else as
    Values."""
    TAKES_LISTS.update(names if lists else ())
    return IMPORTERS(*names)


def check_text(model: str, *names: Any) -> None:
    """Raise ModelFileError, which names the file `model`, if one of `names` is not UTF-8: protobuf
    returns those as bytes instead of str."""
    if bad := [n for n in names if not isinstance(n, str)]:
        raise ModelFileError(f"{model} holds a name that is no text: {bad[0]}")


class Call(SourceNode):
    """One ONNX node while it is imported. `attrs` are its attributes as Python values, `domain` is
    "" for the default one, and `opset` is the model's for this domain."""

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
        """The element type in the attribute `name`, a number of TensorProto.DataType, by our name;
        `default` where it is absent or 0."""
        code = self.attr(name)
        return default if not code else self.dtype_name(code)

    def dtype_name(self, code: int) -> str:
        if code not in DTYPES:
            raise Unsupported(f"the element type {code} is unknown")
        return DTYPES[code]

    def whole(self, value: Any) -> Any:
        """A TensorList as a Value of the graph, a sequence; any other value as it is."""
        return self.scope.whole(value, self.label, self.origin)

    def check_attrs(self) -> None:
        """Raise Unsupported for attributes that the importer function did not read and that ONNX's
        operator does not have in this opset. Where ONNX does not know the operator, or the name
        begins with _ (notes of tools) or is harmless, note the attribute instead."""
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
    """The names of the values that a NodeProto reads: its inputs, and outer values that its
    subgraphs use."""
    names = {name for name in proto.input if name}
    for a in proto.attribute:
        for graph in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
            inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            inner |= {o for n in graph.node for o in n.output}
            inner |= {t.values.name for t in graph.sparse_initializer}
            read = {v.name for v in graph.output}.union(*map(reads, graph.node))
            names |= read - inner
    return names
