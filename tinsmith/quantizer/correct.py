"""Bias correction: rounded weights shift the means of a layer's results; its bias is changed by the
opposite.

The shift is the weights' errors times the means of the layer's inputs in the float model, so the
quantised one need not be run."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops._arithmetic import adds
from tinsmith.ops._weights import is_convolution, is_matrix_product
from tinsmith.quantizer.places import bias_of, set_const, weighted


def shift_of(node: Node, errors: Array, means: Array) -> Array | None:
    """Return by how much `errors` of weights (quantised - exact, in the weights' shape) raise the
    mean of each output channel, [outputs]: the sum of errors * means over inputs and taps. `means`
    [inputs] are those of the data's channels. None for operators other than convolutions and matrix
    products, and for sizes that do not fit."""
    if is_convolution(node):
        group, inputs = node.group, errors.shape[1]
        if means.size != group * inputs:
            return None
        own = errors.reshape(group, -1, inputs, int(np.prod(errors.shape[2:]))).sum(axis=3)
        return np.einsum("goi,gi->go", own, means.reshape(group, inputs)).reshape(-1)
    if is_matrix_product(node) and errors.ndim == 2 and means.size == errors.shape[0]:
        return means @ errors
    return None


def add_bias(graph: Graph, node: Node, shift: Array) -> None:
    """Subtract `shift` [outputs] from a node's results, in place: in its bias, which is made if
    there is none; for an operator that takes no bias, in the constant that its only reader adds.
    If neither is possible, or the bias is computed, nothing changes."""
    found, old = weighted(node), bias_of(node)
    if found is not None and found.bias is not None:
        if old is None:
            if len(node.inputs) <= found.bias:
                node.inputs = (*node.inputs, None)
            value = graph.const((0.0 - shift).astype(np.float32), f"{node.name}_bias")
            graph.set_input(node, found.bias, value)
        elif old.const is not None:
            set_const(graph, node, found.bias, old.const - shift)
    elif (user := _added(node.output)) is not None:
        for place, v in enumerate(user.inputs):
            if v is not None and v.const is not None:  # one of two
                set_const(graph, user, place, v.const - shift)


def _added(v: Value) -> Node | None:
    """Return v's only reader, if it adds to v a constant with a number for each index of v's last
    axis; else, and if v is an output of the graph, None."""
    user = next(iter(v.uses), None)
    if user is None or len(v.uses) != 1 or not adds(user) or v in v.graph.outputs:
        return None
    others = [x for x in user.inputs if x is not v and x is not None and x.const is not None]
    fits = (
        len(others) == 1
        and others[0].shape == (v.shape or ())[-1:]
        and user.output.shape == v.shape
    )
    return user if fits else None
