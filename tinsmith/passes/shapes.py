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
from tinsmith.ops._move import moves_of
from tinsmith.passes.fold import evaluate, is_constant, is_pure, mismatch, put, widens
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER, Size, largest, smallest

Content = np.ndarray[Any, Any]
"""What is known of a small integer tensor: ints, symbols and None, as an object array."""

MAX_CONTENT = 64


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
            if self._small(node) and not (node.op.name == "DequantizeLinear" and widens(node)):
                arrays = evaluate(node)
                if not mismatch(node, arrays):
                    changes += put(graph, node, arrays)
                continue
            content = _content(node, known)
            if content is None:
                continue
            out = node.outputs[0]
            known[out] = content
            if out.uses and all(isinstance(d, NUMBER) for d in content.reshape(-1)):
                changes += put(graph, node, (sized(content, out.dtype),))
        return changes

    def _small(self, node: Node) -> bool:
        """Whether all inputs of a node are constants and everything it reads and gives is small, so
        that it is computed now."""
        if not is_constant(node) or not is_pure(node):
            return False
        return all(
            _is_known(v.type) and v.dtype.kind in "iubf" and v.type.size <= self.max_elements
            for v in node.outputs
        ) and all(
            v is None or (_is_known(v.type) and v.type.size <= self.max_elements)
            for v in node.inputs
        )


def with_sizes(graph: Graph, types: Mapping[str, Type]) -> Graph:
    """A copy of a graph with these types of its inputs, and what follows from them. Raises
    TypeRuleError, ReferenceFailed where they do not fit."""
    copy = graph.clone(dict(types))
    PropagateShapes().run(copy, Context())
    return copy


def sized(content: Content, dtype: np.dtype[Any]) -> Content:
    """A constant of known numbers: of the element type `dtype`, or, where a number is a Size, of
    objects."""
    if any(isinstance(d, Size) for d in content.reshape(-1)):
        return content
    return content.astype(dtype)


def _is_known(type: Type) -> bool:
    """Whether all sizes are numbers before the call."""
    return type.is_static and not type.is_free


def _infer_again(node: Node) -> int:
    if "control" in node.op.traits:
        return 0
    changes = 0
    for out, type in zip(node.outputs, checked_types(node), strict=True):
        if type.shape is not None:
            changes += narrow(out, list(type.shape))
    return changes


def _of(v: Value | None, known: dict[Value, Content]) -> Content | None:
    if v is None:
        return None
    if v.const is not None:
        small = v.dtype.kind in "iub" and v.const.size <= MAX_CONTENT and v.const.ndim <= 1
        return v.const.astype(object) if small else None
    return known.get(v)


def _content(node: Node, known: dict[Value, Content]) -> Content | None:
    rule = _CONTENT.get(node.op.name)
    if len(node.outputs) != 1 or node.outputs[0].dtype.kind not in "iub":
        return None
    if rule is None:
        return _moved(node, known)
    if "sizes" in node.op.traits:
        return rule(node)
    inputs = [_of(v, known) for v in node.inputs]
    if not inputs or any(
        c is None for c, v in zip(inputs, node.inputs, strict=True) if v is not None
    ):
        return None
    try:
        content = rule(node, *inputs)
    except (TypeError, ValueError, IndexError):
        return None
    if content is None:
        return None
    content = np.asarray(content, object)
    out = node.outputs[0]
    if content.size > MAX_CONTENT or (out.rank is not None and content.ndim != out.rank):
        return None
    return content if all(_holds(out.dtype, d) for d in content.reshape(-1)) else None


def _holds(dtype: np.dtype[Any], number: Any) -> bool:
    """Whether an element type can represent a number, which otherwise wraps around in the run."""
    if not isinstance(number, NUMBER) or (dtype == np.int64 and isinstance(number, Size)):
        return True
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return least <= number <= most


def _shape(node: Node) -> Content | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    return np.array([*x.shape, None], object)[:-1][node.start : node.end]


def _size(node: Node) -> Content | None:
    x = node.inputs[0]
    return np.array(x.type.size, object) if x is not None and x.type.is_static else None


def _moved(node: Node, known: dict[Value, Content]) -> Content | None:
    """The numbers that a node gives which only moves the numbers of its inputs."""
    (move,) = moves_of(node)
    if move is None or move.fill is not None or not _is_known(node.output.type):
        return None
    contents = [_of(v, known) for v in node.inputs]
    for part in move.parts:
        x, content = node.inputs[part.source], contents[part.source]
        if x is None or content is None or content.shape != x.shape:
            return None
    return move.apply(contents) if node.output.type.size <= MAX_CONTENT else None


def _cast(node: Node, x: Content) -> Content | None:
    source = node.inputs[0]
    assert source is not None
    if node.outputs[0].dtype.kind == "b" or source.dtype.kind == "b":
        return None
    return x


def _each(rule: Any) -> Any:
    def apply(node: Node, a: Content, b: Content) -> Content:
        a, b = np.broadcast_arrays(a, b)
        flat = [rule(x, y) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        return np.array([*flat, None], object)[:-1].reshape(a.shape)

    return apply


def _add(x: Any, y: Any) -> Any:
    if isinstance(x, NUMBER) and isinstance(y, NUMBER):
        return x + y
    return y if x == 0 else x if y == 0 else None


def _sub(x: Any, y: Any) -> Any:
    if isinstance(x, NUMBER) and isinstance(y, NUMBER):
        return x - y
    return x if y == 0 else 0 if x == y and x is not None else None


def _mul(x: Any, y: Any) -> Any:
    if isinstance(x, NUMBER) and isinstance(y, NUMBER):
        return x * y
    return y if x == 1 else x if y == 1 else 0 if 0 in (x, y) else None


def _div(x: Any, y: Any) -> Any:
    if isinstance(x, NUMBER) and isinstance(y, NUMBER) and y:
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return x if y == 1 else None


def _picked(pick: Any) -> Any:
    """The rule of Min or Max on sizes that are followed: `pick` of two known numbers; a size that
    is not known stays only if both are the same."""

    def of(x: Any, y: Any) -> Any:
        if isinstance(x, NUMBER) and isinstance(y, NUMBER):
            return pick(x, y)
        return x if x == y and x is not None else None

    return _each(of)


def _equal(x: Any, y: Any) -> Any:
    if isinstance(x, NUMBER) and isinstance(y, NUMBER):
        return int(x == y)
    negative = any(isinstance(v, NUMBER) and v < 0 for v in (x, y))
    if negative and x is not None and y is not None:
        return 0  # a size is never negative
    return 1 if x == y and x is not None else None


def _where(node: Node, condition: Content, x: Content, y: Content) -> Content | None:
    condition, x, y = np.broadcast_arrays(condition, x, y)
    flat = [
        (a if c else b) if isinstance(c, NUMBER) else (a if a == b else None)
        for c, a, b in zip(condition.reshape(-1), x.reshape(-1), y.reshape(-1), strict=True)
    ]
    return np.array([*flat, None], object)[:-1].reshape(condition.shape)


_CONTENT: dict[str, Any] = {
    "Shape": _shape,
    "Size": _size,
    "Cast": _cast,
    "Declared": lambda node, x: x,
    "Add": _each(_add),
    "Sub": _each(_sub),
    "Mul": _each(_mul),
    "Div": _each(_div),
    "Min": _picked(smallest),
    "Max": _picked(largest),
    "Equal": _each(_equal),
    "Where": _where,
}


def computes_sizes(node: Node) -> bool:
    """Whether the numbers of a node's result can be followed from those of its inputs."""
    name = node.op.name
    return (name in _CONTENT and "sizes" not in node.op.traits) or bool(
        node.op.traits & {"view", "move"}
    )


def _narrow_result(node: Node, known: dict[Value, Content]) -> int:
    """Give the result of Reshape, Expand, ConstantOfShape and Range the dims that its operand
    tells."""
    if node.op.name == "Range":
        contents = [_of(v, known) for v in node.inputs]
        start, limit, delta = (None if c is None else c.item() for c in contents)
        return narrow(node.outputs[0], [limit]) if (start, delta) == (0, 1) else 0
    place = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}.get(node.op.name)
    if place is None or place >= len(node.inputs):
        return 0
    content = _of(node.inputs[place], known)
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
    if node.op.name not in ("Reshape", "Expand"):
        return 0
    x, target = node.inputs[:2]
    if x is None or x.shape is None or target is None or target.const is not None:
        return 0
    content = _of(target, known)
    if content is None or content.ndim != 1:
        return 0
    kept = _kept_dims if node.op.name == "Reshape" else _stretched_dims
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
    value.type = value.type.like(shape=tuple(new))
    return 1
