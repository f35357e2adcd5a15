"""Transposed convolutions of bytes whose taps do not overlap: convolutions of one tap, and a move.

With a stride as long as the kernel, each output is one product of weights and the channels of one
place: tap (i, j) gives the outputs at (s h + i, s w + j).
"""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import Array
from tinsmith.passes.integers import (
    check_left,
    dequantised,
    flat,
    float32,
    need_bytes,
    nonzero,
    rules,
    scaled,
)
from tinsmith.passes.lower_quant import FLOAT32, given
from tinsmith.rewrite import Skip, const, opt, p, with_


@rules.rule(
    p.ConvTranspose(
        p.DequantizeLinear("x", const("xs"), opt("xz")).shared().named("left"),
        p.DequantizeLinear("w", const("ws"), opt("wz")).shared().named("right"),
        opt(const("b")),
    ).named("conv"),
    tolerance=1e-5,
    x=given("uint8", 1, 8, 3, 4),
    xs=np.array(0.5, np.float32),
    xz=np.array(3, np.uint8),
    w=np.arange(-96, 96, dtype=np.int32).astype(np.int8).reshape(8, 6, 2, 2),
    ws=np.array([0.1, 0.2, 0.3, 0.01, 1, 0.5], np.float32),
    wz=np.array([1, 0, -2, 5, 0, 0], np.int8),
    b=(6,),
    right={"axis": 1},
    conv={"stride": (2, 2)},
)
def transposed_convolution(left: Node, right: Node, b: Array | None, conv: Node) -> Value:
    """conv_transpose(deq(x), deq(w), b) -> depth_to_space(conv_integer(x, w) * xs * ws + b)."""
    (x, xs, xz), (w, ws, wz) = dequantised(left), dequantised(right)
    check_left(x, xs, xz)
    need_bytes(w, ws)
    if w.const is None or w.const.ndim != 4 or (wz is not None and wz.const is None):
        raise Skip("the weights are computed, or not of pictures")
    if (ws.size > 1 and right.axis % 4 != 1) or right.block_size:
        raise Skip("the weights do not have a scale for each output")
    inputs, _, *kernel = w.const.shape
    taps = kernel[0] * kernel[1]
    if kernel[0] != kernel[1] or tuple(conv.stride or (1, 1)) != tuple(kernel) or taps == 1:
        raise Skip("the stride is not the extent of the kernel")
    if conv.group > 1 or any(conv.pad or ()) or any(conv.output_padding or ()):
        raise Skip("it has groups or padding")
    if conv.output_shape or any(d > 1 for d in conv.dilation or ()):
        raise Skip("its size is given, or its taps are dilated")
    if conv.auto_pad not in ("NOTSET", "VALID"):
        raise Skip(f"auto_pad is {conv.auto_pad}")

    def each(v: Array) -> Array:
        return np.repeat(v.reshape(-1), taps) if v.size > 1 else v.reshape(())

    apart = np.ascontiguousarray(w.const.transpose(1, 2, 3, 0)).reshape(-1, inputs, 1, 1)
    zeros = None if nonzero(wz) is None else each(wz.const)  # type: ignore[union-attr, arg-type]
    sums = OPS["ConvInteger"](x, apart, flat(nonzero(xz)), zeros)
    factor = each(xs.reshape(()) * ws)
    factor = factor.reshape(-1, 1, 1) if factor.size > 1 else factor
    term = None if b is None else np.repeat(b, taps).reshape(-1, 1, 1)
    return OPS["DepthToSpace"](scaled(sums, factor, term), blocksize=kernel[0], mode="CRD")


@rules.rule(
    p.QuantizeLinear(p.DepthToSpace("x").named("move"), const("scale"), opt(const("zero"))).named(
        "q"
    ),
    x=(1, 8, 3, 4),
    scale=float32(0.017),
    zero=np.array([7], np.uint8),
    move={"blocksize": 2, "mode": "CRD"},
)
def quantised_apart(x: Value, scale: Array, move: Node, q: Node) -> Value:
    """quantise(depth_to_space(x)) -> depth_to_space(quantise(x)), with one scale."""
    if scale.size != 1 or x.dtype != FLOAT32:
        raise Skip("it has a scale for each place, or is not float32")
    return with_(move, x=with_(q, x=x))
