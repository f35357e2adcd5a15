"""A graph while it is written as PNNX: its operators so far, and the names of its values there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.formats.pnnx import DTYPES, Operator, Tensor
from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.ops import OPS
from tinsmith.registry import Registry
from tinsmith.writers.registry import Problems

Function = Callable[["Export", Node], Any]
WRITERS: Registry[Function] = Registry("operator that PNNX has", "tinsmith.writers.pnnx")
"""Our operator -> what writes a node of it. It raises Refused for what PNNX cannot say."""

WRITTEN = frozenset(name for name in DTYPES.values() if name)


class Refused(Exception):
    """What PNNX cannot say of a node. Collected, never seen by users."""


def writes(*ops: str) -> Callable[[Function], Function]:
    """Decorator: the function that writes these operators."""

    def register(function: Function) -> Function:
        for op in ops:
            WRITERS.register(op, function)
        return function

    return register


class Export:
    """`operators` and `arrays` of the files of a graph. Raises NotWritable."""

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
        function = WRITERS.get(node.op.name)
        before = len(self.operators)
        try:
            if function is None:
                raise Refused("PNNX has no such operator")
            for v in (*node.inputs, *node.outputs):
                if v is not None and (not isinstance(v.type, Type) or v.dtype.name not in WRITTEN):
                    raise Refused(f"PNNX has no values of type {v.type}")
            function(self, node)
        except Refused as error:
            del self.operators[before:]
            self._problems.add(node, str(error))

    # ---- names

    def fresh(self, name: str) -> str:
        """A name of an operand that no other has."""
        return _unique(name, self._taken)

    def operand(self, value: Value | str) -> str:
        """What a value is called; a constant is an operator of its own."""
        if isinstance(value, str):
            return value
        if value not in self._names:
            self._names[value] = self.fresh(value.name)
            if value.const is not None:
                self.add("pnnx.Attribute", value.name, [], [value], weights={"data": value})
        return self._names[value]

    def same(self, y: Value, x: Value | str) -> None:
        """`y` is `x`."""
        self._names[y] = self.operand(x)

    # ---- operators

    def add(
        self, type: str, name: str, inputs: Sequence[Any] | Mapping[str, Any],
        outputs: Sequence[Value | str], params: Mapping[str, Any] = {},
        weights: Mapping[str, Any] = {},
    ) -> Operator:  # fmt: skip
        """Add an operator. `inputs` by name are operands of those parameters, None for those that
        are absent; `weights` are constants."""
        named = isinstance(inputs, Mapping)
        given = {k: v for k, v in inputs.items() if v is not None} if named else {}
        values = [*given.values()] if named else [*inputs]
        op = Operator(type, "", [*map(self.operand, values)], [*map(self.operand, outputs)])
        op.name = _unique(name, self._ops)
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
        """Add an operator in the place of a node: its inputs are those of these names, in order,
        its outputs all of the node's."""
        given = dict(zip(names.split(), node.inputs, strict=False))
        self.add(type, node.name, given, node.outputs, params)

    def step(self, node: Node, type: str, x: Value | str, **params: Any) -> str:
        """Add an operator before what stands for a node; its output."""
        name = f"{node.name}/{type.rpartition('.')[2]}"
        out = self.fresh(name)
        self.add(type, name, {"input": x}, [out], params)
        return out


def _unique(name: str, taken: set[str]) -> str:
    """The name, without what would end a word, or with a number after it."""
    name = re.sub(r"[\s=]", "_", name) or "_"
    made, i = name, 1
    while made in taken:
        made, i = f"{name}_{i}", i + 1
    taken.add(made)
    return made


# ---- what writers ask of nodes


def only(condition: Any, why: str) -> None:
    """Raises Refused unless the condition holds."""
    if not condition:
        raise Refused(why)


def constant(value: Value | None, what: str) -> np.ndarray[Any, Any]:
    """The array of an input that must be constant."""
    if value is None or value.const is None:
        raise Refused(f"its {what} are computed")
    return value.const


def whole(value: Value | None, what: str) -> tuple[int, ...]:
    return tuple(int(n) for n in constant(value, what).reshape(-1))


def rank(value: Value | None) -> int:
    if value is None or value.rank is None:
        raise Refused("the rank of its input is not known")
    return value.rank


def size(value: Value | None, axis: int) -> int:
    dim = value.shape[axis] if value is not None and value.shape is not None else None
    if not isinstance(dim, int):
        raise Refused(f"the size of its input along axis {axis} is not known")
    return dim


def number(value: Value | None) -> Any:
    """The Python number of a constant without axes that text can hold, else None."""
    if value is None or value.const is None or value.rank or value.dtype.name == "bfloat16":
        return None
    made = value.const.item()
    return made if abs(made) < 10**18 or made != made or isinstance(made, float) else None


def plain(node: Node, *said: str) -> None:
    """Raises Refused where an attribute that is not `said` has not its default."""
    for name, default in OPS[node.op.name].attrs.items():
        value = node.attrs.get(name, default)
        if name not in said and value != default:
            raise Refused(f"its {name} is {value!r}")
