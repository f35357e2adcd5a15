"""Where a value lies: in another value under views, or at one place of its axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.passes.facts import Array
from tinsmith.records import dataclass

VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))


@dataclass(frozen=True)
class Source:
    """What a product reads, as rows of `width` numbers: a value, or one place of it on an axis."""

    value: Value
    width: int
    axis: int | None = None
    index: int = 0


def source_of(value: Value) -> Source | None:
    """The value under views that keep its last dimension; None where that is not known."""
    if not value.shape or not isinstance(value.shape[-1], int):
        return None
    width = value.shape[-1]
    place = under_views(value)
    node = place.producer
    found = None if node is None else taken(node, place)
    index = None if found is None else place_of(found[1])
    if node is not None and found is not None and index is not None:
        base = node.inputs[0]
        assert base is not None
        return Source(base, width, found[0], index)
    return Source(at_width(value), width)


def _under(value: Value, allowed: Callable[[Value], Any]) -> Value:
    """The value that the views above show, as long as that is allowed."""
    while (node := value.producer) is not None and node.op.name in VIEWS:
        inner = node.inputs[0]
        if inner is None or inner.shape is None or not allowed(inner):
            break
        value = inner
    return value


def at_width(value: Value) -> Value:
    """What a value shows with other leading dimensions."""
    width = value.shape[-1] if value.shape else None
    return _under(value, lambda v: bool(v.shape) and v.shape[-1] == width)


def under_views(value: Value) -> Value:
    """What a value shows under another shape."""
    return _under(value, lambda v: True)


def place_of(index: Any) -> int | None:
    """The only one of the places; None where there are several."""
    if isinstance(index, int):
        return index
    return int(index[0]) if index.size == 1 else None


def taken(node: Node, value: Value) -> tuple[int, int | Array] | None:
    """(axis, places) of a Slice, Split or Gather along one axis; one int where the axis goes."""
    base = node.inputs[0]
    if node.op.name not in ("Gather", "Slice", "Split") or base is None or base.shape is None:
        return None
    rank = len(base.shape)
    if node.op.name == "Gather":
        indices, axis = node.inputs[1], node.axis % rank
        size = base.shape[axis]
        if indices is None or indices.const is None or indices.const.ndim > 1:
            return None
        given = indices.const.astype(np.int64)
        if not isinstance(size, int):
            if np.any(given < 0):
                return None
        else:
            given = np.where(given < 0, given + size, given)
        return axis, int(given) if given.ndim == 0 else given
    if node.op.name == "Split":
        axis = node.axis % rank
        if base.rank is None or any(v.shape is None for v in node.outputs):
            return None
        sizes = [v.shape[axis] for v in node.outputs]  # type: ignore[index]
        before = sizes[: value.index + 1]
        if not all(isinstance(d, int) for d in before):
            return None
        start = sum(before[:-1])  # type: ignore[arg-type]
        return axis, np.arange(start, start + before[-1])  # type: ignore[operator]
    return _sliced(node, base)


def _sliced(node: Node, base: Value) -> tuple[int, Array] | None:
    operands = [None if v is None else v.const for v in node.inputs[1:]]
    if any(c is None for c, v in zip(operands, node.inputs[1:], strict=True) if v is not None):
        return None
    starts, ends, axes, steps = (*operands, None, None)[:4]
    if starts is None or ends is None or starts.size != 1 or base.shape is None:
        return None
    axis = 0 if axes is None else int(axes.reshape(-1)[0]) % len(base.shape)
    step = 1 if steps is None else int(steps.reshape(-1)[0])
    lo, hi, size = int(starts.reshape(-1)[0]), int(ends.reshape(-1)[0]), base.shape[axis]
    if isinstance(size, int):
        return axis, np.arange(size)[lo:hi:step]
    if lo < 0 or hi <= lo or step != 1 or hi - lo > 1:
        return None
    return axis, np.array([lo])  # a place of an axis whose size the run tells


def is_zero(value: Value) -> bool:
    """Whether every element is known to be 0."""
    node = value.producer
    if value.const is not None:
        return not np.any(value.const)
    if node is None:
        return False
    if node.op.name == "ConstantOfShape":
        return node.value == 0
    inner = node.inputs[0] if node.inputs else None
    through = node.op.name in VIEWS or node.op.name in ("Expand", "Tile", "Gather", "Slice")
    return through and inner is not None and is_zero(inner)
