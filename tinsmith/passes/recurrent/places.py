"""Where a value lies in an earlier one: the same elements before views, or one index of an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops._move import moves_of
from tinsmith.records import dataclass
from tinsmith.sizes import NUMBER


def is_view(node: Node) -> bool:
    """Whether a node only gives its first input another shape."""
    return "view" in node.op.traits and all(
        v is not None and v.dtype == node.output.dtype for v in node.inputs[:1]
    )


@dataclass(frozen=True)
class Source:
    """A value that a recurrent step reads, as rows of `width` numbers: `value`, or, with `axis`,
    its slice at `index` on that axis, such as one time step. Equal sources hold the same numbers,
    whatever views lie between."""

    value: Value
    width: int
    axis: int | None = None
    index: int = 0


def source_of(value: Value) -> Source | None:
    """The `Source` of a value: one index on an axis of the earlier value from which it is taken, if
    there is such, perhaps through views; else the value itself, before views that keep its last
    dimension. None if that dimension is not known."""
    if not value.shape or not isinstance(value.shape[-1], int):
        return None
    width = value.shape[-1]
    place = under_views(value)
    node = place.producer
    found = None if node is None else taken(node, place)
    index = None if found is None else place_of(found[1])
    if node is not None and found is not None and index is not None:
        base = node.operand(0)
        return Source(base, width, found[0], index)
    return Source(at_width(value), width)


def _under(value: Value, allowed: Callable[[Value], Any]) -> Value:
    """The earliest value with the same elements that is reached from `value` through the views that
    make it. A view is passed only if `allowed(x)` holds for the value x that it reads."""
    while (node := value.producer) is not None and is_view(node):
        inner = node.inputs[0]
        if inner is None or inner.shape is None or not allowed(inner):
            break
        value = inner
    return value


def at_width(value: Value) -> Value:
    """The earliest value of which `value` is a view that keeps the last dimension; or itself."""
    width = value.shape[-1] if value.shape else None
    return _under(value, lambda v: bool(v.shape) and v.shape[-1] == width)


def under_views(value: Value) -> Value:
    """The earliest value of which `value` is a view; or itself."""
    return _under(value, lambda v: True)


def place_of(index: Any) -> int | None:
    """The one index in `index` (a number, or an array of indices); None if there are several."""
    if isinstance(index, NUMBER):
        return index
    return int(index[0]) if index.size == 1 else None


def taken(node: Node, value: Value) -> tuple[int, int | Array] | None:
    """(axis, indices) if a node, such as Slice, Split or Gather, makes `value` by taking constant
    indices on one axis of its first input: an array of indices, or an int if the axis is dropped.
    Else None."""
    move, base = moves_of(node)[value.index], next(iter(node.inputs), None)
    if move is None or move.fill is not None or base is None or base.shape is None:
        return None
    cut = move.parts[0].cut(base.shape) if len(move.parts) == 1 else None
    if cut is None or cut[1] is None or len(move.dims) > len(base.shape):
        return None
    axis, places = cut
    return axis, int(places[0]) if len(move.dims) < len(base.shape) else np.asarray(places)


def join_axis(node: Node) -> int | None:
    """The axis along which a node concatenates its inputs, each as a whole; None for any other
    node."""
    move = moves_of(node)[0]
    if move is None or len(move.parts) < 2:
        return None
    inputs = [node.inputs[p.source] for p in move.parts]
    whole = all(v and p.is_whole(v.shape) for p, v in zip(move.parts, inputs, strict=True))
    return move.axis if whole and inputs == list(node.inputs) else None


def is_zero(value: Value) -> bool:
    """Whether every element is known to be 0."""
    node = value.producer
    if value.const is not None:
        return not np.any(value.const)
    if node is None:
        return False
    if node.op.name == "ConstantOfShape":
        return node.value == 0
    data = [v for v in node.inputs if v is not None and v.dtype == value.dtype]
    return bool(node.op.traits & {"view", "move"} and data) and all(map(is_zero, data))
