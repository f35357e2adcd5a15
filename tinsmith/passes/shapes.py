"""Sizes are followed through the arithmetic that exporters make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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

    One walk in graph order. Types are inferred anew where they were not exact, or where an input's
    type has changed. Nodes of small constants are computed. Where the numbers of a shape operand
    are known in part, the result of Reshape, Expand and the like gets these dims. Computed targets
    of Reshape and Expand become constants where they can (`_spell_operand`). Raises TypeRuleError
    for sizes that turn out not to fit.

    max_elements: the most elements of each input and result of a node that is computed.
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
        """Whether a node is to be computed now: it is pure, its inputs are constants, and neither
        they nor its results, of numbers and of known shape, exceed `max_elements`."""
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
    """A copy of a graph whose inputs have these types (by name), with the types and constants that
    follow. Raises TypeRuleError and ReferenceFailed if they do not fit."""
    copy = graph.clone(dict(types))
    PropagateShapes().run(copy, Context())
    return copy


def _infer_again(node: Node) -> int:
    """Make the shapes of a node's outputs as exact as its type rule gives them. Returns how many
    changed; 0 for If, Loop and Scan. Raises TypeRuleError."""
    if "control" in node.op.traits:
        return 0
    changes = 0
    for out, type in zip(node.outputs, checked_types(node), strict=True):
        if type.shape is not None:
            changes += narrow(out, list(type.shape))
    return changes


def _narrow_result(node: Node, known: dict[Value, Content]) -> int:
    """Give the result of a Reshape, Expand, ConstantOfShape or Range the dims that its operands
    tell, where `known` has their elements. Returns 1 if that changed its type, else 0."""
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
    """Replace a computed target of a Reshape or Expand by a constant, if every entry is a number or
    a dim of the input that the operator keeps (a Reshape may have one other, -1). Returns 1 if that
    was done, else 0."""
    if node.op.name not in ("Reshape", "Expand"):
        return 0
    kept = _kept_dims if node.op.name == "Reshape" else _stretched_dims
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
    """The target of a Reshape, of which `target` (numbers, symbols, None) is known, as numbers: 0
    where the dim of the input's `shape` stays, -1 for one other entry that is no number. None with
    `allowzero`, for several such entries, and for a named symbol that need not fit."""
    numbers = [
        d if isinstance(d, NUMBER) else 0 if d is not None and shape[i : i + 1] == [d] else -1
        for i, d in enumerate(target)
    ]
    return None if node.allowzero or numbers.count(-1) > 1 or misfits(shape, target) else numbers


def misfits(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    """Whether a Reshape of `shape` to `target`, numbers and symbols, may fail where -1 would take
    the place of one of these: a named symbol that the other dims do not tell."""
    return any(
        isinstance(d, str)
        and d[0] != "?"
        and tuple(shape[i : i + 1]) != (d,)
        and _remaining(shape, [*target[:i], *target[i + 1 :]]) != d
        for i, d in enumerate(target)
    )


def _stretched_dims(node: Node, shape: list[Any], target: list[Any]) -> list[int] | None:
    """The target of an Expand as numbers. `target` is what is known of it: numbers, symbols, or
    None. A symbol that is also the input's dim (in `shape`) there becomes 1, which keeps that dim:
    shape ["N", 1], target ["N", 8] -> [1, 8]. None if another entry is no number."""
    own = [1] * (len(target) - len(shape)) + shape
    numbers: list[Any] = [
        1 if isinstance(d, str) and d == o else d
        for d, o in zip(target, own[-len(target) :], strict=True)
    ]
    return numbers if all(isinstance(d, NUMBER) for d in numbers) else None


def _remaining(shape: Any, others: list[Any]) -> Any:
    """The dim that -1 stands for in the target of a Reshape: `shape` is the input's, `others` are
    the other dims of the result. None if it is not known."""
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
    """Put `dims` (int, symbol, or None for an unknown one) into a value's type where they are more
    exact than its own; all, if its rank is unknown. Returns 1 if that changed the type; 0 if not,
    also if the ranks differ. A negative dim counts as unknown: an error of the run."""
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
