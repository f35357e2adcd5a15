"""Taps of a convolution that only ever see padding are dropped.

Dilated convolutions of small images are mostly such taps: at a dilation of 24, a kernel of 3x3 taps
on an image of 20x20 pixels is one tap.
"""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Dim, Node, Value
from tinsmith.ops.window import window
from tinsmith.passes.facts import Array, shape_of
from tinsmith.passes.manager import register
from tinsmith.rewrite import RuleSet, Skip, const, p, with_

rules = RuleSet("drop-dead-taps", "Taps that only see padding are dropped.")
register("portable")(rules)


@rules.rule(
    p.Conv("x", const("w"), ...).named("conv"),
    x=(1, 2, 5, 6),
    w=(2, 2, 3, 3),
    conv={"dilation": (7, 6), "pad": (7, 6, 7, 6)},
)
def drop_dead_taps(x: Value, w: Array, conv: Node) -> Value:
    """conv(x, w) -> conv(x, w[live taps]) with smaller pads, in known spatial sizes."""
    sizes = shape_of(x)[2:]
    win = window(sizes, w.shape[2:], conv.stride, conv.pad, conv.dilation, conv.auto_pad)
    begin, end, dilation = list(win.begin), list(win.end), list(win.dilation)
    kept: list[slice] = []
    for axis, (size, out) in enumerate(zip(sizes, win.out, strict=True)):
        first, last = _live(
            size, out, win.kernel[axis], win.stride[axis], dilation[axis], begin[axis]
        )
        first = min(first, begin[axis] // dilation[axis])
        dropped = min(win.kernel[axis] - 1 - last, end[axis] // dilation[axis])
        begin[axis] -= first * dilation[axis]
        end[axis] -= dropped * dilation[axis]
        kept.append(slice(first, win.kernel[axis] - dropped))
        if kept[-1].stop - first == 1:
            dilation[axis] = 1
    cropped = w[(slice(None), slice(None), *kept)]
    if cropped.size == w.size:
        raise Skip("every border of the kernel sees pixels")
    if not np.all(np.isfinite(w.astype(np.float64))):
        raise Skip("the weights are not finite, and infinity times a padding of zero is NaN")
    pads = tuple(begin + end)
    weights = np.ascontiguousarray(cropped)
    return with_(conv, w=weights, pad=pads, dilation=tuple(dilation), auto_pad="NOTSET")


def _live(
    size: Dim, out: Dim, taps: int, stride: int, dilation: int, begin: int
) -> tuple[int, int]:
    """The first and the last tap of an axis that reads a pixel in some window."""
    if isinstance(size, str) or isinstance(out, str):
        raise Skip("a spatial size is not known")
    live: list[int] = []
    for k in range(taps):
        place = k * dilation - begin  # of the first window; the others lie a stride apart
        first = max(0, -(place // stride))
        if first < out and first * stride + place < size:
            live.append(k)
    if not live:
        raise Skip("no tap sees a pixel")
    return live[0], live[-1]
