"""The model graph: values that know their producer and uses.

A `Graph` is not safe to edit from two threads; reading one that nobody edits is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import GraphError, TypeRuleError, UnknownName
from tinsmith.graph.origin import Origin, at_node
from tinsmith.graph.types import Type, compatible
from tinsmith.graph.uses import Outputs, in_order
from tinsmith.graph.value import OpLike, Value
from tinsmith.sizes import has_sizes


class Node:
    """One application of the operator `op` to `inputs` (None: an absent optional input), which
    gives `outputs`. Attributes are read as `node.stride`. `origin` is the node of the source model
    that it comes from; `seq`, a sequence number, orders nodes that do not depend on each other."""

    __slots__ = ("attrs", "graph", "inputs", "name", "op", "origin", "outputs", "seq")

    def __init__(
        self, graph: Graph, op: OpLike, inputs: tuple[Value | None, ...], attrs: dict[str, Any],
        name: str, origin: Origin, seq: float,
    ) -> None:  # fmt: skip
        self.graph, self.op, self.inputs, self.attrs = graph, op, inputs, attrs
        self.name, self.origin, self.seq = name, origin, seq
        self.outputs: tuple[Value, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name in Node.__slots__:  # a copy that is being made has none of these yet
            raise AttributeError(name)
        try:
            return self.attrs[name]
        except KeyError:
            raise AttributeError(
                f"{self.op.name} has no attribute {name!r}; it has {sorted(self.attrs)}"
            ) from None

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def operand(self, index: int) -> Value:
        """Input number `index`, which the operator cannot do without (asserted)."""
        value = self.inputs[index]
        assert value is not None, self
        return value

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs among the attributes, by the names of these; for one that lies in a tuple its
        index follows: "bodies/0"."""
        found: dict[str, Graph] = {}
        work = list(self.attrs.items())
        for name, value in work:
            if isinstance(value, Graph):
                found[name] = value
            elif isinstance(value, tuple | list):
                work += [(f"{name}/{i}", item) for i, item in enumerate(value)]
        return found

    @property
    def is_static(self) -> bool:
        """Whether the types of all inputs and outputs are static."""
        return all(v is None or v.type.is_static for v in (*self.inputs, *self.outputs))

    @property
    def operands(self) -> tuple[Value, ...]:
        """All inputs, none of which may be absent (asserted)."""
        return tuple(map(self.operand, range(len(self.inputs))))

    def __repr__(self) -> str:
        args = ", ".join("-" if v is None else v.name for v in self.inputs)
        return f"{self.op.name}({args}) {self.name!r}"


class Graph:
    """Nodes, inputs and outputs of one model, or of a body that one of its nodes holds. Passes edit
    it by `add`, `replace` and `sweep`, and by the smaller steps `merge`, `set_input`, `retype`,
    `remove`. `file` is the name of the model's file, "" if there is none; `meta` what else its
    importer tells, such as {"format": "onnx"}."""

    def __init__(self, name: str = "", file: str = "") -> None:
        self.name, self.file = name, file
        self.inputs: list[Value] = []
        self._outputs = Outputs()
        self.meta: dict[str, Any] = {}
        self.files: Mapping[Path, tuple[int, ...]] = {}
        """The files that the graph was read from, with their states at that time."""
        self._nodes: dict[Node, None] = {}
        self._order: list[Node] | None = []
        self._names: Counter[str] = Counter()
        self._taken: set[str] = set()
        self._seq = 0.0
        self.edited: list[Node] | None = None
        """If this is a list, nodes that were added, or whose inputs, users or types changed, go
        there."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """A copy, also of nested graphs, that shares the arrays of constants."""
        from tinsmith.graph.copy import Copier, with_nested

        memo[id(self)] = new = Copier(self).copy({})
        for node in new.nodes:
            node.attrs = with_nested(node.attrs, lambda graph: graph.__deepcopy__(memo))
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as text and weights, like a .tin file, but with whatever `meta` holds."""
        from tinsmith.graph.text import format_graph, graph_weights, parse_graph

        return parse_graph, (format_graph(self), graph_weights(self)), {"meta": self.meta}

    # ---- building

    @property
    def outputs(self) -> Outputs:
        """The values that leave the graph, in order."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        self._outputs = Outputs(values)

    def unique(self, name: str) -> str:
        """A name for a value that no other value has: `name`, or `name.1`, `name.2`, ... where it
        is taken. The result is taken from then on."""
        candidate = name
        while candidate in self._taken:
            self._names[name] += 1
            candidate = f"{name}.{self._names[name]}"
        self._taken.add(candidate)
        return candidate

    def input(self, name: str, type: Type) -> Value:
        if any(v.name == name for v in self.inputs):
            raise GraphError(f"graph {self.name!r} has two inputs named {name!r}")
        value = Value(self, type, self.unique(name))
        self.inputs.append(value)
        return value

    def const(self, array: Any, name: str = "const", dtype: Any = np.int64) -> Value:
        """A constant that holds `array`, which is not copied (it may be memory-mapped). If that
        holds `Size`s, whose numbers only a call tells, its element type is `dtype`."""
        array = np.asanyarray(array)
        type = Type(np.dtype(dtype) if has_sizes(array) else array.dtype, array.shape)
        return Value(self, type, self.unique(name), const=array)

    def add(
        self, op: OpLike, *inputs: Any, name: str | None = None, origin: Origin | None = None,
        outputs: Sequence[str] | None = None, before: Node | None = None, **attrs: Any,
    ) -> Node:  # fmt: skip
        """Append a node. Inputs are Values, None, or arrays and numbers (which become constants).
        `outputs` are the names of its outputs, by default made from the node's name. With `before`
        it gets that node's sequence number, so that it stands there in the graph's order, not last.
        Raises TypeRuleError, naming node and file, if inputs or attributes do not fit the operator;
        GraphError for values of another graph."""
        values = tuple([v if v is None or isinstance(v, Value) else self.const(v) for v in inputs])
        while values and values[-1] is None:
            values = values[:-1]
        if foreign := [v.name for v in values if v is not None and v.graph is not self]:
            raise GraphError(
                f"{op.name} in graph {self.name!r} reads values of another graph: {foreign}"
            )
        name = self.unique_node(name or (outputs[0] if outputs else op.name.lower()))
        origin = origin or Origin(self.file, name, op.name)
        try:
            bound = op.bind(values, attrs)
            types = op.infer(values, bound)
        except TypeRuleError as error:
            raise at_node(error, origin, op, values) from error
        node = self._append(op, values, bound, types, name, origin, list(outputs or []))
        if before is not None:
            node.seq = before.seq
        return node

    def _append(
        self, op: OpLike, values: tuple[Value | None, ...], bound: dict[str, Any],
        types: tuple[Type, ...], name: str, origin: Origin, names: list[str],
    ) -> Node:  # fmt: skip
        found: list[str] = []
        for i in range(len(types)):
            given = names[i] if i < len(names) else "" if i else name
            found.append(self.unique(given or f"{name}:{i}"))
        node = self.attach(op, values, bound, types, name, origin, found)
        self._note(node)
        return node

    def attach(
        self, op: OpLike, values: tuple[Value | None, ...], attrs: dict[str, Any],
        types: Sequence[Type], name: str, origin: Origin, names: Sequence[str],
    ) -> Node:  # fmt: skip
        """Append a node with these attributes, output types and output names, all unchecked; the
        names must be free. `take_names` must follow."""
        self._seq += 1
        node = Node(self, op, values, attrs, name, origin, self._seq)
        node.outputs = tuple(
            [Value(self, t, n, node, i) for i, (t, n) in enumerate(zip(types, names, strict=True))]
        )
        for v in values:
            if v is not None:
                v.uses.append(node)
        self._nodes[node] = None
        self._order = None
        return node

    def take_names(self) -> None:
        """Recompute which names are taken, for `unique`. To be called after `attach`."""
        self._taken = {v.name for v in self.values()}
        self._taken.update("\0" + node.name for node in self._nodes)

    def adopt(self, node: Node, inputs: tuple[Value | None, ...]) -> Node:
        """Append a copy of `node`, which may be of another graph, over `inputs` of the same types
        as its own. Output types are kept, not inferred; names are made unique."""
        types = tuple([v.type for v in node.outputs])
        names = [v.name for v in node.outputs]
        name = self.unique_node(node.name)
        return self._append(node.op, inputs, dict(node.attrs), types, name, node.origin, names)

    def unique_node(self, name: str) -> str:
        return self.unique("\0" + name)[1:]

    # ---- editing

    def replace(self, old: Value, new: Value, *, keep_name: bool = True) -> None:
        """Let every node that reads `old`, and every graph output that is `old`, read `new`
        instead. The producer of `new` alone still reads `old`. A graph output keeps its name: `new`
        and `old` exchange theirs, unless `new` is no output of a node or is a graph output already
        (then the caller puts an Identity between), or `keep_name` is false. Raises GraphError if
        the types do not agree."""
        if old is new:
            return
        if not compatible(old.type, new.type):
            raise GraphError(
                f"cannot replace {old!r} by {new!r} in graph {self.name!r}: the types differ"
            )
        self._note(old.producer)
        self._note(new.producer)
        for user in dict.fromkeys(old.uses):
            if user is not new.producer:
                count = old.uses.pop(user)
                user.inputs = _put(user.inputs, old, new, count)
                new.uses.append(user, count)
                self._note(user)
        if old in self._outputs:
            takes_over = new.producer is not None and new not in self._outputs and keep_name
            self._outputs.replace(old, new)
            if takes_over:
                old.name, new.name = new.name, old.name
        self._order = None

    def merge(self, old: Value, new: Value) -> None:
        """Let all readers of `old` read `new`, as by `replace`. Both are constants of equal
        content, so that nodes compute the same as before, and none is noted in `edited`."""
        edited, self.edited = self.edited, None
        try:
            self.replace(old, new)
        finally:
            self.edited = edited

    def set_input(self, node: Node, index: int, new: Value | None) -> None:
        """Let input number `index` of one node read `new`, or nothing if that is None. The output
        types are not inferred again: `new` must not change them."""
        old = node.inputs[index]
        node.inputs = (*node.inputs[:index], new, *node.inputs[index + 1 :])
        if old is not None:
            old.uses.remove(node)
            self._note(old.producer)
        if new is not None:
            new.uses.append(node)
            self._note(new.producer)
        self._note(node)
        self._order = None

    def retype(self, value: Value, type: Type) -> None:
        """Give a value a more exact type than its present one (not checked). Its producer and its
        readers count as edited (`edited`)."""
        value.type = type
        for node in (value.producer, *value.uses):
            self._note(node)

    def _note(self, node: Node | None) -> None:
        if self.edited is not None and node is not None:
            self.edited.append(node)

    def sweep(self, start: Iterable[Node] | None = None) -> list[Node]:
        """Drop dead nodes: those whose outputs nothing reads, then the producers of their inputs if
        these are dead now, and so on. Nodes with the trait `check` stay. `start`: the nodes to look
        at first (None: all). Returns the dropped nodes."""
        dropped: list[Node] = []
        work = list(self._nodes if start is None else start)
        while work:
            node = work.pop()
            for v in node.outputs:
                if v.uses or v in self._outputs:
                    break
            else:
                if node in self._nodes and "check" not in node.op.traits:
                    work += self.remove(node)
                    dropped.append(node)
        return dropped

    def remove(self, node: Node) -> list[Node]:
        """Drop one node, whose outputs must be unused (not checked). Returns the producers of its
        inputs: these may be unused now."""
        del self._nodes[node]
        self._order = None
        read: list[Node] = []
        for v in node.inputs:
            if v is not None:
                v.uses.remove(node)
                if v.producer is not None:
                    self._note(v.producer)
                    read.append(v.producer)
        return read

    # ---- reading

    @property
    def newest(self) -> float:
        """The sequence number of the node added last. Nodes added later have greater ones."""
        return self._seq

    @property
    def nodes(self) -> list[Node]:
        """All nodes in topological order, near the order in which they were added (`in_order`)."""
        if self._order is None:
            self._order = in_order(self._nodes, self.name)
        return self._order

    def operators(self) -> set[str]:
        """The names of the operators of all nodes, not of nested graphs."""
        return {node.op.name for node in self._nodes}

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self.nodes))

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def constants(self) -> list[Value]:
        """The constants that nodes or outputs read, in order of first use."""
        read = chain((v for node in self.nodes for v in node.inputs), self.outputs)
        return list(dict.fromkeys(v for v in read if v is not None and v.const is not None))

    def values(self) -> Iterable[Value]:
        """Inputs, constants and node outputs."""
        yield from self.inputs
        yield from self.constants()
        for node in self.nodes:
            yield from node.outputs

    def node(self, name: str) -> Node:
        """The first node named `name`, or with an output of that name. Raises UnknownName."""
        for node in self.nodes:
            if node.name == name or any(v.name == name for v in node.outputs):
                return node
        raise UnknownName("node", name, [n.name for n in self.nodes])

    def clone(self, types: Mapping[str, Type] | None = None) -> Graph:
        """A copy that shares the arrays of constants, and nested graphs. `types` gives some inputs,
        by name, other types; types that depend on them are inferred again. Raises TypeRuleError."""
        from tinsmith.graph.copy import Copier

        return Copier(self).copy(types or {})

    def _repr_html_(self) -> str:
        from tinsmith.html import table

        rows: list[Sequence[object]] = [("input", v.name, "", v.type) for v in self.inputs]
        rows += [
            (n.op.name, n.name, ", ".join("-" if v is None else v.name for v in n.inputs),
             ", ".join(str(v.type) for v in n.outputs))
            for n in self.nodes
        ]  # fmt: skip
        rows += [("output", v.name, "", v.type) for v in self.outputs]
        columns = ["operator", "name", "reads", "type"]
        return table(f"graph {self.name}", columns, rows, left=columns)

    def __str__(self) -> str:
        from tinsmith.graph.text import format_graph

        return format_graph(self)


def _put(
    inputs: tuple[Value | None, ...], old: Value, new: Value, count: int
) -> tuple[Value | None, ...]:
    """A node's `inputs` (perhaps thousands) with the first `count` occurrences of `old` replaced by
    `new`."""
    found, at = list(inputs), -1
    for _ in range(count):
        at = inputs.index(old, at + 1)
        found[at] = new
    return tuple(found)
