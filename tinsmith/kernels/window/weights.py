"""Packing of constant weights and biases, in the order in which tiles read them: panel by panel.

`cut` are the panels of a group's output channels, `blocks` says how its input channels are walked.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.builder import Builder, Val
from tinsmith.graph import Array
from tinsmith.kernels.window.tiles import Panels, unroll
from tinsmith.records import dataclass


@dataclass(frozen=True)
class ChannelBlocks:
    """How loops go through input channels, in blocks of which the last may be shorter.

    count  blocks
    width  channels of a block
    last   channels read of the last block, rounded up to whole steps; beyond the last real channel,
           input and weights are zeros
    step   channels of one loop body
    """

    count: int
    width: int
    last: int
    step: int

    @property
    def stored(self) -> int:
        """Channels that each block has in the packed weights."""
        return self.width if self.count > 1 else self.last

    @property
    def padded(self) -> int:
        """How many channels are computed, including those that only fill the last loop body."""
        return (self.count - 1) * self.width + self.last

    def of(self, b: Builder, block: Val | int) -> Val | int:
        """How many channels of block number `block` are computed."""
        if self.last == self.width or self.count == 1:
            return self.last
        return b.minimum(self.width, b.index(self.padded) - block * self.width)


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


def whole_blocks(values: Array, width: int) -> Array:
    """`values` [n, ...] as [blocks, width, ...], with zeros after the last."""
    wide = np.pad(values, [(0, -len(values) % width), *[(0, 0)] * (values.ndim - 1)])
    return wide.reshape(-1, width, *values.shape[1:])


def pack_panels(w: Array, cut: Panels, blocks: ChannelBlocks) -> Array:
    """Pack weights [K, C, *taps] as [panel][channel block][tap][channel][lane of the panel], flat.
    Weights of outputs and channels that do not exist are zeros."""
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
    """The weights of each group of outputs as `pack_panels` packs them, one after the other."""
    if groups == 1:
        return pack_panels(w, cut, blocks)
    return np.concatenate([pack_panels(part, cut, blocks) for part in np.split(w, groups)])


def padded_bias(bias: Array | None, count: int) -> Array:
    """The bias [K], or zeros if None, with zeros appended up to `count` outputs."""
    wide = np.zeros(count, np.float32)
    if bias is not None:
        wide[: len(bias)] = bias
    return wide


def pack_bias(bias: Array, cut: Panels, groups: int = 1) -> Array:
    """The bias [K] in the order of the lanes of each group's panels, flat; zeros in padding."""
    row = cut.count * sum(cut.main) + sum(cut.tail)
    wide = np.zeros((groups, row), bias.dtype)
    wide[:, : len(bias) // groups] = bias.reshape(groups, -1)
    return wide.reshape(-1)
