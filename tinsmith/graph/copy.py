"""Copies of a graph: for other types of its inputs, of a part of it, or with numbers for sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.errors import GraphError, TypeRuleError, UnknownName
from tinsmith.graph.core import Graph, Node, Value
from tinsmith.graph.origin import at_node
from tinsmith.graph.types import Dim, Type
from tinsmith.graph.uses import ancestors
from tinsmith.sizes import Size, has_sizes

SMALL = 16
"""The most elements of floating-point constants whose values type rules read (of integers they read
all)."""


def shaped_types(graph: Graph, shapes: Sequence[tuple[Dim, ...] | None]) -> dict[str, Type]:
    """The `types` of `Copier.copy` that give a graph's inputs other shapes: name of the input ->
    its type with the new shape. `shapes` has one for each input, in order (None: it stays). Inputs
    whose shape does not change are left out."""
    return {
        v.name: v.type.like(shape=dims)
        for v, dims in zip(graph.inputs, shapes, strict=True)
        if dims is not None and v.type.shape != dims
    }


def with_outputs(graph: Graph, names: Iterable[str]) -> Graph:
    """A copy of a graph with other outputs: `names` are those of values, or of nodes, which mean
    their first outputs. Nodes that the new outputs do not need stay. Raises UnknownName."""
    copy = Copier(graph).copy({})
    copy.outputs = list(map(_finder(copy), names))
    return copy


def _finder(graph: Graph) -> Callable[[str], Value]:
    """A function that finds a value of a graph by its name, or by that of the node whose first
    output it is. It raises UnknownName."""
    values = {v.name: v for v in graph.values()}
    nodes = {n.name: n.output for n in graph.nodes if n.outputs}

    def find(name: str) -> Value:
        if (found := values.get(name) or nodes.get(name)) is None:
            first = [v.name for v in graph.outputs]
            raise UnknownName(f"value of {graph.name}", name, [*values, *nodes], first=first)
        return found

    return find


def between(graph: Graph, starts: Iterable[str], ends: Iterable[str]) -> Graph:
    """A copy of the subgraph between the values `starts` and `ends`, given by names of values, or
    of nodes, which mean their first outputs. Each start becomes a graph input, even if a node
    computed it. The ends are the outputs; without any, the graph's own stay. Other values that
    outputs need are computed as before. Inputs that nothing needs any longer are dropped.

    Raises UnknownName; GraphError for a start that is an end, or on which no output depends.
    """
    copy = Copier(graph).copy({})
    named = _finder(copy)
    cut = dict.fromkeys(map(named, starts))
    last = list(map(named, ends)) or list(copy.outputs)
    if both := [v.name for v in last if v in cut]:
        raise GraphError(f"{both[0]!r} of {graph.name} is a start and an end: nothing is between")
    copy.outputs = last
    opened: list[tuple[Value, str]] = []
    for old in cut:
        if old in copy.inputs:
            opened.append((old, old.name))
        else:
            opened.append((copy.input(old.name, old.type), old.name))
            copy.replace(old, opened[-1][0], keep_name=False)
    copy.sweep()
    for new, name in opened:
        if not new.uses:
            before = {v.name for v in ancestors(v for v in graph.values() if v.name == name)}
            turned = [v.name for v in last if v.name in before]
            raise GraphError(
                f"no output of {graph.name} depends on {name!r} where it is cut: the outputs are "
                + ", ".join(v.name for v in last)
                + (f"; {name!r} depends on {turned[0]!r}: turn them round?" if turned else "")
            )
        new.name = name
    taken = [v for v, _ in opened]
    others = [v for v in copy.inputs if v not in taken and (v.uses or v in copy.outputs)]
    copy.inputs = [*taken, *others]
    copy.take_names()
    return copy


class Copier:
    """Copies one graph, any number of times. It keeps the equivalence classes of nodes from copy to
    copy, so the graph must not be edited in between."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._kinds: dict[Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def copy(self, types: Mapping[str, Type]) -> Graph:
        """A copy of the graph, with the same names; the copy shares the arrays of constants, and
        nested graphs. `types` gives some inputs, by name, other types; types that depend on them
        are inferred again. Raises TypeRuleError, naming the node, if they do not fit it."""
        graph = self.graph
        new = Graph(graph.name, graph.file)
        new.meta, new.files = dict(graph.meta), graph.files
        env: dict[Value, Value] = {}
        changed: set[Value | None] = set()
        for v in graph.inputs:
            env[v] = Value(new, types.get(v.name, v.type), v.name)
            new.inputs.append(env[v])
            if env[v].type != v.type:
                changed.add(v)
        typing = _Typing(self._kind, _sizes(graph, types))
        for node in graph.nodes:
            for v in node.inputs:
                if v is not None and v not in env:
                    env[v] = Value(new, v.type, v.name, const=v.const)
            inputs = tuple([None if v is None else env[v] for v in node.inputs])
            result = [v.type for v in node.outputs]
            if changed and not changed.isdisjoint(node.inputs):
                result = typing.result(node, inputs)
                changed.update(
                    v for v, type in zip(node.outputs, result, strict=True) if type is not v.type
                )
            names = [v.name for v in node.outputs]
            attrs = dict(node.attrs)
            copy = new.attach(node.op, inputs, attrs, result, node.name, node.origin, names)
            env.update(zip(node.outputs, copy.outputs, strict=True))
        for v in graph.outputs:
            if v not in env:
                env[v] = Value(new, v.type, v.name, const=v.const)
            new.outputs.append(env[v])
        new.take_names()
        return new

    def _kind(self, node: Node) -> int:
        """The number of the node's equivalence class (the function `_kind`). Nodes of one class
        have the same output types for the same input types: `_Typing` infers these once."""
        number = self._kinds.get(node)
        if number is None:
            number = self._numbers.setdefault(_kind(node), len(self._numbers))
            self._kinds[node] = number
        return number


class _Typing:
    """Infers the output types of nodes in one copy: static types once for each equivalence class
    and input types, others for each node, whose unknown sizes are its own. `kind` gives the number
    of a node's class, `sizes` the numbers that symbols of the graph's inputs have in the copy."""

    def __init__(self, kind: Callable[[Node], int], sizes: Mapping[Dim, Dim]) -> None:
        self.kind, self.sizes = kind, sizes
        self.known: dict[Hashable, tuple[Type, ...]] = {}

    def result(self, node: Node, inputs: tuple[Value | None, ...]) -> list[Type]:
        """The output types of the copy of `node`, where its inputs are `inputs`. Where an inferred
        type equals that of the original output, the latter object is returned, by which the caller
        sees that nothing changed. Raises TypeRuleError, naming the node."""
        key = (self.kind(node), *[None if v is None else v.type for v in inputs])
        inferred = self.known.get(key)
        if inferred is None:
            try:
                inferred = node.op.infer(inputs, node.attrs)
            except TypeRuleError as error:
                raise at_node(error, node.origin, node.op, inputs) from error
            if all(type.is_static for type in inferred):  # unknown sizes must stay distinct
                self.known[key] = inferred
        return [
            v.type if v.type == type else self._with_known_sizes(v.type, type)
            for v, type in zip(node.outputs, inferred, strict=True)
        ]

    def _with_known_sizes(self, old: Type, new: Type) -> Type:
        """The inferred type `new` with some symbols replaced by numbers: where the original type
        `old` has, at the same axis, a symbol whose number is known (`sizes`)."""
        if new.is_static or old.shape is None or new.shape is None:
            return new
        if len(old.shape) != len(new.shape):
            return new
        pairs = zip(old.shape, new.shape, strict=True)
        return new.like(
            shape=tuple([self.sizes.get(a, b) if isinstance(b, str) else b for a, b in pairs])
        )


def _sizes(graph: Graph, types: Mapping[str, Type]) -> dict[Dim, Dim]:
    """The numbers of symbols in a copy: symbol -> number, for each axis that is a symbol in a graph
    input's type and a number in its type of `types`."""
    sizes: dict[Dim, Dim] = {}
    for v in graph.inputs:
        given = types.get(v.name, v.type).shape
        if v.shape is not None and given is not None:
            pairs = zip(v.shape, given, strict=True)
            sizes |= {a: b for a, b in pairs if isinstance(a, str) and not isinstance(b, str)}
    return sizes


def _kind(node: Node) -> Hashable:
    """A key of a node's equivalence class: operator, attributes, and the content of constants that
    type rules may read (`_content`). The key is the node itself, so that it is alone in its class,
    if it holds graphs, reads or gives holders, or has unhashable attributes."""
    if node.op.traits & {"control", "holder"}:
        return node
    kind = (node.op.name, tuple(node.attrs.items()), tuple(map(_content, node.inputs)))
    try:
        hash(kind)
    except TypeError:
        return node
    return kind


def _content(v: Value | None) -> Hashable:
    """The part of `_kind` for one input. For a constant of numbers: element type and bytes, or, if
    it holds more than SMALL floats, which type rules do not read, the element type alone. For
    another constant the value itself; else None."""
    if v is None or v.const is None:
        return None
    if v.dtype.kind == "f" and v.const.size > SMALL:
        return v.dtype.str
    if v.dtype.kind not in "biuf" or v.const.dtype == object:
        return v
    return v.dtype.str, np.ascontiguousarray(v.const).tobytes()


def with_nested(attrs: Mapping[str, Any], make: Callable[[Graph], Graph]) -> dict[str, Any]:
    """A node's attributes in which `make(graph)` takes the place of each graph (graphs may also lie
    in tuples)."""

    def own(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(own, value))
        return make(value) if isinstance(value, Graph) else value

    return {name: own(value) for name, value in attrs.items()}


def with_numbers(graph: Graph, number: Callable[[Size], int]) -> Graph:
    """A copy of a graph, with the same names, in which each `Size` (a size that only a call tells)
    is replaced by `number(size)`: in types, attributes, constants and nested graphs."""

    def settled(value: Any) -> Any:
        if isinstance(value, Size):
            return number(value)
        if isinstance(value, Graph):
            return with_numbers(value, number)
        if isinstance(value, Type):
            return value.like(shape=settled(value.shape)) if value.shape is not None else value
        if isinstance(value, Mapping):
            return {name: settled(item) for name, item in value.items()}
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(settled, value))
        return value

    copy = Copier(graph).copy({})
    for v in copy.values():
        v.type = settled(v.type)
        if v.const is not None and has_sizes(v.const):
            flat = [settled(d) for d in v.const.reshape(-1).tolist()]
            v.const = np.array(flat, v.dtype).reshape(v.const.shape)
    for node in copy.nodes:
        node.attrs = settled(node.attrs)
    return copy
