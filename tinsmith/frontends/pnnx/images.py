"""Importers of padding, resizing, grid sampling, im2col (unfold) and col2im (fold)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.nearest import nearest_gathers
from tinsmith.frontends.pnnx.expression import size_of
from tinsmith.frontends.pnnx.layers import adaptive, each, each_size, kinds, pad_mode
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.graph import Value


def padded(node: PnnxNode, x: Value, pads: Sequence[int], mode: str, value: Any) -> Value:
    """x padded as by PyTorch's F.pad: `pads` are (before, after) of the last axis, then of the one
    before, and so on; `value` (None: 0) fills in the mode "constant". Raises Unsupported for
    padding that does not fit x."""
    count = len(pads) // 2
    rank = node.rank(x)
    if len(pads) % 2 or count > rank or not all(isinstance(p, int) for p in pads):
        raise Unsupported(f"its padding {pads} does not fit an input of rank {rank}")
    ordered = [*pads[::2][::-1], *pads[1::2][::-1]]
    filler = node.number(value or 0, x) if mode == "constant" else None
    axes = node.ints(*range(rank - count, rank))
    return node.emit("Pad", x, node.ints(*ordered), filler, axes, mode=pad_mode(mode))


@operator("F.pad")
def pad(
    node: PnnxNode, input: Value, *, pad: Any, mode: str = "constant", value: Any = None
) -> Value:
    return padded(node, input, each_size(pad), mode, value)


@operator(
    *kinds(
        "nn.ConstantPad", "nn.ZeroPad", "nn.ReflectionPad", "nn.ReplicationPad", "nn.CircularPad"
    )
)
def pad_module(node: PnnxNode, input: Value, *, padding: Any, value: float = 0.0) -> Value:
    modes = {"Refl": "reflect", "Repl": "replicate", "Circ": "circular"}
    rank = int(node.type[-2])
    return padded(
        node, input, each(padding, 2 * rank), modes.get(node.type[3:7], "constant"), value
    )


@operator(
    *("nn.Upsample", "nn.UpsamplingNearest2d", "nn.UpsamplingBilinear2d", "F.interpolate"),
    *("F.upsample", "F.upsample_nearest", "F.upsample_bilinear"),
)
def resize(
    node: PnnxNode, input: Value, *, size: Any = None, scale_factor: Any = None,
    mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Value:  # fmt: skip
    if node.type.lower().endswith(("bilinear", "bilinear2d")):
        mode, align_corners = "bilinear", True if align_corners is None else align_corners
    rank = node.rank(input) - 2
    if mode == "area":
        return adaptive(node, input, size, rank, "mean")
    if mode not in RESIZES:
        raise Unsupported(f"its mode {mode!r} is not one of {', '.join(RESIZES)}")
    kind, transform, nearest = RESIZES[mode]
    transform = "align_corners" if align_corners else transform
    scales = sizes = None
    if size not in (None, ()) if not isinstance(size, Value) else True:
        sizes = _for_each(node, size, rank)
    elif recompute_scale_factor:
        factors = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * rank
        sizes = node.ints(*(int(node.size(input, i) * f) for i, f in enumerate(factors, 2)))
    else:
        factors = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,)
        scales = node.const(np.array(factors * (rank // len(factors)), np.float32))
    if kind == "nearest":
        half = mode == "nearest-exact"
        found = nearest_gathers(node, input, range(2, rank + 2), (scales, sizes), half)
        if found is not None:
            return found
    return node.emit(
        "Resize", input, None, scales, sizes, mode=kind, coordinate_transformation_mode=transform,
        nearest_mode=nearest, antialias=antialias, axes=tuple(range(2, rank + 2)),
    )  # fmt: skip


RESIZES = {
    "nearest": ("nearest", "asymmetric", "floor"),
    "nearest-exact": ("nearest", "half_pixel", "round_prefer_ceil"),
    "linear": ("linear", "half_pixel", "round_prefer_floor"),
    "bilinear": ("linear", "half_pixel", "round_prefer_floor"),
    "trilinear": ("linear", "half_pixel", "round_prefer_floor"),
    "bicubic": ("cubic", "half_pixel", "round_prefer_floor"),
}
"""PyTorch's mode -> (mode, coordinate transform, rounding) of our Resize."""


def _for_each(node: PnnxNode, size: Any, rank: int) -> Value:
    """The sizes (never factors) of a resize as a vector, one for each of `rank` axes. `size` is one
    number (or value of rank 0) for all, or has one for each; how many is not checked here."""
    if isinstance(size, int):
        size = (size,) * rank
    value = node.tensor(size)
    return node.emit("Expand", value, node.ints(rank)) if value.shape == () else value


@operator("nn.Unfold", "F.unfold")
def unfold(
    node: PnnxNode, input: Value, *, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Value:  # fmt: skip
    kernel = each(kernel_size, 2)
    channels, count = node.size(input, 1), prod(kernel)
    node.spend(channels * count * count * input.dtype.itemsize)
    taps = np.tile(np.eye(count, dtype=input.dtype).reshape(count, 1, *kernel), (channels, 1, 1, 1))
    y = node.emit(
        "Conv", input, taps, stride=each(stride, 2), pad=each(padding, 2) * 2,
        dilation=each(dilation, 2), group=channels,
    )  # fmt: skip
    if y.rank is None:
        return node.emit("Flatten", y, axis=2)
    return node.emit("Reshape", y, node.ints(*node.kept(y, 2), -1))


@operator("nn.Fold", "F.fold")
def fold(
    node: PnnxNode, input: Value, *, output_size: Any, kernel_size: Any, dilation: Any = 1,
    padding: Any = 0, stride: Any = 1,
) -> Value:  # fmt: skip
    sizes = [node.ints(*each(v, 2)) for v in (output_size, kernel_size)]
    return node.emit(
        "Col2Im", input, *sizes, dilation=each(dilation, 2), pad=each(padding, 2) * 2,
        stride=each(stride, 2),
    )  # fmt: skip


@operator("nn.PixelShuffle", "F.pixel_shuffle", "nn.PixelUnshuffle", "F.pixel_unshuffle")
def pixel_shuffle(
    node: PnnxNode, input: Value, *, upscale_factor: Any = None, downscale_factor: Any = None
) -> Value:
    size = upscale_factor or downscale_factor
    if not isinstance(size, int) or size < 1:
        raise Unsupported(f"its factor is {size}")
    op = "SpaceToDepth" if "unshuffle" in node.type.lower() else "DepthToSpace"
    lead, x = node.rank(input) - 3, input
    if lead != 1:
        ends = [node.size(x, lead + i) for i in range(3)]
        x = node.emit("Reshape", x, node.ints(-1, *ends))
    y = node.emit(op, x, blocksize=size, mode="CRD")
    if lead == 1:
        return y
    made = [node.size(y, i) for i in (1, 2, 3)]
    return node.emit("Reshape", y, [*(size_of(node, input, i) for i in range(lead)), *made])


@operator("F.grid_sample")
def grid_sample(
    node: PnnxNode, input: Value, grid: Value, *, mode: str = "bilinear",
    padding_mode: str = "zeros", align_corners: Any = False,
) -> Value:  # fmt: skip
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    return node.emit(
        "GridSample", input, grid, mode=modes.get(mode, mode), padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )  # fmt: skip


@operator("F.affine_grid")
def affine_grid(node: PnnxNode, theta: Value, *, size: Any, align_corners: Any = False) -> Value:
    return node.emit("AffineGrid", theta, size, align_corners=bool(align_corners))


@operator("torchvision.ops.RoIAlign")
def roi_align(
    node: PnnxNode, input: Value, rois: Value, *, output_size: Any, spatial_scale: float = 1.0,
    sampling_ratio: int = -1, aligned: bool = False,
) -> Value:  # fmt: skip
    parts = [node.slice(rois, node.ints(a), node.ints(b), [1]) for a, b in ((0, 1), (1, 5))]
    at = node.cast(node.emit("Squeeze", parts[0], node.ints(1)), "int64")
    height, width = each(output_size, 2)
    return node.emit(
        "RoiAlign", input, parts[1], at, output_height=height, output_width=width,
        spatial_scale=float(spatial_scale), sampling_ratio=max(sampling_ratio, 0),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
