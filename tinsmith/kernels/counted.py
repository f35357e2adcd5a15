"""Nodes with a size that only the run can tell, as kernels see them: with room for the most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinsmith.graph import Node, Type, Value
from tinsmith.records import NamedTuple

COUNT = Type(np.dtype(np.int64), ())


class Room(NamedTuple):
    """A node whose outputs have a size, the count, that only the run tells: `node`, a copy whose
    outputs have the greatest size possible, and which has one more output, the count. `stated`: the
    count that the model declares; -1: none."""

    node: Node
    stated: int


def with_room(node: Node) -> Room | None:
    """The node as a `Room`. None where an input's shape is not static, an output's rank is unknown,
    the operator tells all sizes before the run, nothing bounds the count, or the counts that the
    model declares differ, are 0, or are more than there may be."""
    if not all(v is None or v.type.is_static for v in node.inputs):
        return None
    most = node.op.most(node.inputs, node.attrs)  # type: ignore[attr-defined]
    if most is None or any(v.shape is None for v in node.outputs):
        return None
    told: Sequence[Type] = node.op.infer(node.inputs, node.attrs)  # type: ignore[attr-defined]
    if all(t.is_static for t in told):
        return None
    stated = {
        given
        for t, v in zip(told, node.outputs, strict=True)
        for dim, given in zip(t.shape or (), v.shape or (), strict=True)
        if isinstance(dim, str) and isinstance(given, int)
    }
    if len(stated) > 1 or not all(0 < n <= most for n in stated):
        return None
    room = Node(node.graph, node.op, node.inputs, node.attrs, node.name, node.origin, node.seq)
    types = [
        t.like(shape=tuple(most if isinstance(d, str) else d for d in t.shape or ())) for t in told
    ]
    names = [v.name for v in node.outputs]
    room.outputs = tuple(
        Value(node.graph, t, name, room, i)
        for i, (t, name) in enumerate(
            zip([*types, COUNT], [*names, f"{node.name}.count"], strict=True)
        )
    )
    return Room(room, max(stated, default=-1))


def counted_dims(value: Value) -> tuple[int, ...]:
    """The dims of a node's output, with -1 for sizes that only the run tells."""
    return tuple(-1 if isinstance(d, str) else d for d in value.shape or ())
