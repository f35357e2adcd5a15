"""Which inputs of an operator hold weights, and what lies along their axes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.graph import Node

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Weights:
    """What an operator says of its weights (`Op.weights`).

    inputs    the inputs that hold them
    axis      the axis of these arrays along which results are apart: output channels. Where it is
              not the first, each of the node's `group` groups has its own part of the first axis
    data      the inputs that they are multiplied by; () where the operator does more with data
    channels  the axis of data and results along which channels lie
    bias      the input that is added to the results, a number for each output channel
    scaled    whether they may be numbers of few bits: what one counts is an input of its own
    """

    inputs: tuple[int, ...]
    axis: int
    data: tuple[int, ...] = ()
    channels: int = 1
    bias: int | None = None
    scaled: bool = False

    @property
    def multiply_matrices(self) -> bool:
        """Whether results are rows of data times the weights: a product of matrices."""
        return self.axis == self.channels == -1

    @property
    def convolve(self) -> bool:
        """Whether the weights are [output channels, channels of a group, taps]: a convolution."""
        return bool(self.data) and self.axis == 0 and self.channels == 1


def is_convolution(node: Node | None) -> bool:
    """Whether a node is a convolution, but no transposed one."""
    found = None if node is None else weights_of(node)
    return found is not None and found.convolve


def is_matrix_product(node: Node | None) -> bool:
    """Whether a node is a product of matrices, of which one or both may be computed."""
    found = None if node is None else weights_of(node)
    return found is not None and found.multiply_matrices


def weights_of(node: Node) -> Weights | None:
    """What a node's operator says of its weights; None where it has none."""
    return getattr(node.op, "weights", None)


def by_outputs(node: Node, w: Array) -> Array:
    """The weights of a node as [output channels, ...]: what each output adds up."""
    axis, groups = _axis(node, w.ndim), node.attrs.get("group", 1)
    if axis == 0:
        return w
    apart = np.moveaxis(w.reshape(groups, -1, *w.shape[1:]), axis + 1, 1)
    return apart.reshape(-1, *apart.shape[2:])


def from_outputs(node: Node, rows: Array, dims: tuple[int, ...]) -> Array:
    """Weights of `dims` again, from what `by_outputs` gives, or from its rows made flat."""
    axis, groups = _axis(node, len(dims)), node.attrs.get("group", 1)
    if axis == 0:
        return rows.reshape(dims)
    first, outputs, others = dims[0] // groups, dims[axis], dims[1:axis] + dims[axis + 1 :]
    assert rows.size == prod(dims), (rows.shape, dims)
    apart = rows.reshape(groups, outputs, first, *others)
    return np.ascontiguousarray(np.moveaxis(apart, 1, axis + 1).reshape(dims))


def _axis(node: Node, rank: int) -> int:
    found = weights_of(node)
    assert found is not None, node
    return found.axis % rank
