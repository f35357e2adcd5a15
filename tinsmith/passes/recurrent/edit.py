"""Edits a graph at one place, and remembers where values went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import i64
from tinsmith.passes.recurrent.affine import rows
from tinsmith.rewrite import Skip, meet


class Editor:
    """Adds nodes to a graph, before the node `at`, lets readers of old values read new ones, and
    remembers which value stands for which (`live`)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at: Node | None = None
        self._moved: dict[Value, Value] = {}

    def live(self, value: Value) -> Value:
        """The value that now stands for a value of the graph before any edit."""
        while value in self._moved:
            value = self._moved[value]
        return value

    def op(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        return OPS[op](*inputs, before=self.at, **attrs)

    def reverse(self, value: Value) -> Value:
        """The value in reverse order along axis 0."""
        return self.op("Slice", value, *map(i64, (-1, -(1 << 60), 0, -1)))

    def reshape(self, value: Value, dims: Sequence[Dim]) -> Value:
        """The value under the shape `dims`. Raises Skip if several of these are symbols, unless
        only dims of 1 differ, or if one is 0."""
        if value.shape == tuple(dims):
            return value
        target, shape = [-1 if isinstance(d, str) else d for d in dims], value.shape
        if shape is not None and target.count(-1) > 1 and rows(shape) == rows(tuple(dims)):
            ones = np.array([i for i, d in enumerate(shape) if d == 1], np.int64)
            more = np.array([i for i, d in enumerate(dims) if d == 1], np.int64)
            value = self.op("Squeeze", value, ones) if len(ones) else value
            return self.op("Unsqueeze", value, more) if len(more) else value
        if target.count(-1) > 1 or 0 in target:
            raise Skip(f"a result of the shape {list(dims)} cannot be made by a reshape")
        return self.op("Reshape", value, np.array(target, np.int64))

    def turned(self, value: Value, axis: int, place: int) -> Value:
        """The value with one axis moved to another place, as by numpy's moveaxis."""
        assert value.shape is not None
        order = [a for a in range(len(value.shape)) if a != axis]
        order.insert(place, axis)
        return value if axis == place else self.op("Transpose", value, perm=tuple(order))

    def put(self, old: Value, new: Value) -> None:
        """Let all that reads `old` read `new`, which gets the more exact of both types."""
        new.type = meet(old.type, new.type)
        self.graph.replace(old, new)
        self._moved[old] = new

    def retire(self, old: Value, make: Callable[[], Value]) -> None:
        """Drop the node that computes `old`, and what only it needs. If `old` is still read or is a
        graph output, `make()` is called, and its value, reshaped to the shape of `old`, takes its
        place. Raises Skip where `reshape` does."""
        producer = old.producer
        if old.uses or old in self.graph.outputs:
            assert old.shape is not None
            self.put(old, self.reshape(make(), old.shape))
        if producer is not None:
            self.graph.sweep([producer])
