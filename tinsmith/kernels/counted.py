"""Nodes with a size that only the run can tell, as kernels see them: with room for the most."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Type, Value

COUNT = Type(np.dtype(np.int64), ())


def with_room(node: Node) -> Node | None:
    """The node with room for the most that its outputs may hold, and one output more, the count.

    None where all outputs are static, or where nothing is known of how many there may be.
    """
    if all(v.type.is_static for v in node.outputs):
        return None
    if not all(v is None or v.type.is_static for v in node.inputs):
        return None
    most = node.op.most(node.inputs, node.attrs)  # type: ignore[attr-defined]
    if most is None or any(v.shape is None for v in node.outputs):
        return None
    room = Node(node.graph, node.op, node.inputs, node.attrs, node.name, node.origin, node.seq)
    types = [
        v.type.like(shape=tuple(most if isinstance(d, str) else d for d in v.shape or ()))
        for v in node.outputs
    ]
    names = [v.name for v in node.outputs]
    room.outputs = tuple(
        Value(node.graph, t, name, room, i)
        for i, (t, name) in enumerate(
            zip([*types, COUNT], [*names, f"{node.name}.count"], strict=True)
        )
    )
    return room


def counted_dims(value: Value) -> tuple[int, ...]:
    """The dims of an output, with -1 for the one that is counted."""
    return tuple(-1 if isinstance(d, str) else d for d in value.shape or ())
