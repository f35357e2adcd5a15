"""Finds nodes that need no layer of their own in ncnn, since layers around them can take over their
work: reshapes, factors, paddings; and writes such layers of sums and products."""

from __future__ import annotations

from typing import Any

from tinsmith.formats.ncnn.layers import LARGEST
from tinsmith.graph import Node, Value
from tinsmith.writers.ncnn.writer import Writer
from tinsmith.writers.rows import inputs_of

TWO = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"))
"""Operators that ncnn's BinaryOp computes of an image and a vector (a number for each channel)."""


def number_of(v: Any) -> float | None:
    """Return the number that a constant of one element holds; None for any other value."""
    return None if v is None or v.const is None or v.const.size != 1 else float(v.const.item())


def flat_for_all(w: Writer, node: Node) -> bool:
    """Whether a reshape x -> y needs no layer, as all readers of y can read x itself: x is an
    image, y a matrix [N, K], and they become InnerProduct layers, which flatten; or x is [N, C], y
    an image of one pixel, and `_takes_vector` is true of them. False if y is an output of the
    graph, or unread."""
    x, y = inputs_of(node)[0], node.output
    if x in w.vectors or y in w.graph.outputs or not y.uses:
        return False
    if x.rank == 2:
        return is_vector(w, y) and x.shape[1:2] == w.dims(y)[:1] and _all_take_vectors(w, y)
    return x.rank == 4 and y.rank == 2 and all(_flattens(user, y) for user in y.uses)


def _flattens(user: Node, y: Value) -> bool:
    """Whether `user` becomes an InnerProduct layer of y: a MatMul of y by a constant matrix."""
    if user.op.name != "MatMul" or user.inputs[0] is not y or user.inputs[1] is y:
        return False
    right = user.inputs[1]
    return right is not None and right.const is not None and right.const.ndim == 2


def is_vector(w: Writer, y: Value) -> bool:
    """Whether a value is an image or a volume of one pixel, which can be a vector in ncnn."""
    dims = list(y.shape or ())
    return len(dims) in (4, 5) and isinstance(dims[1], int) and all(d == 1 for d in dims[2:])


def vector_for_all(w: Writer, y: Value) -> bool:
    """Whether a value is an image of one pixel whose readers can all read it as a vector. If so,
    the caller adds it to `w.vectors`."""
    return is_vector(w, y) and y not in w.graph.outputs and bool(y.uses) and _all_take_vectors(w, y)


def _all_take_vectors(w: Writer, y: Value) -> bool:
    return all(_takes_vector(w, user, y) for user in y.uses)


def _takes_vector(w: Writer, user: Node, y: Value) -> bool:
    """Whether the node `user` can read y, an image of one pixel, as a vector in ncnn: a reshape, or
    arithmetic with a value of as many channels, whose spatial sizes are the result's."""
    op = user.op.name
    if op in ("Reshape", "Flatten"):
        return user.inputs[0] is y and bool(user.output.shape)
    if op not in TWO or list(user.inputs).count(y) != 1:
        return False
    (other,) = (v for v in user.inputs if v is not y)
    if other is None or other in w.vectors or other.shape is None or other.rank != y.rank:
        return False
    if other.const is not None and (other.const.size == 1 or other.const.shape[0] != 1):
        return False
    own, all_ = list(y.shape or ()), list(user.output.shape or ())
    return list(other.shape[1:2]) == own[1:2] and list(other.shape[2:]) == all_[2:]


def factor_of_sum(w: Writer, node: Node) -> bool:
    """Whether a product x * number needs no layer, as only a sum of two computed values of the
    shape of x reads it. If so, the product gets the blob of x, and `w.factors` the number, by which
    the sum's Eltwise layer multiplies (`weighted_sum`)."""
    a, b = inputs_of(node)
    x, factor = (a, number_of(b)) if number_of(b) is not None else (b, number_of(a))
    user = w.only_user(node.output, "Add")
    if factor is None or x.const is not None or x.shape is None or user is None:
        return False
    shapes = {v.shape for v in (x, *user.inputs, user.output) if v is not None}
    if len(shapes) != 1 or any(v is None or v.const is not None for v in user.inputs):
        return False
    if x in w.vectors or any(v in w.vectors for v in user.inputs):
        return False
    w.factors[node.output] = factor
    w.blobs[node.output] = w.blob(x)
    return True


def weighted_sum(w: Writer, node: Node) -> bool:
    """Write a sum as an Eltwise layer, with the factors that `factor_of_sum` has kept. Return
    False, and write nothing, if neither term has one."""
    if not any(v in w.factors for v in node.inputs):
        return False
    coeffs = tuple(w.factors.get(v, 1.0) for v in inputs_of(node))
    names = [w.blob(v) for v in inputs_of(node)]
    w.layer("Eltwise", node.name, names, [node.output], {"op_type": 1, "coeffs": coeffs})
    return True


def shifted(w: Writer, node: Node) -> bool:
    """Write the sum of an image and a number for each channel as a Bias layer. Return False, and
    write nothing, for any other sum."""
    found = _of_channels(node)
    if found is None or found[0] in w.vectors:
        return False
    x, numbers = found
    if (x.rank or 0) < 4:  # ncnn's Bias knows no channels of vectors and matrices
        return False
    given = {"bias_data_size": numbers.size}
    w.layer("Bias", node.name, [w.blob(x)], [node.output], given, bias=numbers)
    return True


def scaled(w: Writer, node: Node) -> bool:
    """Write a product with a number for each channel as a Scale layer, together with a following
    sum with a number for each channel. Return False, and write nothing, for any other product."""
    found = _of_channels(node)
    if found is None or found[0] in w.vectors:
        return False
    (x, numbers), y = found, node.output
    given, weights = {"scale_data_size": numbers.size}, {"scale": numbers}
    term = w.only_user(y, "Add")
    behind = None if term is None else _of_channels(term)
    if term is not None and behind is not None:
        w.taken.add(term)
        given, weights, y = given | {"bias_term": 1}, weights | {"bias": behind[1]}, term.output
    w.layer("Scale", node.name, [w.blob(x)], [y], given, **weights)
    return True


def _of_channels(node: Node) -> tuple[Value, Any] | None:
    """Return (x, numbers) for a node that combines a computed x with a constant of one number for
    each channel of x, as a vector; None for any other node."""
    for x, v in (inputs_of(node)[:2], inputs_of(node)[1::-1]):
        dims, array = x.shape, v.const
        if array is None or x.const is not None or not dims or dims != node.output.shape:
            continue
        if array.dtype.kind != "f" or array.ndim > len(dims) or not isinstance(dims[1], int):
            continue
        shape = (1,) * (len(dims) - array.ndim) + array.shape
        if array.size == dims[1] == shape[1] and array.size > 1:
            return x, array.reshape(-1)
    return None


def edge_of_pool(w: Writer, node: Node, widths: list[list[int]]) -> bool:
    """Whether a padding needs no layer, as only a MaxPool reads it and it fills with the least
    number, which never is a maximum. If so, `w.edges` gets its widths, which the pooling adds to
    its own. `widths`: [before each axis, after each axis]."""
    x, _, filler, _ = inputs_of(node)
    value = number_of(filler)
    pool = w.only_user(node.output, "MaxPool")
    if value is None or value > -LARGEST or pool is None or len(pool.outputs) > 1:
        return False
    a = pool.attrs
    if a["auto_pad"] not in ("NOTSET", "VALID") or a["ceil_mode"]:
        return False
    begin, end = widths[0][2:], widths[1][2:]
    if any(widths[0][:2] + widths[1][:2]):
        return False
    w.edges[node.output] = (*begin, *end)
    w.blobs[node.output] = w.blob(x)
    return True


def coefficient(w: Writer, y: Value) -> tuple[Value, dict[str, Any]]:
    """If only a product with a number reads y, a reduction's result, mark the product as taken, and
    return (the product's result, {"coeff": number}, a parameter of Reduction). Else (y, {})."""
    user = w.only_user(y, "Mul")
    if user is None:
        return y, {}
    factor = next((n for v in user.inputs if (n := number_of(v)) is not None), None)
    if factor is None or user.output.shape != y.shape:
        return y, {}
    w.taken.add(user)
    return user.output, {"coeff": factor}
