"""Writes integer convolutions and products, with the quantisation of their inputs and the
dequantisation of their results, as ncnn's int8 layers."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.records import NamedTuple
from tinsmith.writers.ncnn.layers import activation, conv_layer
from tinsmith.writers.ncnn.several import maker, source
from tinsmith.writers.ncnn.writer import Writer, claims
from tinsmith.writers.rows import constant, need, present


class Rounded(NamedTuple):
    """A value that is x * scale rounded to int8: from -127 to 127, halves away from zero. `nodes`
    compute it; the first gives the result, `bytes`."""

    x: Value
    scale: np.float32
    nodes: tuple[Node, ...]

    @property
    def bytes(self) -> Value:
        return self.nodes[0].output


def rounded(w: Writer, v: Value | None) -> Rounded:
    """Return from what v, an int8 value, is rounded. Raises Inexpressible if it is computed in
    another way than `forms._Adding.bytes` does, or if other nodes read a value between."""
    cast = maker(v, "Cast")
    need(cast.output.dtype == np.int8, "its input is not rounded to bytes")
    clip = source(w, cast.inputs[0], "Clip")
    need((clip.attrs["min"], clip.attrs["max"]) == (-127, 127), "its bytes are cut elsewhere")
    product = source(w, clip.inputs[0], "Mul")
    sign, floor = (
        source(w, i, op) for i, op in zip(product.inputs, ("Sign", "Floor"), strict=True)
    )
    term = source(w, floor.inputs[0], "Add")
    size = source(w, term.inputs[0], "Abs")
    half = constant(term.inputs[1], "a half").reshape(-1).tolist()
    scaled = size.operand(0)
    need(half == [0.5] and sign.inputs[0] is scaled, "it rounds otherwise")
    need(set(scaled.uses) == {sign, size} and scaled not in w.graph.outputs, "it is read elsewhere")
    by = maker(scaled, "Mul")
    factor = constant(by.inputs[1], "the scale of its input")
    need(factor.size == 1, "its input has a scale for each channel")
    nodes = cast, clip, product, sign, floor, term, size, by
    return Rounded(by.operand(0), np.float32(factor.reshape(-1)[0]), nodes)


def _next(w: Writer, y: Value) -> Rounded | None:
    """If y is rounded to int8, and only that, for integer operators (INTEGERS) alone, return the
    rounding: the layer of y can then give int8 itself. Else, or if y or the int8 value is a graph
    output, None. Raises Inexpressible, as `rounded` does."""
    by = w.only_user(y, "Mul")
    user = None if by is None else next((u for u in by.output.uses if u.op.name == "Sign"), None)
    for op in ("Mul", "Clip", "Cast"):
        user = None if user is None else w.only_user(user.output, op)
    if user is None or user.output in w.graph.outputs or user.output.dtype != np.int8:
        return None
    if not user.output.uses or any(u.op.name not in INTEGERS for u in user.output.uses):
        return None
    found = rounded(w, user.output)
    return found if found.x is y else None


INTEGERS = ("ConvInteger", "MatMulInteger")


@claims(*INTEGERS)
def layer_of_bytes(w: Writer, node: Node) -> None:
    """Claim an integer convolution or product of int8 data by int8 weights as an int8 layer, with
    the nodes around it: the rounding of x, a factor for each output, a bias, an activation, and
    perhaps the rounding of the result to int8. Raises Inexpressible unless rounding and factor are
    ncnn's."""
    given, array, type = _weights(w, node)
    need(not any(node.inputs[2:]), "it has zero points")
    before = rounded(w, node.inputs[0])
    others = [u for u in before.bytes.uses if u.op.name not in INTEGERS]
    need(not others and before.bytes not in w.graph.outputs, "its bytes are read elsewhere, too")
    back = present(w.only_user(node.output, "Cast"), "its sums have no factor")
    product = present(w.only_user(back.output, "Mul"), "its sums have no factor")
    factor = constant(product.inputs[1], "the factor of its sums").reshape(-1)
    y, taken = product.output, [*before.nodes, back, product]
    term = w.only_user(y, "Add")
    bias = None if term is None else term.inputs[1]
    weights: dict[str, Array] = {"weight": array}
    if term is not None and bias is not None and bias.const is not None:
        need(bias.const.size == len(array), "its bias is not one for each output")
        weights["bias"], y = bias.const.reshape(-1), term.output
        taken.append(term)
    scales = _scales(factor, before.scale, len(array), node.attrs.get("group", 1))
    weights |= {"weight_scales": scales, "bottom_scale": np.array([before.scale])}
    w.taken |= set(taken)
    y, more = activation(w, y)
    given |= more | {"num_output": len(array), "bias_term": int("bias" in weights)}
    given["int8_scale_term"] = 1
    after = None if type == "InnerProduct" else _next(w, y)
    if after is not None:
        given["int8_scale_term"] = 101
        weights["top_scale"] = np.array([after.scale])
        w.taken |= set(after.nodes)
        y = after.bytes

    def write() -> None:
        x = before.bytes if before.bytes in w.blobs else before.x
        w.layer(type, node.name, [w.blob(x)], [y], given, **weights)

    w.claimed[node] = write


def _weights(w: Writer, node: Node) -> tuple[dict[str, object], Array, str]:
    """Return (parameters, weights, layer's type) of an integer operator. Raises Inexpressible."""
    array = constant(node.inputs[1], "its weight")
    need(array.dtype == np.int8, "its weights are no bytes with a sign")
    if node.op.name == "ConvInteger":
        type, given = conv_layer(w, node, array.shape)
        need(type in ("Convolution", "ConvolutionDepthWise"), f"a {type} has no bytes in ncnn")
        return given, array, type
    need(array.ndim == 2 and node.output.rank in (2, 3), "its rows are not those of a matrix")
    array = np.ascontiguousarray(array.T)
    return {"weight_data_size": array.size}, array, "InnerProduct"


def _scales(factor: Array, bottom: np.float32, outputs: int, group: int) -> Array:
    """Return ncnn's scales of weights, [outputs], or [group] if `group` > 1, from the factors of
    the sums: ncnn computes factor = 1 / (bottom * scale), where `bottom` is the scale of x. A scale
    is 1 / (bottom * factor), rounded to float32, or a float32 next to that if only this one gives
    the factor to the last bit; 0 for a factor of 0. Raises Inexpressible if `factor` is not
    [outputs] (one factor for all outputs is refused, too), or factors differ in a group."""
    need(factor.size == outputs, "the factors of its sums are not one for each output")
    rows = factor.reshape(group, -1) if group > 1 else factor[:, None]
    need((rows == rows[:, :1]).all(), "the outputs of a group have several scales")
    wanted = rows[:, 0].astype(np.float32)
    with np.errstate(divide="ignore"):
        found = np.where(wanted == 0, 0, 1 / (bottom * wanted)).astype(np.float32)
        for end in (-np.inf, np.inf):
            near = np.nextafter(found, np.float32(end))
            better = (1 / (bottom * found) != wanted) & (1 / (bottom * near) == wanted)
            found = np.where(better, near, found)
    return found
