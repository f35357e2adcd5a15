"""Equal nodes and equal constants become one; nodes that nothing uses are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.passes.fold import is_pure
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass


@register("portable")
@dataclass(frozen=True)
class MergeConstants:
    """Constants with the same array, or small ones with the same content, become one.

    max_bytes: larger constants become one only if they are the same array object.
    """

    max_bytes: int = 1 << 12

    def run(self, graph: Graph, context: Context) -> int:
        seen: dict[Any, Value] = {}
        outputs = set(graph.outputs)
        changes = 0
        for v in graph.constants():
            key = self._key(v)
            first = seen.setdefault(key, v)
            if first is v:
                continue
            if v in outputs:
                if first in outputs:
                    continue
                v, first = first, v  # the one whose name is wanted stays
                seen[key] = first
            graph.merge(v, first)
            changes += 1
        return changes

    def _key(self, v: Value) -> Any:
        array = v.const
        assert array is not None
        if array.nbytes > self.max_bytes or array.dtype == object:
            return id(array)
        return (array.dtype, array.shape, array.tobytes())


@register("portable")
@dataclass(frozen=True)
class MergeCommon:
    """Nodes with the same operator, inputs and attributes become one, checks too."""

    def run(self, graph: Graph, context: Context) -> int:
        seen: dict[Any, Node] = {}
        changes = 0
        outputs = set(graph.outputs)
        for node in list(graph.nodes):
            key = _key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is node:
                continue
            if any(v in outputs for v in node.outputs):
                if any(v in outputs for v in first.outputs):
                    continue
                first, node = node, first  # the one whose names are wanted stays
                seen[key] = first
            for old, new in zip(node.outputs, first.outputs, strict=True):
                graph.replace(old, new)
            graph.remove(node)
            changes += 1
        return changes


def _key(node: Node) -> Any:
    """A key that is equal for nodes that compute the same: operator, inputs and attributes. None if
    the node must not be merged: it is random, holds a graph or has an unhashable attribute."""
    if not is_pure(node) and "check" not in node.op.traits:
        return None
    try:
        key = (
            node.op.name,
            tuple(map(id, node.inputs)),
            len(node.outputs),
            tuple(_attr(v) for v in node.attrs.values()),
        )
        hash(key)
    except TypeError:
        return None
    return key


def _attr(value: Any) -> Any:
    """An attribute's value as part of a key in which 1, 1.0 and True differ, and 0.0 and -0.0.
    Raises TypeError for a graph."""
    if isinstance(value, tuple):
        return tuple(_attr(v) for v in value)
    if isinstance(value, float):
        return (float, np.float64(value).tobytes())
    if isinstance(value, Graph):
        raise TypeError("graphs are not compared")
    return (type(value), value)


@register("portable", name="drop-dead")
@dataclass(frozen=True)
class DropDead:
    """Nodes that nothing uses are dropped."""

    def run(self, graph: Graph, context: Context) -> int:
        return len(graph.sweep())


register("machine", name="drop-dead-machine")(DropDead)
