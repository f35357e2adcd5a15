"""Which inputs of an operator hold weights, and which of their axes count output channels."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tinsmith.graph import Array
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.graph import Node


@dataclass(frozen=True)
class Weights:
    """Which inputs of an operator are weights (`Op.weights`): passes fold factors into them or
    quantise them without knowing the operator.

    inputs    the positions of the inputs that hold weights
    axis      the axis of these arrays that counts output channels. If it is not axis 0, axis 0 is
              cut into `node.group` equal parts (ConvTranspose; without that attribute one)
    data      the positions of the inputs that are multiplied by the weights, if the operator is
              linear in them; else () (LSTM)
    channels  the axis of data and results along which channels lie
    bias      the position of the input that is added to the result, [output channels]; None: none
    scaled    whether weights may be integers of 8 or 16 bits, with more inputs as their scales
    """

    inputs: tuple[int, ...]
    axis: int
    data: tuple[int, ...] = ()
    channels: int = 1
    bias: int | None = None
    scaled: bool = False


def is_convolution(node: Node | None) -> bool:
    """Whether a node is a convolution (of any rank), but no transposed one: its weights are [output
    channels, input channels of a group, *kernel]. False for None."""
    of = None if node is None else weights_of(node)
    return of is not None and bool(of.data) and of.axis == 0 and of.channels == 1


def is_matrix_product(node: Node | None) -> bool:
    """Whether a node is a product of two matrices, data [..., m, k] times weights [..., k, n];
    neither need be constant. False for None."""
    of = None if node is None else weights_of(node)
    return of is not None and of.axis == of.channels == -1


def weights_of(node: Node) -> Weights | None:
    """The `Weights` that a node's operator declares; None if it has none."""
    return getattr(node.op, "weights", None)


def by_outputs(node: Node, w: Array) -> Array:
    """The weights `w` of a node, with axes moved so that axis 0 is output channels (row m: all
    weights of channel m). The other axes keep their order."""
    return by_channels(w, *_axis(node, w.ndim))


def from_outputs(node: Node, rows: Array, dims: tuple[int, ...]) -> Array:
    """The inverse of `by_outputs`: weights of shape `dims` from `rows` [output channels, ...],
    whose other axes may be flattened."""
    return from_channels(rows, *_axis(node, len(dims)), dims)


def by_channels(w: Array, axis: int, groups: int) -> Array:
    """The weights `w` with axes moved so that axis 0 counts the channels of `axis`. If that is not
    axis 0, axis 0 is cut into `groups` equal parts, each of which has channels of its own."""
    if axis == 0:
        return w
    apart = np.moveaxis(w.reshape(groups, -1, *w.shape[1:]), axis + 1, 1)
    return apart.reshape(-1, *apart.shape[2:])


def from_channels(rows: Array, axis: int, groups: int, dims: tuple[int, ...]) -> Array:
    """The inverse of `by_channels`: weights of shape `dims`."""
    if axis == 0:
        return rows.reshape(dims)
    first, outputs, others = dims[0] // groups, dims[axis], dims[1:axis] + dims[axis + 1 :]
    assert rows.size == prod(dims), (rows.shape, dims)
    apart = rows.reshape(groups, outputs, first, *others)
    return np.ascontiguousarray(np.moveaxis(apart, 1, axis + 1).reshape(dims))


def _axis(node: Node, rank: int) -> tuple[int, int]:
    found = weights_of(node)
    assert found is not None, node
    return found.axis % rank, node.attrs.get("group", 1)
