"""The nodes of a file while they are imported into a graph (`SourceNode`), and the names by which
they read each other's values (`Scope`). All formats share this module."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import numpy as np

from tinsmith.errors import GraphError, TypeRuleError, suggest
from tinsmith.frontends.importing import BROKEN, Broken, Import, Importer, Skipped, Unsupported
from tinsmith.frontends.scales import SCALES, need_scales
from tinsmith.graph import Array, Graph, Origin, Type, Value
from tinsmith.graph.types import compatible
from tinsmith.ops import OPS
from tinsmith.ops.declared import claim, declare, drop_idle, refuse

Result = Value | tuple[Value | None, ...]
Record = TypeVar("Record")


class SourceNode:
    """One node of a file while it is imported: what the file says of it, and methods by which its
    importer function reads that and adds nodes to the graph (`emit`).

    scope    the names that the node sees, and the graph that it is imported into
    type     the operator, as the file calls it; `key` is its name in the table of importers
    label    its name in messages and of new nodes: the file's (else that of its first output, or
             the type), after the scope's prefix
    inputs   names of values, "" for an absent one. While the importer function runs, it has the
             Values instead, None for an absent one
    outputs  names of values, "" for an absent one
    attrs    the attributes, by the names (or numbers) that the format gives them
    edition  the version of the operator: see `Import.fail`
    """

    def __init__(
        self, scope: Scope, type: str, name: str, inputs: Iterable[str] = (),
        outputs: Iterable[str] = (), attrs: Mapping[Any, Any] | None = None, edition: str = "",
    ) -> None:  # fmt: skip
        self.scope, self.type, self.key, self.edition = scope, type, type, edition
        self.input_names, self.outputs = list(inputs), list(outputs)
        self.inputs: list[Value | None] = []
        self.attrs: dict[Any, Any] = dict(attrs or {})
        name = name or next((o for o in self.outputs if o), type)
        self.label = f"{scope.prefix}/{name}" if scope.prefix else name
        self.origin = Origin(scope.shared.file, self.label, type)
        self.needs = {n for n in self.input_names if n}
        """The names of all values that the node reads, also in its subgraphs."""
        self.line = 0
        """The line of the node in a file of text, from 1 on; 0 where there is none."""
        self.own_name = ""
        """The name of the graph's node that computes the first output."""
        self._read: set[Any] = set()

    # ---- what the node says

    def arg(self, index: int) -> Value | None:
        """Input number `index`; None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def __getitem__(self, index: int) -> Value:
        """Input number `index`. Raises Unsupported where it is absent."""
        value = self.arg(index)
        if value is None:
            raise Unsupported(f"its input {index} is missing")
        return value

    def attr(self, name: Hashable, default: Any = None) -> Any:
        """An attribute, or `default` where the node lacks it; it then counts as read."""
        self._read.add(name)
        return self.attrs.get(name, default)

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the attributes `names` that the node has, with their values; they count as
        read."""
        return {n: value for n in names if (value := self.attr(n)) is not None}

    def ignore(self, *names: Hashable) -> None:
        """Count attributes that mean nothing in inference as read, for `check_attrs`."""
        self._read.update(names)

    def required(self, name: Hashable) -> Any:
        """An attribute. Raises Unsupported where the node lacks it."""
        self._read.add(name)
        if name not in self.attrs:
            raise Unsupported(f"its attribute {name!r} is missing")
        return self.attrs[name]

    def unread(self) -> list[Any]:
        """The names of the attributes that the importer function neither read nor ignored."""
        return sorted(self.attrs.keys() - self._read, key=str)

    def check_attrs(self) -> None:
        """Raise Unsupported for attributes that the importer function did not read: their meaning
        would be lost."""
        if names := ", ".join(map(repr, self.unread())):
            raise Unsupported(f"it has attributes that are not known: {names}")

    def wants(self, index: int) -> bool:
        """Whether the node has output number `index`, that is, names it."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def used(self, index: int) -> bool:
        """Whether any node, or the model's outputs, read output number `index`."""
        return self.wants(index) and self.outputs[index] in self.scope.reads

    def constant(self, index: int, what: str) -> Array | None:
        """The array of input number `index`, called `what` in messages; None where it is absent.
        Raises Unsupported if it is not constant."""
        value = self.arg(index)
        if value is not None and value.const is None:
            raise Unsupported(f"its {what} ({value.name!r}) is not a constant")
        return None if value is None else value.const

    # ---- what the importer builds

    def emit(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """Add a node of our operator `op` to the graph; return its output, or the tuple of outputs.
        Arrays among the inputs become constants. Raises TypeRuleError if the inputs do not fit; in
        the body of a branch or loop, which may never run, adds a `Refused` node that raises this
        error when it runs. Raises ScaleError for constant scales that leave no numbers."""
        values = tuple(self.const(v) if isinstance(v, np.ndarray) else v for v in inputs)
        if op in SCALES:
            need_scales(op, values, bool(attrs.get("block_size")))
        graph, name = self.scope.graph, f"{self.label}/{op}"
        try:
            node = graph.add(OPS[op], *values, name=name, origin=self.origin, **attrs)
        except TypeRuleError as error:
            if not self.scope.nested:
                raise
            node = refuse(graph, OPS[op], values, attrs, error, name, self.origin)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def const(self, array: Any, dtype: Any = None) -> Value:
        """Add an array or number to the graph as a constant."""
        return self.scope.graph.const(np.asanyarray(array, dtype), f"{self.label}/const")

    def ints(self, *numbers: int) -> Value:
        """A constant int64 vector."""
        return self.const(np.array(numbers, np.int64))

    def kept(self, value: Value, count: int) -> list[int]:
        """The first `count` numbers in the shape of a Reshape that keeps as many axes of `value`:
        their sizes, or 0 ("as in the input") for unknown ones."""
        shape = value.shape or ("",) * count
        return [d if isinstance(d, int) else 0 for d in shape[:count]]

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant with the element type of `like`."""
        return self.const(np.array(number, like.dtype))

    def scaled(self, x: Value, factor: float) -> Value:
        """x * factor. Raises Unsupported for integers and a factor that is no integer."""
        if factor == 1:
            return x
        if x.dtype.kind in "iu" and factor != int(factor):
            raise Unsupported(f"it scales integers by {factor}")
        return self.emit("Mul", x, self.number(factor, x))

    def flipped(self, x: Value, *axes: int) -> Value:
        """x with the elements along `axes` in reverse order."""
        ends = ((-1,) * len(axes), (-(2**63),) * len(axes), axes, (-1,) * len(axes))
        return self.emit("Slice", x, *(self.ints(*numbers) for numbers in ends))

    def local_norm(self, x: Value, *, size: int, alpha: float, beta: float, bias: float) -> Value:
        """A local response normalisation as PyTorch and ncnn compute it: for an even `size`, the
        window has one channel more before its channel than after it. Our LRN has it after, so
        channels are reversed for it."""

        def turned(x: Value) -> Value:
            return x if size % 2 else self.flipped(x, 1)

        return turned(self.emit("LRN", turned(x), size=size, alpha=alpha, beta=beta, bias=bias))

    def binned(self, x: Value, axis: int, bins: Sequence[tuple[int, int]], kind: str) -> Value:
        """x with `axis` reduced to one element for each of `bins`, (begin, end), which may overlap:
        the mean or the maximum (`kind` "mean", "max") of the elements begin .. end - 1."""
        self.scope.shared.count_nodes(2 * len(bins))
        parts, at = [], self.ints(axis)
        for begin, end in bins:
            part = self.emit("Slice", x, self.ints(begin), self.ints(end), at)
            parts.append(self.emit("Reduce", part, at, kind=kind))
        return self.emit("Concat", *parts, axis=axis)

    def note(self, text: str) -> None:
        """Record a remark about the node: see `Import.note`."""
        self.scope.shared.note(f"{self.origin}: {text}")


def bins_of(size: int, count: int) -> list[tuple[int, int]]:
    """(begin, end) of each of the `count` bins of adaptive pooling along an axis of `size`."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


class Scope:
    """The names that a list of nodes (a model, a body, a function) sees, each with its Value, and
    the graph that the nodes are imported into.

    nested  the nodes are the body of a branch or loop, which may never run
    prefix  of the nodes of a function, which are imported in place of its call: the call's name, to
            be put before theirs
    env     name -> its Value, or BROKEN
    named   the values that have their final names
    reads   the names that nodes of the list or its results read
    broken  whether an output of the graph is missing, as its node was not imported
    """

    def __init__(
        self, shared: Import, graph: Graph, *, nested: bool = False, prefix: str = ""
    ) -> None:
        self.shared, self.graph, self.nested, self.prefix = shared, graph, nested, prefix
        self.kinds: type | tuple[type, ...] = object
        """The classes of values that importer functions may return."""
        self.declared: dict[str, Type] = {}
        """The types that the file declares for values that nodes compute: see `checked`."""
        self.broken = False
        self.env: dict[str, Any] = {}
        self.named: set[Value] = set()
        self.reads: set[str] = set()
        self.offered: set[str] = set()
        """The names of all outputs of the nodes, imported or not."""

    # ---- names

    def bind(self, name: str, value: Any) -> None:
        """Give `value` a name that nodes see. Raises GraphError where the name is taken."""
        if name in self.env:
            raise GraphError(f"{self.shared.name} computes the value {name!r} twice")
        self.env[name] = value

    def look_up(self, name: str) -> Any:
        """The Value called `name`, or BROKEN if its node was not imported; None for an unknown
        name."""
        return self.env.get(name)

    def read(self, name: str, node: SourceNode) -> Any:
        """The value (or BROKEN) called `name`, which `node` reads. Raises GraphError, naming the
        node, for an unknown name."""
        value = self.look_up(name)
        if value is None:
            where = f"line {node.line} of " * bool(node.line) + self.shared.name
            raise GraphError(
                f"{node.label!r} ({node.type}) of {where} "
                f"reads {name!r}, which is neither an input, a weight, nor an output of a node."
                f"{suggest(name, (self.offered | self.env.keys()) - {*node.outputs})}"
            )
        return value

    # ---- what is not computed by nodes

    def add_input(self, name: str, type: Type) -> Value:
        """Add an input to the graph, and bind its name."""
        value = self.graph.input(name, type)
        self.named.add(value)
        self.bind(name, value)
        return value

    def add_constant(self, name: str, array: Any) -> Value:
        """Add a constant to the graph, and bind its name."""
        value = self.graph.const(array, name)
        value.name = name
        self.named.add(value)
        self.bind(name, value)
        return value

    def set_outputs(self, names: Sequence[str]) -> None:
        """Make the values called `names` the graph's outputs, once all nodes are imported. Broken
        ones are left out, and set `broken`. Checks (`Declared`) that none needs are removed."""
        found = [self.output(name) for name in names]
        self.broken = any(isinstance(v, Broken) for v in found)
        self.graph.outputs = [v for v in found if isinstance(v, Value)]
        drop_idle(self.graph)

    def output(self, name: str) -> Value | Broken:
        """The Value for the graph's output `name`, or Broken. A value whose own name is another is
        copied (by an Identity, or as a second constant). Raises GraphError for an unknown name."""
        value = self.look_up(name)
        if value is None:
            raise GraphError(f"the output {name!r} of {self.shared.name} is computed by no node")
        if isinstance(value, Broken) or value.name == name:
            return value
        if value.const is not None:
            alias = self.graph.const(value.const)
        else:
            alias = self.graph.add(OPS["Identity"], value, name=name).outputs[0]
        alias.name = name
        return alias

    # ---- nodes

    def run(
        self,
        records: Sequence[Record],
        make: Callable[[Record], SourceNode],
        results: Iterable[str],
    ) -> None:
        """Import `records`, the nodes of a file, in any order: `make(record)` is the SourceNode of
        one. `results` are names of values that are read besides, such as the graph's outputs. Nodes
        that cannot be imported become problems: see `Import.attempt`."""
        self.shared.count_nodes(len(records))
        reserved = {v.name for v in self.graph.inputs}
        nodes = [make(record) for record in records]
        self.reads.update(*(node.needs for node in nodes), results)
        self.offered.update(*(node.outputs for node in nodes))
        if not self.prefix:
            for node in nodes:  # the file's names come before those that importers make
                node.own_name = self.graph.unique_node(node.label)
                for name in node.outputs:
                    if name and name not in reserved:
                        reserved.add(self.graph.unique(name))
        for node in _sorted(nodes, self.shared.name):
            self._bind_results(node, self.shared.attempt(node, self._imported))

    def importer_of(self, node: SourceNode) -> Importer | None:
        """The function that imports a node; None where there is none."""
        return self.shared.importers.get(node.key)

    def _imported(self, node: SourceNode) -> Any:
        node.inputs = [self.read(name, node) if name else None for name in node.input_names]
        function = self.importer_of(node)
        if function is None:
            raise Unsupported("")
        if any(isinstance(v, Broken) for v in node.inputs):
            raise Skipped("")
        results = function(node)
        node.check_attrs()
        return results

    def _bind_results(self, node: SourceNode, results: Any) -> None:
        """Bind the names of a node's outputs to `results`, which its importer function returned.
        An output that it left out is BROKEN, and a problem if anything reads it."""
        failed = isinstance(results, Broken)
        values = results if isinstance(results, tuple) else (results,)
        for i, name in enumerate(node.outputs):
            if not name:
                continue
            value = values[i] if not failed and i < len(values) else None
            if value is None:
                self.bind(name, BROKEN)
                if not failed and name in self.reads:
                    reason = f"its output {i} ({name!r}) is not supported"
                    self.shared.fail(node.key, node.label, reason, node.edition)
                continue
            if not isinstance(value, self.kinds):
                self.shared.fail(node.key, node.label, f"its importer gave {value!r}, no value")
                value = BROKEN
            if isinstance(value, Value) and value not in self.named:
                value = self._name(value, name, node if i == 0 else None)
            self.bind(name, value)

    def _name(self, value: Value, name: str, node: SourceNode | None) -> Value:
        """Rename a new value to its `name` in the file, and, if it is the first output of `node`
        (None for other outputs), the graph's node to the file's name of `node`; in a function, only
        the value. Returns the value, or that of a check of its declared type: see `checked`."""
        self.named.add(value)
        if self.prefix:
            value.name = self.graph.unique(f"{self.prefix}/{name}")
            return value
        value.name = name
        if value.producer is not None and node is not None:
            value.producer.name = node.own_name
        return self.checked(value, name, self.declared.get(name))

    def checked(self, value: Value, name: str, declared: Type | None) -> Value:
        """`value`, or the output of a new `Declared` node that checks it, if the type that the file
        declares for it says more than is known. A declared type that contradicts the known one is
        noted and ignored."""
        node = value.producer
        if declared is None or value.const is not None:
            return value
        if not compatible(value.type, declared):
            if node is not None:
                file = self.shared.name
                self.shared.note(f"{file} declares {name!r} as {declared}; it is {value.type}")
            return value
        # sizes that are free now will be known from the inputs
        told = node is not None and all(v is None or v.type.is_static for v in node.inputs)
        shape = claim(value.type, declared, numbers=told)
        if shape is None:
            return value
        origin = Origin(self.shared.file, name, "input") if node is None else node.origin
        value = declare(value, shape, origin)
        self.named.add(value)
        return value


def _sorted(nodes: list[SourceNode], model: str) -> list[SourceNode]:
    """The nodes in an order in which each comes after all whose outputs it reads: the given order
    if it is one. Raises GraphError, naming the file `model`, if there is a cycle."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{producer[name] for name in node.needs if name in producer} for node in nodes]
    if all(j < i for i, need in enumerate(needs) for j in need):
        return nodes
    order = TopologicalSorter(dict.fromkeys(range(len(nodes)), ()))
    for i, need in enumerate(needs):
        order.add(i, *need)
    try:
        return [nodes[i] for i in order.static_order()]
    except CycleError as error:
        stuck = [nodes[i].label for i in sorted({*error.args[1]})[:5]]
        raise GraphError(f"{model} has a cycle through {', '.join(map(repr, stuck))}") from None
