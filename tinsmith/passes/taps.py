"""Taps of a convolution that only ever see padding are dropped, those that mostly do are split off.

Dilated convolutions of small images are mostly such taps: at a dilation of 24, a kernel of 3x3 taps
is one tap on an image of 20x20 pixels; on 32x32, outer taps see a quarter of each axis.
"""

from __future__ import annotations

import itertools
from math import prod

import numpy as np

from tinsmith.graph import Array, Dim, Node, Value
from tinsmith.ops import OPS
from tinsmith.ops.window import window
from tinsmith.passes.facts import shape_of
from tinsmith.passes.manager import register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, opt, p, with_
from tinsmith.sizes import Size

rules = RuleSet("drop-dead-taps", "Taps that only see padding are dropped.")
register("portable")(rules)

far = RuleSet("split-far-taps", "Taps that mostly see padding become products of parts.")
register("machine", devices=("cpu",))(far)

FLOPS_A_BYTE = 16
"""Multiply-adds that must be saved for each byte that the parts move.
Estimated."""


@rules.rule(
    p.Conv("x", const("w"), ...).named("conv"),
    x=(1, 2, 5, 6),
    w=(2, 2, 3, 3),
    conv={"dilation": (7, 6), "pad": (7, 6, 7, 6)},
)
def drop_dead_taps(x: Value, w: Array, conv: Node) -> Value:
    """conv(x, w) -> conv(x, w without outer taps that read only padding), with smaller pads, where
    spatial sizes are known."""
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
    """The first and the last tap of an axis that reads a pixel, not only padding, in some window.
    `size` is the input's extent, `out` the output's, `taps` the kernel's, `begin` the padding
    before. All taps, if `out` is free and there is no dilation. Raises Skip if a size is not known
    or no tap reads a pixel."""
    if isinstance(size, str) or isinstance(out, str):
        raise Skip("a spatial size is not known")
    if isinstance(out, Size) and dilation == 1:  # only images of a few pixels have such taps
        return 0, taps - 1
    live: list[int] = []
    for k in range(taps):
        place = k * dilation - begin  # of the first window; the others lie a stride apart
        first = max(0, -(place // stride))
        if first < out and first * stride + place < size:
            live.append(k)
    if not live:
        raise Skip("no tap sees a pixel")
    return live[0], live[-1]


@dataclass(frozen=True)
class Reach:
    """What one tap of an axis reads: for outputs [start, stop) pixels, one after the other from
    pixel `source` on; for other outputs padding."""

    start: int
    stop: int
    source: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@far.rule(
    p.Conv("x", const("w"), opt(const("b"))).named("conv"),
    tolerance=2e-5,
    x=(1, 512, 4, 5),
    w=(512, 512, 3, 3),
    b=(512,),
    conv={"dilation": (3, 4), "pad": (3, 4, 3, 4)},
)
def split_far_taps(x: Value, w: Array, b: Array | None, conv: Node) -> Value:
    """conv(x, w, b) -> sum over taps of pad(conv(slice(x), w[tap])) + b, for one group and stride
    1. Taps lie at least half the output apart, one reads pixels for all outputs, and FLOPS_A_BYTE
    multiply-adds or more are saved for each byte that is moved."""
    reaches = _reaches(x, w, conv)
    parts = list(itertools.product(*(range(len(r)) for r in reaches)))
    seen = {k: tuple(r[i] for r, i in zip(reaches, k, strict=True)) for k in parts}
    pixels = prod(conv.output.dims[2:])
    _worth(w, [prod(r.count for r in s) for s in seen.values()], pixels)
    full = max(parts, key=lambda k: prod(r.count for r in seen[k]))
    if prod(r.count for r in seen[full]) != pixels:
        raise Skip("no tap sees the image as a whole")
    spatial = (1,) * len(reaches)

    def part(k: tuple[int, ...], bias: Array | None) -> Value:
        weights = np.ascontiguousarray(w[(slice(None), slice(None), *k)])
        weights = weights.reshape(*w.shape[:2], *spatial)
        sources = [(r.source, r.source + r.count) for r in seen[k]]
        return OPS["Conv"](_cut(x, sources), weights, bias)

    y = part(full, b)
    for k in parts:
        if k != full and all(r.count for r in seen[k]):
            y = OPS["Add"](y, _within(part(k, None), seen[k], y))
    return y


def _reaches(x: Value, w: Array, conv: Node) -> list[list[Reach]]:
    """For each axis a `Reach` for each tap. Raises Skip for groups, strides, one tap, unknown sizes
    and taps less than half the output apart."""
    sizes = shape_of(x)[2:]
    win = window(sizes, w.shape[2:], conv.stride, conv.pad, conv.dilation, conv.auto_pad)
    if conv.group != 1 or set(win.stride) != {1}:
        raise Skip("there are groups or strides")
    reaches = []
    for axis, (size, out) in enumerate(zip(sizes, win.out, strict=True)):
        if isinstance(size, str) or isinstance(out, str):
            raise Skip("a spatial size is not known")
        gap, begin = win.dilation[axis], win.begin[axis]
        if win.kernel[axis] > 1 and 2 * gap < out:
            raise Skip(f"taps {gap} apart see most of {out} pixels")
        axis_reaches = []
        for k in range(win.kernel[axis]):
            start = min(max(0, begin - k * gap), out)
            stop = max(start, min(out, size + begin - k * gap))
            axis_reaches.append(Reach(start, stop, start - begin + k * gap))
        reaches.append(axis_reaches)
    if prod(w.shape[2:]) == 1:
        raise Skip("there is one tap")
    return reaches


def _worth(w: Array, counts: list[int], pixels: int) -> None:
    saved = w.shape[0] * w.shape[1] * (len(counts) * pixels - sum(counts))
    moved = 4 * sum((w.shape[1] + 4 * w.shape[0]) * n for n in counts) + 12 * w.shape[0] * pixels
    if 2 * sum(counts) > len(counts) * pixels or saved < FLOPS_A_BYTE * moved:
        raise Skip(f"it would save {saved} multiply-adds, and move {moved} bytes")


def _cut(x: Value, ranges: list[tuple[int, int]]) -> Value:
    """The part of x within `ranges`, one [start, stop) for each spatial axis; x if that is all."""
    whole = [(0, d) for d in shape_of(x)[2:]]
    if ranges == whole:
        return x
    starts, stops = (np.array(side, np.int64) for side in zip(*ranges, strict=True))
    return OPS["Slice"](x, starts, stops, np.arange(2, 2 + len(ranges)))


def _within(part: Value, reach: tuple[Reach, ...], y: Value) -> Value:
    """`part` padded with zeros to the shape of y; `reach` tells where it lies on each axis."""
    sizes = shape_of(y)[2:]
    before = [r.start for r in reach]
    after = [n - r.stop for n, r in zip(sizes, reach, strict=True)]  # type: ignore[operator]
    pads = np.array([0, 0, *before, 0, 0, *after], np.int64)
    return OPS["Pad"](part, pads, np.zeros((), y.dtype))
