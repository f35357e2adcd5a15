"""Weights in the order in which a tile reads them: panel by panel, without gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.kernels.window.tiles import Panels, unroll
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ChannelBlocks:
    """How input channels are walked: `count` blocks, of which the last may be shorter.

    `step` channels make one loop body; `last` is the channels read of the last block, rounded up
    to whole steps (the lanes beyond the last channel are zero, in the input and the weights).
    `stored` is the channels of a block in the packed weights.
    """

    count: int
    width: int
    last: int
    step: int

    @property
    def stored(self) -> int:
        return self.width if self.count > 1 else self.last

    @property
    def padded(self) -> int:
        """How many channels are computed, with those that only fill the last loop body."""
        return (self.count - 1) * self.width + self.last

    def of(self, b: Builder) -> Callable[[Val | int], Val | int]:
        """A function that gives how many channels of the block of a number are computed."""

        def channels(block: Val | int) -> Val | int:
            if self.last == self.width or self.count == 1:
                return self.last
            return b.minimum(self.width, b.index(self.padded) - block * self.width)

        return channels


def channel_blocks(channels: int, width: int) -> ChannelBlocks:
    """How `channels` input channels are walked in blocks of `width`."""
    count = -(-channels // width)
    if count == 1 and channels < width:
        step = unroll(channels)
        if -(-channels // step) * step <= width:
            return ChannelBlocks(1, width, -(-channels // step) * step, step)
    step = unroll(width)
    last = channels - (count - 1) * width
    return ChannelBlocks(count, width, -(-last // step) * step, step)


def pack_panels(w: Array, cut: Panels, blocks: ChannelBlocks) -> Array:
    """[K, C, *taps] as [panel][channel block][tap][channel][the panel's lanes], flat.

    Outputs and channels that do not exist are zeros.
    """
    k, c = w.shape[:2]
    flat = wide = w.reshape(k, c, -1)
    whole, tail = cut.count * sum(cut.main), sum(cut.tail)
    shape = whole + tail, blocks.count * blocks.stored, flat.shape[2]
    if flat.shape != shape:
        wide = np.zeros(shape, w.dtype)
        wide[:k, :c] = flat
    packed = np.empty(wide.size, w.dtype)
    middle = packed[: wide[:whole].size]
    for part, row, out in (
        (wide[:whole], sum(cut.main), middle),
        (wide[whole:], tail, packed[middle.size :]),
    ):
        if len(part):
            panel = part.reshape(-1, row, blocks.count, blocks.stored, shape[2])
            panel = panel.transpose(0, 2, 4, 3, 1)
            out.reshape(panel.shape)[...] = panel
    return packed


def pack_groups(w: Array, cut: Panels, blocks: ChannelBlocks, groups: int) -> Array:
    """`pack_panels` of each group of outputs, one after the other."""
    if groups == 1:
        return pack_panels(w, cut, blocks)
    return np.concatenate([pack_panels(part, cut, blocks) for part in np.split(w, groups)])


def padded_bias(bias: Array | None, count: int) -> Array:
    """The bias, or zeros, for `count` outputs, with zeros for those that do not exist."""
    wide = np.zeros(count, np.float32)
    if bias is not None:
        wide[: len(bias)] = bias
    return wide


def pack_bias(bias: Array, cut: Panels, groups: int = 1) -> Array:
    """The bias in the order of the lanes of each group's panels; zeros for missing outputs."""
    row = cut.count * sum(cut.main) + sum(cut.tail)
    wide = np.zeros((groups, row), bias.dtype)
    wide[:, : len(bias) // groups] = bias.reshape(groups, -1)
    return wide.reshape(-1)
