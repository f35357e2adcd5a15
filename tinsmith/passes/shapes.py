"""Sizes are followed through the arithmetic that exporters make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Type, Value
from tinsmith.graph.infer import checked_types
from tinsmith.ops import fresh
from tinsmith.passes.contents import Content, content_after, content_of, is_known, sized
from tinsmith.passes.fold import evaluate, is_constant, is_pure, mismatch, put, widens
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER, same


@register("portable")
@dataclass(frozen=True)
class PropagateShapes:
    """Sizes are followed through Shape, Gather, Concat, arithmetic...; known ones become constants.

    One walk in graph order: types are inferred anew where they were not exact, or what they follow
    from has changed, small results of constants are computed, and where a shape is known in part,
    what it shapes becomes as exact. TypeRuleError tells of sizes that turn out not to fit.
    A target that only repeats dims of what is reshaped becomes a constant that says so.
    """

    max_elements: int = 1024

    def run(self, graph: Graph, context: Context) -> int:
        known: dict[Value, Content] = {}
        moved: set[Value] = set()
        changes = 0
        for node in list(graph.nodes):
            if node not in graph:
                continue
            exact = all([v.type.is_static for v in node.outputs])
            if not exact or not moved.isdisjoint(v for v in node.inputs if v is not None):
                narrowed = _infer_again(node) + _narrow_result(node, known)
                if narrowed:
                    moved.update(node.outputs)
                changes += narrowed
            changes += _spell_operand(graph, node, known)
            if self._small(node) and not ("dequantise" in node.op.traits and widens(node)):
                arrays = evaluate(node)
                if not mismatch(node, arrays):
                    changes += put(graph, node, arrays)
                continue
            content = content_after(node, known)
            if content is None:
                continue
            out = node.outputs[0]
            known[out] = content
            numbers = all(isinstance(d, NUMBER) for d in content.reshape(-1))
            if out.uses and numbers and out.dtype.kind != "f":
                changes += put(graph, node, (sized(content, out.dtype),))
        return changes

    def _small(self, node: Node) -> bool:
        """Whether all inputs of a node are constants and everything it reads and gives is small, so
        that it is computed now."""
        if not is_constant(node) or not is_pure(node):
            return False
        return all(
            is_known(v.type) and v.dtype.kind in "iubf" and v.type.size <= self.max_elements
            for v in node.outputs
        ) and all(
            v is None or (is_known(v.type) and v.type.size <= self.max_elements)
            for v in node.inputs
        )


def with_sizes(graph: Graph, types: Mapping[str, Type]) -> Graph:
    """A copy of a graph with these types of its inputs, and what follows from them. Raises
    TypeRuleError, ReferenceFailed where they do not fit."""
    copy = graph.clone(dict(types))
    PropagateShapes().run(copy, Context())
    return copy


def _infer_again(node: Node) -> int:
    if "control" in node.op.traits:
        return 0
    changes = 0
    for out, type in zip(node.outputs, checked_types(node), strict=True):
        if type.shape is not None:
            changes += narrow(out, list(type.shape))
    return changes


def _narrow_result(node: Node, known: dict[Value, Content]) -> int:
    """Give the result of Reshape, Expand, ConstantOfShape and Range the dims that its operand
    tells."""
    if node.op.name == "Range":
        contents = [content_of(v, known) for v in node.inputs]
        start, limit, delta = (None if c is None else c.item() for c in contents)
        return narrow(node.outputs[0], [limit]) if same((start, delta), (0, 1)) else 0
    place = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}.get(node.op.name)
    if place is None or place >= len(node.inputs):
        return 0
    content = content_of(node.inputs[place], known)
    out, x = node.outputs[0], node.inputs[0]
    if content is None or content.ndim != 1 or x is None:
        return 0
    given: list[Any] = list(content)
    dims = given
    if node.op.name == "Reshape":
        own = dict(enumerate(() if node.allowzero else x.shape or ()))
        dims = [own.get(i) if d == 0 else None if d == -1 else d for i, d in enumerate(given)]
        if given.count(-1) == 1 and dims.count(None) == 1:
            i = given.index(-1)
            dims[i] = _remaining(x.shape, dims[:i] + dims[i + 1 :])
    elif node.op.name == "Expand":
        if x.shape is None or len(x.shape) > len(dims):
            return 0
        own = (1,) * (len(dims) - len(x.shape)) + x.shape
        dims = [d if o == 1 else o if d in (1, o) or isinstance(o, NUMBER) else None
                for d, o in zip(dims, own, strict=True)]  # fmt: skip
    return narrow(out, dims)


def _spell_operand(graph: Graph, node: Node, known: dict[Value, Content]) -> int:
    """Replace the target of a Reshape or an Expand by a constant, where every entry is a number or
    a dim that the operator keeps, so that the target need not be computed. Returns how many changes
    were made."""
    kept = {"Reshape": _kept_dims, "Expand": _stretched_dims}.get(node.op.name)
    if kept is None:
        return 0
    x, target = node.inputs[:2]
    if x is None or x.shape is None or target is None or target.const is not None:
        return 0
    content = content_of(target, known)
    if content is None or content.ndim != 1:
        return 0
    numbers = kept(node, list(x.shape), list(content))
    if numbers is None:
        return 0
    graph.set_input(node, 1, graph.const(np.array(numbers, np.int64), target.name))
    if target.producer is not None:
        graph.sweep([target.producer])
    return 1


def _kept_dims(node: Node, shape: list[Any], target: list[Any]) -> list[int] | None:
    """A Reshape's target in numbers: 0 where a dim stays, -1 for one that nothing tells."""
    numbers = [
        d if isinstance(d, NUMBER) else 0 if d is not None and shape[i : i + 1] == [d] else -1
        for i, d in enumerate(target)
    ]
    return None if node.allowzero or numbers.count(-1) > 1 else numbers


def _stretched_dims(node: Node, shape: list[Any], target: list[Any]) -> list[int] | None:
    """An Expand's target in numbers: 1 where a dim stays."""
    own = [1] * (len(target) - len(shape)) + shape
    numbers: list[Any] = [
        1 if isinstance(d, str) and d == o else d
        for d, o in zip(target, own[-len(target) :], strict=True)
    ]
    return numbers if all(isinstance(d, NUMBER) for d in numbers) else None


def _remaining(shape: Any, others: list[Any]) -> Any:
    """What -1 stands for beside the other dims of a Reshape; None where that is not known."""
    if shape is None or 0 in shape or 0 in others:
        return None
    symbols = Counter(d for d in shape if isinstance(d, str))
    given = Counter(d for d in others if isinstance(d, str))
    if given - symbols:
        return None
    left = list((symbols - given).elements())
    have = prod(d for d in shape if isinstance(d, NUMBER))
    rest = prod(d for d in others if isinstance(d, NUMBER))
    if not left:
        return have // rest if have % rest == 0 else None
    return left[0] if len(left) == 1 and have == rest else None


def narrow(value: Value, dims: list[Any]) -> int:
    """Put known dims (int, symbol or None) into a value's type; 1 where that changed it. Sizes are
    never negative: what asks for such ones is an error of the run."""
    dims = [None if isinstance(d, NUMBER) and d < 0 else d for d in dims]
    old: list[Any] = [None] * len(dims) if value.shape is None else list(value.shape)
    if len(old) != len(dims):
        return 0
    new = []
    for a, b in zip(old, dims, strict=True):
        if a is None:
            new.append(b if b is not None else fresh())
        elif (
            isinstance(a, str) and b is not None and (isinstance(b, NUMBER) or a[0] == "?" != b[0])
        ):
            new.append(b)
        else:
            new.append(a)
    if value.shape is not None and tuple(new) == value.shape:
        return 0
    value.graph.retype(value, value.type.like(shape=tuple(new)))
    return 1
