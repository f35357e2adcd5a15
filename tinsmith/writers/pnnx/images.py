"""Writes resizing, sampling, and other operators of images as PNNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.pnnx.images import RESIZES
from tinsmith.graph import Node
from tinsmith.ops.columns import steps_of
from tinsmith.writers.pnnx.export import Export, rank, size, writes
from tinsmith.writers.pnnx.layers import spatial
from tinsmith.writers.rows import constant, inputs_of, need, need_defaults, numbers


@writes("Resize")
def resize(w: Export, node: Node) -> None:
    modes = ("mode", "coordinate_transformation_mode", "nearest_mode")
    need_defaults(node, *modes, "axes", "antialias")
    x, _, scales, sizes = inputs_of(node)
    count = spatial(node)
    corners = node.coordinate_transformation_mode == "align_corners"
    aligned = corners and node.mode != "nearest"
    found = [
        mode
        for mode, (kind, transform, nearest) in RESIZES.items()
        if kind == node.mode
        and (aligned or transform == node.coordinate_transformation_mode)
        and (kind != "nearest" or nearest == node.nearest_mode)
    ]
    if node.mode == "linear":
        found = found[count - 1 : count]
    need(found, f"its modes {node.mode}, {node.coordinate_transformation_mode} are not PyTorch's")
    given = constant(sizes if scales is None else scales, "its sizes").tolist()
    axes = tuple(a % rank(x) for a in node.axes) if node.axes is not None else tuple(range(rank(x)))
    by_axis = dict(zip(axes, given, strict=True))
    for i in {0, 1} & by_axis.keys():
        fixed = 1 if scales is not None else size(x, i)
        need(by_axis.pop(i) == fixed, "it resizes batch or channels")
    need(len(by_axis) == count, "it resizes some of its axes")
    values = tuple(by_axis[i] for i in sorted(by_axis))
    params: dict[str, Any] = {
        "mode": found[0],
        ("size" if scales is None else "scale_factor"): values,
    }
    if node.mode != "nearest":
        params |= {"align_corners": aligned}
    w.put(node, "F.interpolate", **params, **({"antialias": True} if node.antialias else {}))


@writes("DepthToSpace", type="nn.PixelShuffle", factor="upscale_factor")
@writes("SpaceToDepth", type="nn.PixelUnshuffle", factor="downscale_factor")
def pixel_shuffle(w: Export, node: Node, type: str, factor: str) -> None:
    need(node.mode == "CRD", f"its mode is {node.mode}")
    w.put(node, type, **{factor: node.blocksize})


@writes("GridSample")
def grid_sample(w: Export, node: Node) -> None:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.mode, node.mode)
    w.put(
        node, "F.grid_sample", "input grid", mode=mode, padding_mode=node.padding_mode,
        align_corners=node.align_corners,
    )  # fmt: skip


@writes("Col2Im")
def fold(w: Export, node: Node) -> None:
    sizes = {
        k: numbers(v, "its sizes")
        for k, v in zip(("output_size", "kernel_size"), node.inputs[1:], strict=True)
    }
    need(len(sizes["output_size"]) == 2, "its images are not of two axes")
    stride, pads, dilation = steps_of(2, node.stride, node.pad, node.dilation)
    need(pads[:2] == pads[2:], f"its padding {pads} differs before and after an axis")
    w.put(node, "F.fold", padding=pads[:2], stride=stride, dilation=dilation, **sizes)


@writes("AffineGrid")
def affine_grid(w: Export, node: Node) -> None:
    w.put(
        node, "F.affine_grid", "theta", size=numbers(node.inputs[1], "its sizes"),
        align_corners=node.align_corners,
    )  # fmt: skip


@writes("OneHot")
def one_hot(w: Export, node: Node) -> None:
    need_defaults(node)
    depth, values = node.inputs[1:]
    assert values is not None
    usual = numbers(values, "its values") == (0, 1) and values.dtype == np.int64
    need(usual, "its values are not 0 and 1")
    w.put(node, "F.one_hot", num_classes=numbers(depth, "its numbers of classes")[0])
