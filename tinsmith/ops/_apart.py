"""Which axes of a result are computed apart.

What lies at place i of such an axis needs what lies at place i of certain axes of the inputs, and
nothing else of them; other inputs it needs whole. So a result can be computed in pieces along it:

    y[i : j] = op(x[i : j], w)      for axis 0 of y, axis 0 of x, and all of w
"""

from __future__ import annotations

from tinsmith.graph import Node
from tinsmith.ops._move import moves_of

Apart = dict[int, tuple[int | None, ...]]
"""By axis of the outputs, the axis of each input that goes with it; None, or missing at the end:
that input is read whole."""


def axes_apart(node: Node) -> Apart:
    """The axes of a node's outputs that are computed apart, with the axes of the inputs that go
    with each; {} where nothing is known of the operator."""
    declared = getattr(node.op, "axes_apart", None)
    return {} if declared is None else declared(node)


def elementwise(node: Node) -> Apart:
    """The axes apart of an elementwise node: all of the output's. An input that is broadcast along
    an axis, or lacks it, is read whole there. {} where a rank is unknown; an axis is missing where
    it is unknown whether an input is broadcast along it."""
    shape, found = node.output.shape, Apart()
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if shape is None or any(v.shape is None for v in values):
        return {}
    for d, size in enumerate(shape):
        axes: list[int | None] = []
        for v in node.inputs:
            k = -1 if v is None or v.shape is None else d - len(shape) + len(v.shape)
            own = 1 if k < 0 else v.shape[k]  # type: ignore[union-attr,index]
            if own not in (1, size):
                break
            axes.append(k if k >= 0 and own == size else None)
        else:
            found[d] = tuple(axes)
    return found


def moved(node: Node) -> Apart:
    """The axes apart of a node that only moves data (`moves_of`): axis d of the output, where it is
    in every part an axis of that part's input, read whole and in order, and no axis along which
    parts are joined."""
    moves, found = moves_of(node), Apart()
    parts = [(m, p) for m in moves if m for p in m.parts]
    for d in range(min(len(m.dims) if m else 0 for m in moves)):
        axes: list[int | None] = [None] * len(node.inputs)
        for m, p in parts:
            x, joins = node.inputs[p.source], len(m.parts) > 1
            box = [m.dims[k] if joins and k == m.axis else n for k, n in enumerate(p.box[: d + 1])]
            a = p.axes[d] if box == list(m.dims[: d + 1]) else None
            if a is None or a.axis is None or a.places is not None or (joins and d == m.axis):
                break
            if x is None or x.shape is None or x.shape[: a.axis + 1] != p.dims[: a.axis + 1]:
                break
            axes[p.source] = a.axis
        else:
            found[d] = tuple(axes)
    return found


def images(node: Node) -> Apart:
    """The axes apart of operators that treat the elements of a batch alike: axis 0 of the outputs
    goes with axis 0 of the first input; all other inputs, such as weights, are read whole."""
    return {0: (0,)}


def planes(node: Node) -> Apart:
    """The axes apart of operators that compute each channel of each image by itself: batch and
    channels (axes 0 and 1) of the first input. {} for several outputs."""
    return {0: (0,), 1: (1,)} if len(node.outputs) == 1 else {}


def but_one(node: Node) -> Apart:
    """The axes apart of operators that compute along one axis, the attribute `axis`: all other axes
    of the first input."""
    axis, rank = node.axis, len(node.output.shape or ())
    return {d: (d,) for d in range(rank) if d != axis % rank}


def before(node: Node) -> Apart:
    """The axes apart of operators that compute over the axes from the attribute `axis` on: those of
    the first input before it."""
    rank = len(node.output.shape or (1,))
    return {d: (d,) for d in range(node.axis % rank)}
