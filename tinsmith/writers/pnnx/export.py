"""Makes the PNNX operators of a whole graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.formats.pnnx import DTYPES, Operator, Tensor
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.writers.registry import Problems
from tinsmith.writers.rows import Inexpressible, Rows, constant, need, present, unused

writes = Rows("operator that PNNX has", "tinsmith.writers.pnnx")
"""The functions (Export, node) that write a node, by operator."""

WRITTEN = frozenset(name for name in DTYPES.values() if name)


class Export:
    """A graph as PNNX: the `operators` of the .param file, and the `arrays` of the .bin file, by
    `<operator>.<weight>`. Raises NotWritable with all that PNNX cannot express."""

    def __init__(self, graph: Graph) -> None:
        self.operators: list[Operator] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._ops: set[str] = set()
        self._problems = Problems("PNNX")
        for v in graph.inputs:
            self.add("pnnx.Input", f"pnnx_input_{v.name}", [], [v])
        for node in graph.nodes:
            self._write(node)
        self._problems.check(graph.name)
        last = self.operand(graph.outputs[0]) if graph.outputs else ""
        if len(graph.outputs) > 1:
            last = self.fresh("outputs")
            self.add("prim::TupleConstruct", "outputs", graph.outputs, [last])
        self.add("pnnx.Output", "pnnx_output_0", [last], [])

    def _write(self, node: Node) -> None:
        before = len(self.operators)
        try:
            function = present(writes.get(node.op.name), "PNNX has no such operator")
            for v in (*node.inputs, *node.outputs):
                known = v is None or (isinstance(v.type, Type) and v.dtype.name in WRITTEN)
                need(known, f"PNNX has no values of type {v and v.type}")
            function(self, node)
        except Inexpressible as error:
            del self.operators[before:]
            self._problems.add(node, str(error))

    # ---- names

    def fresh(self, name: str) -> str:
        """Return a new name for an operand, made of `name`."""
        return unused(_word(name), self._taken)

    def operand(self, value: Value | str) -> str:
        """Return the name of a value's operand; a string is such a name already. For a constant, an
        operator pnnx.Attribute is added, once."""
        if isinstance(value, str):
            return value
        if value not in self._names:
            self._names[value] = self.fresh(value.name)
            if value.const is not None:
                self.add("pnnx.Attribute", value.name, [], [value], weights={"data": value})
        return self._names[value]

    def same(self, y: Value, x: Value | str) -> None:
        """Give the value y the operand of x, so that no operator is needed."""
        self._names[y] = self.operand(x)

    # ---- operators

    def add(
        self, type: str, name: str, inputs: Sequence[Any] | Mapping[str, Any],
        outputs: Sequence[Value | str], params: Mapping[str, Any] = {},
        weights: Mapping[str, Any] = {},
    ) -> Operator:  # fmt: skip
        """Add an operator and return it. `inputs` are its operands: a list, or name of a parameter
        -> operand (None: not given). `params`: its other parameters. `weights`: name -> a constant,
        or None. Raises Inexpressible for a weight that is not constant."""
        named = isinstance(inputs, Mapping)
        given = {k: v for k, v in inputs.items() if v is not None} if named else {}
        values = [*given.values()] if named else [*inputs]
        op = Operator(type, "", [*map(self.operand, values)], [*map(self.operand, outputs)])
        op.name = unused(_word(name), self._ops)
        op.params = dict(params)
        op.keywords = {key: self.operand(v) for key, v in given.items()}
        for key, v in weights.items():
            if v is not None:
                self.set_weight(op, key, constant(v, key))
        for operand, v in zip([*op.inputs, *op.outputs], [*values, *outputs], strict=True):
            if isinstance(v, Value) and v.shape is not None:
                dims = tuple(d if isinstance(d, int) else None for d in v.shape)
                op.tensors[operand] = Tensor(v.dtype.name, dims)
        self.operators.append(op)
        return op

    def set_weight(self, op: Operator, key: str, array: np.ndarray[Any, Any]) -> None:
        op.weights[key] = Tensor(array.dtype.name, array.shape)
        self.arrays[f"{op.name}.{key}"] = array

    def put(self, node: Node, type: str, names: str = "input", /, **params: Any) -> None:
        """Add the operator for a node: it reads the node's inputs as the parameters `names` ("input
        other"), in order, and gives the node's outputs. Further inputs are left out."""
        given = dict(zip(names.split(), node.inputs, strict=False))
        self.add(type, node.name, given, node.outputs, params)

    def array(self, node: Node, what: str, array: np.ndarray[Any, Any]) -> str:
        """Add a pnnx.Attribute with an array, named by a node and `what`; return its operand."""
        name = f"{node.name}/{what}"
        out = self.fresh(name)
        op = self.add("pnnx.Attribute", name, [], [out])
        self.set_weight(op, "data", np.ascontiguousarray(array))
        op.tensors[out] = op.weights["data"]
        return out

    def step(self, node: Node, type: str, x: Value | str, **params: Any) -> str:
        """Add an operator with the input x, one of several for a node; return its output's name."""
        name = f"{node.name}/{type.rpartition('.')[2]}"
        out = self.fresh(name)
        self.add(type, name, {"input": x}, [out], params)
        return out


def _word(name: str) -> str:
    """Return a name with `_` in the place of blanks and `=`, which would end a word of the file."""
    return re.sub(r"[\s=]", "_", name) or "_"


# ---- questions about values


def rank(value: Value | None) -> int:
    """Return the rank of a value. Raises Inexpressible if it is not known."""
    if value is None or value.rank is None:
        raise Inexpressible("the rank of its input is not known")
    return value.rank


def size(value: Value | None, axis: int) -> int:
    shape = value.shape if value is not None else None
    dim = shape[axis] if shape and axis < len(shape) else None
    if not isinstance(dim, int):
        raise Inexpressible(f"the size of its input along axis {axis} is not known")
    return dim


def number(value: Value | None) -> Any:
    """Return the Python number that a constant of rank 0 holds, for the file's text, inf and nan
    included. None for any other value, for bfloat16, and for integers of more than 18 digits."""
    if value is None or value.const is None or value.rank or value.dtype.name == "bfloat16":
        return None
    made = value.const.item()
    return made if abs(made) < 10**18 or made != made or isinstance(made, float) else None
