"""Importers of layers that move pixels to channels or back, reorder channels, or make columns of
blocks of pixels (im2col and col2im)."""

from __future__ import annotations

import numpy as np

from tinsmith import budget
from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Result, channels_of, layer
from tinsmith.frontends.ncnn.window import AXES, pads, window


@layer("ShuffleChannel")
def shuffle(node: Node) -> Result:
    x, group = node[0], node.attr("group")
    c = channels_of(x, "it")
    if node.attr("reverse"):
        group = c // group
    if group < 1 or c % group:
        raise Unsupported(f"{c} channels are not of {group} groups")
    return node.emit("ChannelShuffle", x, groups=group)


@layer("PixelShuffle", "Reorg")
def pixels(node: Node) -> Result:
    mode = "DCR" if node.attr("mode") else "CRD"
    op = "SpaceToDepth" if node.type == "Reorg" else "DepthToSpace"
    return node.emit(op, node[0], mode=mode, **node.named())


def _blocks(node: Node) -> dict[str, tuple[int, ...]]:
    pad = pads(node, AXES[2])
    if min(pad) < 0:
        raise Unsupported("its padding keeps the size")
    return {**window(node, AXES[2]), "pad": pad}


@layer("Fold")
def fold(node: Node) -> Result:
    image = node.ints(node.attr("output_h"), node.attr("output_w"))
    block = node.ints(node.attr("kernel_h"), node.attr("kernel_w"))
    return node.emit("Col2Im", node[0], image, block, **_blocks(node))


@layer("Unfold")
def unfold(node: Node) -> Result:
    """Import Unfold (im2col), as a depthwise convolution that picks the elements of each block."""
    x, told = node[0], _blocks(node)
    kernel = node.attr("kernel_h"), node.attr("kernel_w")
    channels, taps = channels_of(x, "it"), kernel[0] * kernel[1]
    budget.check("constants", 4 * channels * taps * taps, f"the blocks of {node.label!r}")
    if value := node.attr("pad_value"):
        x = node.padded(x, told["pad"], value)
        told["pad"] = (0, 0, 0, 0)
    w = np.tile(np.eye(taps, dtype=np.float32), (channels, 1)).reshape(-1, 1, *kernel)
    y = node.emit("Conv", x, w, group=channels, **told)
    return node.reshaped(y, channels * taps, -1)
