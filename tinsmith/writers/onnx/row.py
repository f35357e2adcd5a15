"""`Row`, a node as the functions see it that write it as ONNX nodes, and the table of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.formats import pairs_of
from tinsmith.formats.onnx_messages import attribute_proto, code_of
from tinsmith.graph import Graph, Holder, Node, Value
from tinsmith.ops import OPS
from tinsmith.writers.rows import Inexpressible, Rows

if TYPE_CHECKING:
    from tinsmith.writers.onnx.model import Scope

Operand = Value | np.ndarray[Any, Any] | str | None
"""An input of an ONNX node: a value of the graph, a new constant, a name that `put` returned, or
None for an input that is not given."""

MS = "com.microsoft"
ML = "ai.onnx.ml"


class Row:
    """A node of our graph that is being written: `r[0]` is its first input (None: not given),
    `r.axis` an attribute, `outs` the names of its outputs in ONNX."""

    def __init__(self, scope: Scope, node: Node) -> None:
        self.scope, self.node = scope, node

    def __getitem__(self, i: int) -> Value | None:
        return self.node.inputs[i] if i < len(self.node.inputs) else None

    def __getattr__(self, name: str) -> Any:
        return self.node.attrs[name]

    @property
    def outs(self) -> list[str]:
        return [self.scope.name(v) for v in self.node.outputs]

    def given(self, names: str) -> dict[str, Any]:
        """Return, under ONNX's names, those of the attributes `names` ("axis epsilon=eps":
        `pairs_of`) that are neither None nor our operator's defaults; an element type (`dtype`)
        also if it is the default."""
        defaults = OPS[self.node.op.name].attrs
        found = {}
        for theirs, ours in pairs_of(names):
            value, default = self.node.attrs[ours], defaults[ours]
            if value is not None and ours == "dtype":
                found[theirs] = code_of(value)
            elif value is not None and (default is inspect.Parameter.empty or value != default):
                found[theirs] = float(value) if isinstance(default, float) else value
        return found

    def put(
        self, type: str, /, *inputs: Operand, gives: Sequence[str] | None = None, domain: str = "",
        **attrs: Any,
    ) -> str:  # fmt: skip
        """Add an ONNX node of the operator `type`, and return the name of its first output.
        `gives`: the names of its outputs, by default one new name. Attributes (`attrs`) that are
        None are left out, and None at the end of inputs; a Graph is written as a GraphProto. Raises
        Inexpressible."""
        from onnx import NodeProto

        names = [self.scope.operand(v, self.node.name) for v in inputs]
        while names and not names[-1]:
            names.pop()
        outs = [self.scope.fresh(f"{self.node.name}/{type}")] if gives is None else list(gives)
        proto = NodeProto(op_type=type, domain=domain, input=names, output=outs)
        proto.name = self.node.name
        for name, value in attrs.items():
            if value is not None:
                written = self.scope.body(value) if isinstance(value, Graph) else value
                proto.attribute.append(attribute_proto(name, written))
        known = [*zip(names, inputs, strict=False), *zip(self.outs, self.node.outputs, strict=True)]
        types = {n: type_name(v) for n, v in known if isinstance(v, Value | np.ndarray)}
        self.scope.add(proto, types)
        return outs[0]

    def end(self, type: str, /, *inputs: Operand, domain: str = "", **attrs: Any) -> None:
        """Add the ONNX node that gives the outputs of our node; see `put`."""
        self.put(type, *inputs, gives=self.outs, domain=domain, **attrs)

    def ints(self, *numbers: int) -> np.ndarray[Any, Any]:
        return np.array(numbers, np.int64)

    def size(self, i: int, axis: int, what: str) -> int:
        """Return the size of an axis of input number i. Raises Inexpressible, which calls it
        `what`, if it is not known."""
        v = self[i]
        found = v.shape[axis] if v is not None and v.shape is not None else None
        if not isinstance(found, int):
            raise Inexpressible(f"{what} must be known")
        return found


def type_name(v: Value | np.ndarray[Any, Any]) -> str:
    """Return the element type of a value as in ONNX's schemas, "tensor(float)"; "" for a holder."""
    from onnx import TensorProto

    if isinstance(v, Value) and isinstance(v.type, Holder):
        return ""
    return f"tensor({TensorProto.DataType.Name(code_of(v.dtype)).lower()})"


Write = Callable[[Row], None]
row = Rows("operator that is written as ONNX", "tinsmith.writers.onnx")
"""The functions that write a Row, by operator."""
