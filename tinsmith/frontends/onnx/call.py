"""One ONNX node while it is imported, and the table of importer functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.errors import TinsmithError, TypeRuleError
from tinsmith.formats.onnx import DTYPES
from tinsmith.graph import Origin, Value
from tinsmith.ops import OPS
from tinsmith.ops.declared import refuse
from tinsmith.registry import Registry

if TYPE_CHECKING:
    from tinsmith.frontends.onnx.scope import Scope


class TensorList:
    """An ONNX sequence whose length and elements are known when it is imported.

    `dtype` names the element type, which an empty one does not tell otherwise.
    """

    def __init__(self, items: Iterable[Value], dtype: str = "float32") -> None:
        self.items, self.dtype = tuple(items), dtype


Array = np.ndarray[Any, Any]
Result = Value | TensorList | tuple[Value | None, ...]
Importer = Callable[["Call"], Result]

IMPORTERS: Registry[Importer] = Registry("ONNX operator", "tinsmith.frontends.onnx")
"""Operator type -> importer; the name is "domain.Type" outside the default domain."""

TAKES_LISTS: set[str] = set()
"""Operator types whose importers take a TensorList."""

STANDARD = ("", "ai.onnx")


class Unsupported(TinsmithError):
    """A node that cannot be imported; its message says why. Collected, never seen by users."""


def importer(*names: str, lists: bool = False) -> Callable[[Importer], Importer]:
    """Decorator: register an importer function for these operator types.

    `lists` says that it takes a TensorList; other importers see a value that is a sequence.
    """

    def register(function: Importer) -> Importer:
        TAKES_LISTS.update(names if lists else ())
        for name in names:
            IMPORTERS.register(name, function)
        return function

    return register


def qualified(domain: str, type: str) -> str:
    return type if domain in STANDARD else f"{domain}.{type}"


class Call:
    """One ONNX node: its inputs as Values, its attributes as Python values, and `emit`.

    `inputs` has None where an optional input is absent; `outputs` has "" where an output is not
    wanted. An importer returns the Value of each output, in order; None for an unwanted one.
    """

    def __init__(
        self,
        scope: Scope,
        proto: Any,
        inputs: list[Value | None],
        attrs: dict[str, Any],
        origin: Origin,
    ) -> None:
        self.scope, self.proto, self.inputs, self.attrs = scope, proto, inputs, attrs
        self.origin = origin
        self.type: str = proto.op_type
        self.domain: str = "" if proto.domain in STANDARD else proto.domain
        self.outputs: list[str] = list(proto.output)
        self.opset = scope.opset(self.domain)
        self.label = scope.label(proto)
        self.read: set[str] = set()

    # ---- what the node says

    def arg(self, index: int) -> Value | None:
        """An input, or None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __getitem__(self, index: int) -> Value:
        """An input that must be there."""
        value = self.arg(index)
        if value is None:
            raise Unsupported(f"its input {index} is missing")
        return value

    def attr(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return self.attrs.get(name, default)

    def ignore(self, *names: str) -> None:
        """These attributes mean nothing in inference."""
        self.read.update(names)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        self.read.add(name)
        if name not in self.attrs:
            raise Unsupported(f"its attribute {name!r} is missing")
        return self.attrs[name]

    def dtype(self, name: str, default: str | None = None) -> str | None:
        """The dtype name for an attribute that holds a TensorProto.DataType."""
        code = self.attr(name)
        return default if not code else self.dtype_name(code)

    def dtype_name(self, code: int) -> str:
        if code not in DTYPES:
            raise Unsupported(f"the element type {code} is unknown")
        return DTYPES[code]

    def wants(self, index: int) -> bool:
        """Whether the node names this output."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def constant(self, index: int, what: str) -> Array | None:
        """The array of an input that must be constant; None where it is absent."""
        value = self.arg(index)
        if value is None:
            return None
        if value.const is None:
            raise Unsupported(f"its {what} ({value.name!r}) is not a constant")
        return value.const

    def used(self, index: int) -> bool:
        """Whether anything reads this output."""
        return self.wants(index) and self.scope.is_read(self.outputs[index])

    # ---- what the importer builds

    def emit(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """Add a node; its output, or the tuple of outputs. Arrays become constants. What does not
        fit in a body, which may never run, is an error of the run."""
        values = tuple(self.const(v) if isinstance(v, np.ndarray) else v for v in inputs)
        graph, name = self.scope.graph, f"{self.label}/{op}"
        try:
            node = graph.add(OPS[op], *values, name=name, origin=self.origin, **attrs)
        except TypeRuleError as error:
            if not self.scope.nested:
                raise
            node = refuse(graph, OPS[op], values, attrs, error, name, self.origin)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def whole(self, value: Any) -> Any:
        """A TensorList as one value of the graph, a sequence; anything else as it is."""
        return self.scope.whole(value, self.label, self.origin)

    def const(self, array: Any, dtype: Any = None) -> Value:
        return self.scope.graph.const(np.asanyarray(array, dtype), f"{self.label}/const")

    def ints(self, *numbers: int) -> Value:
        """A constant int64 vector."""
        return self.const(np.array(numbers, np.int64))

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant of the dtype of `like`."""
        return self.const(np.array(number, like.dtype))

    def note(self, text: str) -> None:
        self.scope.note(f"{self.origin}: {text}")
