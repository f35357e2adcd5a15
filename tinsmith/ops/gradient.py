"""Backpropagation as nodes of a graph, by the rules of its operators (`Op.gradient`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Node, Value

Emit = Callable[..., Any]
"""`emit("Mul", a, b)` adds a node of that operator to the graph, and gives its output."""


def times_rest(emit: Emit, g: Value, part: Value) -> Value:
    """g * (1 - part), as nodes that `emit` adds"""
    return emit("Mul", g, emit("Sub", np.asarray(1, g.dtype), part))


def derivatives(graph: Graph, y: Value, xs: Sequence[Value], emit: Emit) -> tuple[Value, ...]:
    """The derivatives of sum(y) by each of `xs`, each in the shape of its x: outputs of new nodes,
    which `emit` adds. Zeros for an x on which y does not depend. Raises TypeRuleError where an
    operator between x and y has no rule or several outputs, and where an input that may have been
    broadcast has unknown dims."""
    found: dict[Value, Value] = {y: _filled(emit, y, 1)}
    leads = _leading(graph, set(xs))
    for node in reversed([n for n in graph.nodes if n in leads]):
        g = found.get(node.outputs[0])
        if g is None:
            continue
        for v, part in zip(node.inputs, _parts(emit, node, g), strict=True):
            if v is None or part is None or not (v in xs or v.producer in leads):
                continue
            part = _summed(emit, part, v)
            found[v] = emit("Add", found[v], part) if v in found else part
    return tuple(found[x] if x in found else _filled(emit, x, 0) for x in xs)


def _filled(emit: Emit, like: Value, number: int) -> Value:
    shape = np.array(like.dims, np.int64) if like.type.is_static else emit("Shape", like)
    return emit("ConstantOfShape", shape, value=number, dtype=like.dtype.name)


def _leading(graph: Graph, xs: set[Value]) -> set[Node]:
    """The nodes of a graph whose outputs depend on one of `xs`."""
    found: set[Node] = set()
    for node in graph.nodes:
        if any(v in xs or (v is not None and v.producer in found) for v in node.inputs):
            found.add(node)
    return found


def _parts(emit: Emit, node: Node, g: Value) -> tuple[Value | None, ...]:
    rule = getattr(node.op, "derivatives", None)
    if rule is None or len(node.outputs) != 1:
        raise TypeRuleError(f"the derivative of {node.op.name} ({node.name!r}) is not known")
    return rule(emit, node, g)


def _summed(emit: Emit, part: Value, v: Value) -> Value:
    """`part`, the derivative by the input `v` in the shape of the output, summed over the axes that
    v was broadcast along, to the shape of v. Raises TypeRuleError where the shapes are
    not known."""
    if part.shape == v.shape and v.shape is not None:
        return part
    if not (v.type.is_static and part.type.is_static):
        raise TypeRuleError(f"{v!r} may be repeated to {part.type}: the shapes must be known")
    lead = len(part.dims) - len(v.dims)
    axes = [i for i, d in enumerate(part.dims) if i < lead or (d != 1 and v.dims[i - lead] == 1)]
    total = emit("Reduce", part, np.array(axes, np.int64), kind="sum", keepdims=True)
    return emit("Reshape", total, np.array(v.dims, np.int64))
