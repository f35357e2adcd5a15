"""Transposed convolutions of dequantised bytes whose windows do not overlap become 1x1 convolutions
of bytes and a DepthToSpace."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import filled_dims, pads, static_dims
from tinsmith.passes.integers import (
    LEAST,
    TO_BYTES,
    dequantised,
    flat,
    float32,
    need_bytes,
    need_left,
    need_one,
    need_room,
    of_dequantised,
)  # fmt: skip
from tinsmith.passes.lower_quant import given, nonzero
from tinsmith.passes.manager import has_bytes, register
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_

rules = RuleSet(
    "integer-transposed", "Transposed convolutions of bytes become products of bytes and a move."
)
register("machine", when=has_bytes)(rules)

_sample: dict[str, Any] = {
    "tolerance": 1e-5,
    "xs": np.array(0.5, np.float32),
    "xz": np.array(3, np.uint8),
    "x": given("uint8", 1, LEAST, 3, 4),
    "w": (np.arange(LEAST * 36 * 4) % 255 - 127).astype(np.int8).reshape(LEAST, 36, 2, 2),
    "ws": np.linspace(0.01, 0.3, 36, dtype=np.float32),
    "wz": np.arange(36).astype(np.int8),
    "b": (36,),
    "right": {"axis": 1},
    "conv": {"stride": (2, 2)},
}


@rules.rule(of_dequantised(p.ConvTranspose), **_sample)
def transposed_convolution(left: Node, right: Node, b: Array | None, conv: Node) -> Value:
    """conv_transpose(deq(x), deq(w), b) -> depth_to_space(scaled conv_integer(x, w as one tap)),
    where windows lie side by side: each pixel becomes r x r results. Of one group, without pads,
    with at least LEAST channels on both sides."""
    (x, xs, xz), (w, ws, wz) = dequantised(left), dequantised(right)
    need_left(x, xs, xz)
    need_bytes(w, ws)
    dims = filled_dims(w)
    r = dims[-1]
    if w.const is None or len(dims) != 4 or dims[2:] != (r, r) or conv.group > 1 or pads(conv):
        raise Skip("it is not one group of constant square windows without padding")
    if (
        (conv.stride or (1, 1)) != (r, r)
        or r == 1
        or static_dims(conv.output)[2:] != tuple(r * n for n in static_dims(x)[2:])
    ):
        raise Skip("windows do not lie side by side")
    need_room(dims[:1])
    if min(dims[:2]) < LEAST:
        raise Skip(f"it has {dims[0]} to {dims[1]} channels: too few")
    if right.block_size or (ws.size > 1 and right.axis % 4 != 1):
        raise Skip("the weights do not have a scale for each output")
    if wz is not None and wz.const is None:
        raise Skip("the zero points of the weights are computed")

    def each(v: Array) -> Array:
        """A vector with a number for each output channel, repeated for each of the r x r results;
        of one element, as a scalar."""
        return np.tile(v.reshape(-1), r * r) if v.size > 1 else v.reshape(())

    taps = w.const.transpose(2, 3, 1, 0).reshape(-1, dims[0], 1, 1)
    zeros = None if nonzero(wz) is None else each(wz.const)  # type: ignore[union-attr, arg-type]
    sums = OPS["ConvInteger"](x, taps, flat(nonzero(xz)), zeros)
    bias = None if b is None else np.tile(b, r * r).reshape(-1, 1, 1)
    y = OPS["Rescale"](sums, each(xs.reshape(()) * ws).reshape(-1, 1, 1), bias)
    return OPS["DepthToSpace"](y, blocksize=r, mode="DCR")


_move = p.DepthToSpace("x").named("move")
_moved: dict[str, Any] = {
    "x": (1, 8, 2, 3),
    **TO_BYTES,
    "move": {"blocksize": 2},
}


@rules.rule(p.QuantizeLinear(_move, const("scale"), opt("zero")).named("q"), **_moved)
def quantised_before_depth(x: Value, move: Node, scale: Array, q: Node) -> Value:
    """quantise(depth_to_space(x)) -> depth_to_space(quantise(x)), with one scale."""
    need_one(scale)
    return with_(move, x=with_(q, x=x))


@rules.rule(
    p.QuantizeLinear(
        p.DequantizeLinear(_move, const("s"), opt("z")).named("d"), const("scale"), opt("zero")
    ).named("q"),
    **_moved | {"x": given("uint8", 1, 8, 2, 3), "s": float32(0.03), "z": np.array(3, np.uint8)},
)
def requantised_before_depth(
    x: Value, move: Node, s: Array, d: Node, scale: Array, q: Node
) -> Value:
    """quantise(dequantise(depth_to_space(x))) -> depth_to_space(quantise(dequantise(x))), with one
    scale each."""
    need_one(scale, s)
    return with_(move, x=with_(q, x=with_(d, x=x)))
