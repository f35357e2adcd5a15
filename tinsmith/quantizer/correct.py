"""Biases make up for what rounded weights shift on average.

The mean of a layer's results shifts by the errors of its weights times the means of its inputs. The
means are those of the float model: no run of the quantised one is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._arithmetic import adds
from tinsmith.ops._weights import is_convolution, is_matrix_product
from tinsmith.quantizer.places import weighted

Array = np.ndarray[Any, Any]


def shift_of(node: Node, errors: Array, means: Array) -> Array | None:
    """How far the mean of each output channel rises, [outputs], if weights are off by `errors`
    (quantised minus exact, in the weights' shape): the sum of errors * means over inputs and taps,
    where `means` [inputs] are those of the data's channels. None for other operators, and for sizes
    that do not fit."""
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
    """Subtract `shift` [outputs] from a node's results: in its bias (made if there is none), or,
    without such an input, in the constant that the only reader adds; where there is neither,
    nothing changes."""
    found = weighted(node)
    if found is not None and found.bias is not None:
        old = node.inputs[found.bias] if len(node.inputs) > found.bias else None
        bias = -shift if old is None or old.const is None else old.const - shift
        value = graph.const(
            bias.astype(np.float32), f"{node.name}_bias" if old is None else old.name
        )
        if len(node.inputs) <= found.bias:
            node.inputs = (*node.inputs, None)
        graph.set_input(node, found.bias, value)
        return
    if (user := _added(node.output)) is not None:
        place = next(i for i, v in enumerate(user.inputs) if v is not None and v.const is not None)
        old = user.inputs[place]
        assert old is not None and old.const is not None
        graph.set_input(user, place, graph.const((old.const - shift).astype(np.float32), old.name))


def _added(v: Value) -> Node | None:
    """The node that adds a constant [channels, the last axis] to v, if it is the only reader; else
    None."""
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
