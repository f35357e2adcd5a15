"""Along which axes the result of an operator can be cut into pieces that are computed independently
of each other ("computed apart").

Such an axis of the result goes with one axis of some of the inputs: elements at index i of the
result depend only on elements at index i of these. All other inputs are read whole. Example, where
axis 0 of y goes with axis 0 of x, and w is read whole:

    y[i : j] = op(x[i : j], w)
"""

from __future__ import annotations

from tinsmith.graph import Node
from tinsmith.ops._move import moves_of

Apart = dict[int, tuple[int | None, ...]]
"""Axis of the outputs -> the axis that goes with it, for each input; None for an input that is read
whole. Trailing None may be left out: {0: (0,)} is the example above."""


def axes_apart(node: Node) -> Apart:
    """The axes of a node's outputs along which it can be computed in pieces, each with, for every
    input, the axis that is cut with it (see `Apart`). {} where none is known."""
    declared = getattr(node.op, "axes_apart", None)
    return {} if declared is None else declared(node)


def elementwise(node: Node) -> Apart:
    """The axes apart of an elementwise node, also those of batches in a matrix product: all axes of
    the output, each with the axis of an input that numpy's broadcasting aligns with it (None: the
    input is broadcast along it). {} where a rank is unknown; an axis is left out where symbols
    leave open whether an input is broadcast along it."""
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
    """The axes apart of a node that only moves data, such as a Concat or Transpose: each output
    axis that is a whole axis of every input read, in its order. The axis along which inputs are
    joined is none of them. {} where the move of an output is not known."""
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
    """The axes apart of operators that compute each image of a batch alone, such as Conv: axis 0,
    with axis 0 of the first input. Other inputs, such as weights, are read whole."""
    return {0: (0,)}


def planes(node: Node) -> Apart:
    """The axes apart of operators that compute each channel of each image alone, such as pooling:
    axes 0 and 1, with the same of the first input. {} for a node of several outputs."""
    return {0: (0,), 1: (1,)} if len(node.outputs) == 1 else {}


def but_one(node: Node) -> Apart:
    """The axes apart of operators that compute along `node.axis`, such as Softmax: all other axes,
    each with the same axis of the first input."""
    axis, rank = node.axis, len(node.output.shape or ())
    return {d: (d,) for d in range(rank) if d != axis % rank}


def before(node: Node) -> Apart:
    """The axes apart of operators that compute over `node.axis` and all axes after it, such as
    LayerNorm: the axes before it, each with the same axis of the first input."""
    rank = len(node.output.shape or (1,))
    return {d: (d,) for d in range(node.axis % rank)}
