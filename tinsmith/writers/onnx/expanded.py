"""Writes operators that ONNX lacks, or has only in newer versions, as several common ones; and
checks."""

from __future__ import annotations

import numpy as np

from tinsmith.writers.onnx.row import Row, row
from tinsmith.writers.rows import Inexpressible


@row("Rsqrt")
def rsqrt(r: Row) -> None:
    r.end("Reciprocal", r.put("Sqrt", r[0]))


@row("Swish")
def swish(r: Row) -> None:
    """Write x * Sigmoid(alpha x): only opset 24 and later have Swish."""
    scaled = r[0]
    if r.alpha != 1:
        scaled = r.put("Mul", r[0], np.array(r.alpha, r.node.output.dtype))  # type: ignore[assignment]
    r.end("Mul", r[0], r.put("Sigmoid", scaled))


@row("HardSwish")
def hard_swish(r: Row) -> None:
    if np.isclose(r.alpha, 1 / 6, rtol=1e-7) and r.beta == 0.5:
        return r.end("HardSwish", r[0])
    gate = r.put("HardSigmoid", r[0], alpha=float(r.alpha), beta=float(r.beta))
    return r.end("Mul", r[0], gate)


@row("Mod")
def mod(r: Row) -> None:
    """Write Mod, the remainder with the sign of y. For floats ONNX Runtime has only `fmod`, with
    the sign of x: y is added to its result where the signs differ."""
    x, y = r.node.operand(0), r[1]
    if r.fmod or x.dtype.kind in "iu":
        return r.end("Mod", x, y, fmod=int(r.fmod) or None)
    zero = np.zeros((), x.dtype)
    rest = r.put("Mod", x, y, fmod=1)
    signs = r.put("Xor", r.put("Less", rest, zero), r.put("Less", y, zero))
    other = r.put("And", r.put("Not", r.put("Equal", rest, zero)), signs)
    return r.end("Where", other, r.put("Add", rest, y), rest)


@row("RotaryEmbedding")
def rotary_embedding(r: Row) -> None:
    """Write RotaryEmbedding. Positions [1,T] for all sequences are repeated: ONNX requires
    [N,T]."""
    x, at = r.node.operand(0), r[3]
    places = at
    if at is not None and at.shape is not None and at.shape[0] == 1 and (x.shape or [0])[0] != 1:
        shape = r.put("Concat", r.put("Shape", x, end=1), r.put("Shape", at, start=1), axis=0)
        places = r.put("Expand", at, shape)  # type: ignore[assignment]
    names = "interleaved num_heads rotary_embedding_dim"
    r.end("RotaryEmbedding", x, r[1], r[2], places, **r.given(names))


@row("ChannelShuffle")
def channel_shuffle(r: Row) -> None:
    """Write a ChannelShuffle as Reshape to [N, groups, C/groups, pixels], Transpose of axes 1, 2,
    and Reshape to the Shape of the input. Raises Inexpressible if C is not known."""
    channels = r.size(0, 1, "the number of channels")
    apart = r.put("Reshape", r[0], r.ints(0, r.groups, channels // r.groups, -1))
    turned = r.put("Transpose", apart, perm=(0, 2, 1, 3))
    r.end("Reshape", turned, r.put("Shape", r[0]))


@row("SpaceToDepth")
def space_to_depth(r: Row) -> None:
    """Write SpaceToDepth as ONNX's operator if the order of channels is DCR, the only one that it
    has; else as Reshape, Transpose, Reshape."""
    b = r.blocksize
    if r.mode == "DCR":
        return r.end("SpaceToDepth", r[0], blocksize=b)
    c, h, w = (r.size(0, i, "the size of each axis but the first") for i in (1, 2, 3))
    apart = r.put("Reshape", r[0], r.ints(0, c, h // b, b, w // b, b))
    turned = r.put("Transpose", apart, perm=(0, 1, 3, 5, 2, 4))
    return r.end("Reshape", turned, r.ints(0, c * b * b, h // b, w // b))


@row("Declared")
def declared(r: Row) -> None:
    """Write an Identity for a Declared node, a check of sizes, if its input and output have
    different names, else nothing. The output's declared type is written anyway (`Scope.said`)."""
    x, y = r.node.operand(0), r.node.output
    if r.scope.name(x) != r.scope.name(y):
        r.end("Identity", x)


@row("Bounded", "Required")
def checked(r: Row) -> None:
    """Write nothing for a check of data, which ONNX lacks: the output is the input."""
    x = r.node.operand(0)
    r.scope.alias(r.node.output, x, r)


@row("Refused")
def refused(r: Row) -> None:
    raise Inexpressible(f"it stands for a node that cannot run: {r.message}")
