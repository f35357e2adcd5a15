"""Importers of convolutions and matrix products, also in int8, with ncnn's roundings."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import (
    Node,
    Result,
    Size,
    active,
    channels_of,
    known,
    layer,
    rank,
    shape,
)
from tinsmith.frontends.ncnn.window import (
    AXES,
    MORE,
    SAME,
    SAME_LOWER,
    padding,
    pads,
    same_padding,
    spatial,
    window,
)
from tinsmith.frontends.scales import need_scale
from tinsmith.graph import Array, Value


def weighted(node: Node, letters: Any) -> tuple[tuple[int, ...], int, int]:
    """(kernel, output channels, groups) of a convolution over the axes `letters` ("h", "w")."""
    group = node.attr("group") if "group" in node.values else 1
    return tuple(node.attr(f"kernel_{a}") for a in letters), node.attr("num_output"), group


@layer(
    "Convolution", "ConvolutionDepthWise", "Convolution1D", "ConvolutionDepthWise1D",
    "Convolution3D", "ConvolutionDepthWise3D",
)  # fmt: skip
def convolution(node: Node) -> Result:
    letters = spatial(node.type)
    node.ignore("groups")
    kernel, outputs, group = weighted(node, letters)
    attrs, pad = {**window(node, letters), "group": group}, padding(node, letters)
    value, size = node.attr("pad_value"), node.attr("weight_data_size")
    x, biased = node[0], node.attr("bias_term")
    if "auto_pad" in pad and rank(x) == len(letters) + 1:
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilation"], strict=True)]
        lower = pad["auto_pad"] == "SAME_LOWER"
        pad = same_padding(x, letters, spans, attrs["stride"], lower, numbers=bool(value))

    def product(op: str, x: Value, *weights: Any) -> Value:
        if value and any(pad.get("pad", ())):
            return node.emit(op, node.padded(x, pad["pad"], value), *weights, **attrs)
        return node.emit(op, x, *weights, **attrs, **pad)

    if node.attr("dynamic_weight"):
        w, b = _computed(node, 1), _computed(node, 2) if biased else None
        w = node.emit("Reshape", w, node.ints(outputs, -1, *kernel)) if w.rank == 2 else w
        return active(node, product("Conv", x, w, b))
    if rank(x) == 1 and kernel == (1, 1):
        return dense(node)
    if size % (max(outputs, 1) * prod(kernel)) or min(*kernel, outputs) < 1:
        raise Unsupported(f"{size} weights make no kernel {kernel} for {outputs} outputs")
    w = node.weight("weight", outputs, -1, *kernel)
    b = node.weight("bias") if biased else None
    if rank(x) != len(letters) + 1:
        raise Unsupported(f"its input has {rank(x)} axes, not {len(letters) + 1}")
    if is_quantised(node):
        value = int(value)  # beside bytes, without their scale
        return in_bytes(node, x, w, b, lambda q, k: product("ConvInteger", q, k))
    return active(node, product("Conv", x, w, b))


def _computed(node: Node, index: int) -> Value:
    """Input number `index`, a weight that is computed, without its axis for the batch. Raises
    Unsupported for a batch other than 1."""
    count = shape(node[index])[0]
    if isinstance(count, int) and count != 1:
        raise Unsupported(
            f"its weights are an input: those of one sample, not of {count}. Give the batch a size "
            "of 1 (batch=1)"
        )
    return node.emit("Squeeze", node[index], node.ints(0))


# ---- int8


def rounded(node: Node, x: Value) -> Value:
    """x rounded (halves away from zero), and clipped to [-127, 127], as int8."""
    near = node.emit("Floor", node.shifted(node.emit("Abs", x), 0.5))
    whole = node.emit("Clip", node.emit("Mul", node.emit("Sign", x), near), min=-127.0, max=127.0)
    return node.emit("Cast", whole, to="int8")


def is_quantised(node: Node) -> bool:
    """Whether a layer multiplies in int8: its weights then include scales (`int8_scale_term`)."""
    return "int8_scale_term" in node.values and bool(node.attr("int8_scale_term"))


def quantised(node: Node, x: Value, scale: Array) -> Value:
    """x quantised to int8: multiplied by `scale` (one number, or one for each channel) and rounded.
    x itself if it is int8 already."""
    if x.dtype == np.int8:
        return x
    factor = node.number(float(scale[0]), x) if scale.size == 1 else node.channels(scale, x)
    return rounded(node, node.emit("Mul", x, factor))


def byte_weights(w: Array, scales: Array) -> Array:
    if w.dtype == np.int8:
        return w
    per = scales.repeat(w.shape[0] // scales.size) if scales.size > 1 else scales
    per = np.where(np.isinf(per), 0, per)  # of weights that are all 0, as ncnn2table writes it
    v = w * per.reshape(-1, *(1,) * (w.ndim - 1)).astype(np.float32)
    return np.clip(np.trunc(v + np.copysign(np.float32(0.5), v)), -127, 127).astype(np.int8)


def in_bytes(node: Node, x: Value, w: Array, b: Array | None, product: Any) -> Value:
    """An int8 layer: x and w are quantised, unless they are int8 already; product(x, w) emits their
    int32 product, which is scaled back to float32, gets the float bias b (None: none) and the
    activation, and is quantised to int8 if the layer has a `top_scale`. The scales are weights of
    the layer."""
    scales, bottom = node.weight("weight_scales"), node.scales("bottom_scale")
    per = scales.repeat(w.shape[0] // scales.size)
    with np.errstate(divide="ignore"):
        factor = np.where(per == 0, 0, 1 / (np.float32(bottom[0]) * per)).astype(np.float32)
    need_scale(factor, "1 / (bottom_scale * weight_scales)", divides=False)
    q = byte_weights(w, scales)
    sums = node.emit("Cast", product(quantised(node, x, bottom), node.const(q)), to="float32")
    last = sums.rank == 2 or node.type == "InnerProduct"
    along = (lambda a: a) if last else functools.partial(node.channels, x=sums)
    y = node.emit("Mul", sums, along(factor))
    y = y if b is None else node.emit("Add", y, along(b))
    y = active(node, y)
    return quantised(node, y, node.scales("top_scale")) if node.has("top_scale") else y


# ---- back


@layer(
    "Deconvolution", "DeconvolutionDepthWise", "Deconvolution1D", "DeconvolutionDepthWise1D",
    "Deconvolution3D", "DeconvolutionDepthWise3D",
)  # fmt: skip
def deconvolution(node: Node) -> Result:
    """Import a transposed convolution. Where the layer gives the size of its output (padding:
    SAME), all of the result is computed, and then cut to it."""
    letters = spatial(node.type)
    node.ignore("groups")
    kernel, outputs, group = weighted(node, letters)
    more = tuple(node.attr(MORE[a]) for a in letters)
    attrs = {**window(node, letters), "group": group, "output_padding": more}
    node.ignore("weight_data_size")
    pad, wanted = pads(node, letters), tuple(node.attr(f"output_{a}") for a in letters)
    if node.attr("dynamic_weight"):  # of the order inputs, outputs, as PyTorch's
        w = _computed(node, 1)
        b = _computed(node, 2) if node.attr("bias_term") else None
    else:
        array = node.weight("weight", group, outputs // group, -1, *kernel).swapaxes(1, 2)
        w = np.ascontiguousarray(array.reshape(-1, outputs // group, *kernel))
        b = node.weight("bias") if node.attr("bias_term") else None
    if any(p > 0 for p in pad):
        return active(node, node.emit("ConvTranspose", node[0], w, b, pad=pad, **attrs))
    y = active(node, node.emit("ConvTranspose", node[0], w, b, **attrs))
    if not all(n > 0 for n in wanted):
        return y
    if not {SAME, SAME_LOWER} & set(pad):
        raise Unsupported("it tells the size of its output, and paddings that make none of it")
    sizes = known(y, "an output of a told size")[1:]
    cuts = [n - m for n, m in zip(sizes, wanted, strict=True)]
    starts = [c // 2 if SAME in pad else c - c // 2 for c in cuts]
    if min(cuts) < 0:
        raise Unsupported(f"an output of {wanted} is larger than the full one of {sizes}")
    ends = [s + n for s, n in zip(starts, wanted, strict=True)]
    axes = range(2, 2 + len(letters))
    return node.emit("Slice", y, node.ints(*starts), node.ints(*ends), node.ints(*axes))


@layer("DeformableConv2D")
def deformable(node: Node) -> Result:
    letters = AXES[2]
    outputs, kernel = node.attr("num_output"), (node.attr("kernel_h"), node.attr("kernel_w"))
    node.ignore("weight_data_size")
    w = node.const(node.weight("weight", outputs, -1, *kernel))
    b = node.const(node.weight("bias")) if node.attr("bias_term") else None
    told = padding(node, letters)
    if "auto_pad" in told:
        raise Unsupported("its padding keeps the size")
    groups = channels_of(node[1], "its offset") // (2 * prod(kernel))
    x, offset, *mask = node.alike(*node.present)
    y = node.emit(
        "DeformConv", x, w, offset, b, *mask, offset_group=groups,
        **window(node, letters), **told,
    )  # fmt: skip
    return active(node, y)


# ---- products


@layer("InnerProduct")
def dense(node: Node) -> Result:
    """Import InnerProduct: the weights times each row of a matrix, if its rows have the right
    length; else times the input as one vector."""
    x, outputs = node[0], node.attr("num_output")
    w = node.weight("weight", outputs, -1)
    b = node.weight("bias") if node.attr("bias_term") else None
    node.ignore("weight_data_size")
    if rank(x) > 1 and not (rank(x) == 2 and shape(x)[2] == w.shape[1]):
        x = node.reshaped(x, -1)
    if node.attr("int8_scale_term"):
        return in_bytes(
            node, x, w, b, lambda q, k: node.emit("MatMulInteger", q, node.const(k.const.T))
        )
    y = node.emit("MatMul", x, np.ascontiguousarray(w.T))
    return active(node, y if b is None else node.emit("Add", y, node.const(b)))


@layer("MatMul")
def matmul(node: Node) -> Result:
    a, b = node[0], node[1]
    lone = rank(a) == 1, rank(b) == 1
    a = node.reshaped(a, 1, node.dim(a, 1)) if lone[0] else a
    if lone[1]:
        b = node.reshaped(b, node.dim(b, 1), 1)
    elif node.attr("transB"):
        b = turned(node, b)
    node.ignore("transB")
    a, b = same_rank(node, a, b)
    y = node.emit("MatMul", a, b)
    for axis, gone in ((rank(y) - 1, lone[0]), (rank(y), lone[1])):
        if gone and rank(y) > 1:
            y = node.emit("Squeeze", y, node.ints(axis))
    return y


def turned(node: Node, x: Value) -> Value:
    """x with its last two axes exchanged."""
    n = rank(x) + 1
    return node.emit("Transpose", x, perm=(*range(n - 2), n - 1, n - 2))


def same_rank(node: Node, *values: Value) -> list[Value]:
    """The values, all of the highest rank among them: axes of size 1 are added after the batch."""
    most = max(map(rank, values))
    return [
        v
        if rank(v) == most
        else node.emit("Unsqueeze", v, node.ints(*range(1, 1 + most - rank(v))))
        for v in values
    ]


@layer("Gemm")
def gemm(node: Node) -> Result:
    """Import Gemm: alpha * (A B + beta * C). A, B and C (which may be absent) are each a weight of
    the layer or, in this order, one of its inputs."""
    m, n, k = (node.attr(f"constant{a}") for a in "MNK")
    term, alpha, given = node.attr("quantize_term"), node.attr("alpha"), iter(node.inputs)
    node.ignore("output_elempack", "output_elemtype", "tile_M", "tile_N", "tile_K")
    trans = {name: node.attr(f"trans{name}") for name in "AB"}

    def operand(name: str, rows: int, columns: int) -> Value:
        if node.attr(f"constant{name}"):
            array = (
                node.weight(name.lower())
                if term < 400 or name == "A"
                else blocks(node, "b", n, k, term)
            )
            if array.dtype == np.int8:
                scale = node.scales("a_scales" if name == "A" else "b_scale")
                array = array.astype(np.float32).reshape(rows, columns)
                by = scale[:, None] if name == "A" and not trans[name] else scale
                array = array / by
            matrix = array.reshape((columns, rows) if trans[name] else (rows, columns))
            return node.const((matrix.T if trans[name] else matrix)[None])
        x = next(given, None)
        if x is None:
            raise Unsupported(f"its operand {name} is neither constant nor an input")
        if rank(x) == 3:
            x = node.reshaped(x, node.dim(x, 1), -1)
        elif rank(x) == 1:
            x = node.reshaped(x, 1, -1) if name == "A" else node.reshaped(x, -1, 1)
        return turned(node, x) if trans[name] else x

    a, b = operand("A", m, k), operand("B", k, n)
    if node.has("b_input"):
        a = node.emit("Mul", a, node.weight("b_input"))
    y = node.emit("MatMul", a, b)
    c: Any = next(given, None)
    kind = node.attr("constant_broadcast_type_C")
    if node.attr("constantC"):
        shapes: dict[int, tuple[int, ...]] = {0: (1,), 1: (m, 1), 2: (m, 1), 3: (m, n), 4: (1, n)}
        beta = np.float32(node.attr("beta"))
        c = node.const(beta * node.weight("c", *shapes[kind])) if kind != -1 else None
    elif c is not None:
        c = node.scaled(_third(node, c, y), node.attr("beta"))
    if c is not None:
        y = node.emit("Add", y, c)
    node.ignore("beta")
    y = node.scaled(y, alpha)
    y = turned(node, y) if node.attr("output_transpose") else y
    if node.attr("output_N1M"):
        return node.emit("Unsqueeze", y, node.ints(2))
    return y


def _third(node: Node, c: Value, y: Value) -> Value:
    """C of a Gemm, where it is an input, in a shape that broadcasts to the product y. A vector is a
    column if it has as many elements as y rows, and not columns, else a row. Raises Unsupported
    where only the run tells that."""
    if rank(c) == 3:
        c = node.reshaped(c, node.dim(c, 1), -1)
    if rank(c) > 1:
        return c
    count, (_, rows, columns) = shape(c)[1], shape(y)
    is_column = count not in (1, columns)
    if is_column and (isinstance(count, str) or isinstance(columns, str)):
        raise Unsupported(f"how {shape(c)} goes with {shape(y)} is known only in a run")
    is_column &= isinstance(rows, str) or count == rows
    sizes: tuple[Size, Size] = (node.dim(c, 1), 1) if is_column else (1, node.dim(c, 1))
    return node.reshaped(c, *sizes)


def blocks(node: Node, name: str, n: int, k: int, term: int) -> Array:
    """The weight `name` [n, k] as float32: packed integers of 4, 6 or 8 bits, lowest bits first,
    divided by a scale for each block of a row. `term` is ncnn's quantize_term: term // 100 bits,
    blocks of 32 * 2^(term % 10) elements."""
    bits, block = term // 100, 32 << term % 10
    packed = node.weight(name).view(np.uint8).reshape(n, -1)
    ones = np.unpackbits(packed, axis=1, bitorder="little")[:, : k * bits].reshape(n, k, bits)
    whole = ones.astype(np.int32) @ (1 << np.arange(bits))
    whole -= (whole >> (bits - 1)) << bits
    scales = node.scales(f"{name}_scales", n, -1).repeat(block, axis=1)[:, :k]
    return (whole / scales).astype(np.float32)


@layer("Einsum")
def einsum(node: Node) -> Result:
    codes = node.attr("equation")
    if not all(32 <= c < 127 for c in codes):
        raise Unsupported(f"its equation {codes} is no text")
    equation = "".join(map(chr, codes)).replace(" ", "")
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    if equation == "ii":
        y = node.emit("Einsum", node[0], equation="zii->z")
        return node.reshaped_scalar(y)
    if not arrow or len(parts) != len(node.inputs) or "z" in equation:
        raise Unsupported(f"its equation {equation!r} does not go with {len(node.inputs)} inputs")
    told = ",".join("z" + p for p in parts) + "->z" + right
    y = node.emit("Einsum", *node.inputs, equation=told)
    return y if right else node.reshaped_scalar(y)
