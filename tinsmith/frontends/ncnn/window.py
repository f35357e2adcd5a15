"""The parameters of ncnn's convolutions and pooling as attributes of our operators: axes, strides,
dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, known, shape
from tinsmith.graph import Value

AXES = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
BEGINS = {"w": "pad_left", "h": "pad_top", "d": "pad_front"}
ENDS = {"w": "pad_right", "h": "pad_bottom", "d": "pad_behind"}
MORE = {"w": "output_pad_right", "h": "output_pad_bottom", "d": "output_pad_behind"}
SAME, SAME_LOWER = -233, -234


def spatial(type: str) -> tuple[str, ...]:
    """The letters of the spatial axes of a layer type: ("d", "h", "w") for "Convolution3D"."""
    return AXES[{"1D": 1, "3D": 3}.get(type[-2:], 2)]


def window(node: Node, letters: tuple[str, ...]) -> dict[str, Any]:
    """{"stride": ..., "dilation": ...} of a layer with the spatial axes `letters`."""
    return {
        ours: tuple(node.attr(f"{ours}_{a}") for a in letters) for ours in ("stride", "dilation")
    }


def pads(node: Node, letters: tuple[str, ...]) -> tuple[int, ...]:
    """The paddings of a layer, all begins, then all ends; SAME and SAME_LOWER among them are codes
    for padding that keeps the size."""
    return tuple(node.attr(names[a]) for names in (BEGINS, ENDS) for a in letters)


def padding(node: Node, letters: tuple[str, ...]) -> dict[str, Any]:
    """The padding of a convolution as attributes of our Conv: `auto_pad` where all paddings are the
    code SAME or SAME_LOWER, else `pad`, all 0 where none is positive."""
    told = pads(node, letters)
    for code, name in ((SAME, "SAME_UPPER"), (SAME_LOWER, "SAME_LOWER")):
        if all(p == code for p in told):
            return {"auto_pad": name}
    return {"pad": told if any(p > 0 for p in told) else (0,) * len(told)}


def same_padding(
    x: Value, letters: tuple[str, ...], spans: Sequence[int], strides: Sequence[int], lower: bool,
    numbers: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The SAME padding of x as ncnn pads, as attributes of our Conv or pooling: {"auto_pad": ...},
    or {"pad": ...} with `numbers`, and where auto_pad has no word for it: with `lower`, for an odd
    padding, ncnn has one more at the begin, but along depths ("d" in `letters`) at the end. `spans`
    and `strides`: elements from the first to the last of a window and between two windows, an axis
    each. Raises Unsupported for strides below 1, where numbers depend on unknown sizes, and where
    ncnn would pad by less than 0."""
    if min(strides) < 1:
        raise Unsupported(f"its stride is {tuple(strides)}")
    depths = lower and "d" in letters
    if numbers or (depths and max(strides) > 1):
        known(x, "padding that keeps the size")
    begins, ends = [], []
    for a, size, span, stride in zip(letters, shape(x)[2:], spans, strides, strict=True):
        least = span + (0 if isinstance(size, str) else (size - 1) // stride * stride - size)
        most = span - 1 if isinstance(size, str) else least
        least -= stride if isinstance(size, str) else 0
        half = int(least / 2)
        begins.append(least - half if lower and a != "d" else half)
        ends.append(most - begins[-1])
    cut = any(b < 0 and a != "h" for b, a in zip(begins, letters, strict=True))
    if cut and max(b + e for b, e in zip(begins, ends, strict=True)) > 0:
        raise Unsupported(
            f"its padding keeps the size, and some of its strides {tuple(strides)} are beyond its "
            f"windows {tuple(spans)}: ncnn pads {shape(x)} by {begins} then, writing outside of it"
        )
    if not numbers and not depths:
        return {"auto_pad": "SAME_LOWER" if lower else "SAME_UPPER"}
    return {"pad": tuple(max(n, 0) for n in (*begins, *ends))}
