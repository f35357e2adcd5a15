"""Importers of normalisations, and of layers that scale or shift channels."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Result, known, layer, rank, shape
from tinsmith.graph import Array, Value


@layer("BatchNorm")
def batch_norm(node: Node) -> Result:
    node.attr("channels")
    eps = np.float32(node.attr("eps"))
    slope, mean, var, bias = (node.weight(n) for n in ("slope", "mean", "var", "bias"))
    if (var + eps == 0).any():  # ncnn divides by 1e-4 then
        var = np.where(var + eps == 0, np.float32(1e-8) - eps, var)
    return node.emit("BatchNorm", node[0], slope, bias, mean, var, eps=float(eps))


@layer("Scale", "Bias")
def scale(node: Node) -> Result:
    x = node[0]
    if node.type == "Bias":
        node.attr("bias_data_size")
        bias = node.weight("bias")
        # ncnn takes vectors and matrices as one channel
        return node.emit("Add", x, node.channels(bias if rank(x) > 2 else bias[:1], x))
    if node.attr("scale_data_size") == -233:
        if node.attr("bias_term"):
            raise Unsupported("its scale is an input, and it has a bias")
        factor = node[1]
        return node.emit("Mul", x, node.reshaped(factor, -1, *[1] * (rank(x) - 1)))
    y = node.emit("Mul", x, node.channels(node.weight("scale"), x))
    return (
        node.emit("Add", y, node.channels(node.weight("bias"), x)) if node.attr("bias_term") else y
    )


def _mean(node: Node, x: Value, axes: range, kind: str = "mean") -> Value:
    return node.emit("Reduce", x, node.ints(*axes), kind=kind, keepdims=True)


def _picture(node: Node) -> Value:
    """The input as [N,c,h,w], as ncnn's layers take a vector or a matrix as one channel: axes of
    size 1 are added behind the batch, [N,w] -> [N,1,1,w]. Higher ranks stay."""
    missing = range(1, 4 - node.rank())
    return node.emit("Unsqueeze", node[0], node.ints(*missing)) if missing else node[0]


def _unpictured(node: Node, y: Value) -> Value:
    """y, which was computed from `_picture`, without the axes that it added."""
    missing = range(1, 4 - node.rank())
    return node.emit("Squeeze", y, node.ints(*missing)) if missing else y


@layer("Normalize")
def normalize(node: Node) -> Result:
    """Import Normalize: x divided by its Euclidean norm over the channels, over the pixels of each
    channel, or over both, times a scale. Raises Unsupported for neither."""
    x, eps, mode = _picture(node), node.attr("eps"), node.attr("eps_mode")
    node.attr("scale_data_size")
    space, channel = node.attr("across_spatial"), node.attr("across_channel")
    if not space and not channel:
        raise Unsupported("it normalises across neither channels nor places")
    axes = range(1 if channel else 2, rank(x) + 1 if space else 2)
    total = _mean(node, x, axes, "sumsquare")
    if mode == 0:
        length = node.emit("Sqrt", node.shifted(total, eps))
    elif mode == 1:
        length = node.emit("Max", node.emit("Sqrt", total), node.number(eps, x))
    else:
        length = node.emit("Sqrt", node.emit("Max", total, node.number(eps, x)))
    weight, one = node.weight("scale"), node.attr("channel_shared") or node.rank() < 3
    factor = node.channels(weight[:1] if one else weight, x)
    return _unpictured(node, node.emit("Mul", node.emit("Div", x, length), factor))


@layer("LRN")
def lrn(node: Node) -> Result:
    attrs = node.named()
    size, alpha, beta, bias = (attrs[n] for n in ("size", "alpha", "beta", "bias"))
    if size < 1:
        raise Unsupported(f"its local_size is {size}")
    if rank(node[0]) > 3:
        raise Unsupported("ncnn leaves all but the first of several depths as they are")
    if node.attr("region_type") == 0 and rank(node[0]) < 3:  # each element is a channel alone
        squares = node.emit("Mul", node[0], node[0])
        sums = node.shifted(node.scaled(squares, alpha / size), bias)
        return node.emit("Mul", node[0], node.emit("Pow", sums, node.number(-beta, sums)))
    if node.attr("region_type") == 0:
        return node.local_norm(node[0], **attrs)
    x, before = _picture(node), size // 2
    pad = (before, before, size - 1 - before, size - 1 - before)
    squares = node.emit(
        "AveragePool", node.emit("Mul", x, x), kernel=(size, size), pad=pad, count_include_pad=True
    )
    sums = node.shifted(node.scaled(squares, alpha), bias)
    y = node.emit("Mul", x, node.emit("Pow", sums, node.number(-beta, x)))
    return _unpictured(node, y)


def _affine(node: Node, count: int) -> list[Array]:
    """The scale and, but for RMSNorm, the shift of a normalisation as vectors; without them in the
    file `count` ones and zeros."""
    usual = {"scale": np.ones, "shift": np.zeros}
    names = ["scale"] if node.type == "RMSNorm" else [*usual]
    given = node.attr("affine")
    return [node.weight(n) if given else usual[n](count, np.float32) for n in names]


@layer("InstanceNorm", "GroupNorm")
def group_norm(node: Node) -> Result:
    count = shape(node[0])[1]
    count = count if isinstance(count, int) else node.attr("channels")
    node.ignore("channels")
    if not count:
        raise Unsupported("the number of its channels is not known")
    if node.type == "InstanceNorm" and rank(node[0]) < 3:
        return _whole(node)
    weights, eps = _affine(node, count), node.attr("eps")
    if node.type == "InstanceNorm":
        return node.emit("InstanceNorm", node[0], *weights, eps=eps)
    groups = node.attr("group")
    if rank(node[0]) > 1:
        return node.emit("GroupNorm", node[0], *weights, groups=groups, eps=eps)
    column = node.emit("Unsqueeze", node[0], node.ints(2))
    y = node.emit("GroupNorm", column, *weights, groups=groups, eps=eps)
    return node.emit("Squeeze", y, node.ints(2))


def _whole(node: Node) -> Value:
    """An InstanceNorm of a vector or a matrix, which is one channel."""
    weights = [w[:1] for w in _affine(node, 1)]
    y = node.emit("InstanceNorm", _picture(node), *weights, eps=node.attr("eps"))
    return _unpictured(node, y)


@layer("LayerNorm", "RMSNorm")
def layer_norm(node: Node) -> Result:
    """Import LayerNorm or RMSNorm: over the last axis, or, for rank 3 and 4, over as many last axes
    (but not all) as together have `affine_size` elements. Raises Unsupported where none have."""
    x, size, eps = node[0], node.attr("affine_size"), node.attr("eps")
    inner = [size]
    if rank(x) == 2 and not node.attr("affine"):
        inner = [known(x, "it")[1]]
    elif shape(x)[-1] != size and rank(x) > 2:
        dims = known(x, "it")
        inner = next((dims[i:] for i in (-2, -3) if prod(dims[i:]) == size and -i < rank(x)), [])
        if not inner:
            raise Unsupported(f"no last axes of {dims} have {size} elements")
    weights = [w.reshape(inner) for w in _affine(node, prod(inner))]
    return node.emit(node.type, x, *weights, axis=-len(inner), eps=eps)


@layer("MVN")
def mvn(node: Node) -> Result:
    x, eps = _picture(node), node.attr("eps")
    axes = range(1 if node.attr("across_channels") else 2, rank(x) + 1)
    off = node.emit("Sub", x, _mean(node, x, axes))
    if not node.attr("normalize_variance"):
        return off
    deviation = node.emit("Sqrt", _mean(node, node.emit("Mul", off, off), axes))
    return node.emit("Div", off, node.shifted(deviation, eps))


@layer("StatisticsPooling")
def statistics(node: Node) -> Result:
    x = node[0]
    axes = range(2, rank(x) + 1)
    mean = _mean(node, x, axes)
    y = node.reshaped(mean, -1)
    if not node.attr("include_stddev"):
        return y
    off = node.emit("Sub", x, mean)
    deviation = node.emit("Sqrt", _mean(node, node.emit("Mul", off, off), axes))
    return node.emit("Concat", y, node.reshaped(deviation, -1), axis=1)
