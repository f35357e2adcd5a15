"""Importers of resizing and of grid sampling."""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.expression import sizes_of
from tinsmith.frontends.ncnn.node import Node, Result, Size, layer, rank, shape
from tinsmith.frontends.nearest import nearest_gathers
from tinsmith.graph import Value


@layer("Interp")
def interp(node: Node) -> Result:
    """Import Interp, a resize: of a matrix along its width, of images along both axes; each element
    of a vector becomes an image of this one number. Raises Unsupported."""
    x, kind = node[0], node.attr("resize_type")
    if rank(x) == 4 and shape(x)[2] == 1:
        x = node.emit("Squeeze", x, node.ints(2))
    if rank(x) > 3:
        raise Unsupported("ncnn gives the first of several depths alone")
    scales = {"h": node.attr("height_scale"), "w": node.attr("width_scale")}
    sizes, by_scales = _sizes(node, x, scales)
    letters = ("w",) if rank(x) == 2 else ("h", "w")
    wanted = [sizes[a] for a in letters]
    corners = bool(node.attr("align_corner"))
    if any(isinstance(m, int) and m < 1 for m in wanted):
        raise Unsupported(f"its output would have the size {wanted}")
    if rank(x) == 1:
        column = node.reshaped(x, node.dim(x, 1), 1, 1)
        return node.emit("Expand", column, node.joined((1, 1, *wanted)))
    if kind not in (1, 2, 3):
        raise Unsupported(f"its resize_type {kind} is not known")
    axes = tuple(range(rank(x) + 1 - len(letters), rank(x) + 1))
    mode = ("nearest", "linear", "cubic")[kind - 1]
    kept = all(m == shape(x)[a] for m, a in zip(wanted, axes, strict=True))
    if kept and not (by_scales and mode == "cubic"):
        return x
    attrs: dict[str, Any] = {"mode": mode, "axes": axes}
    if mode == "nearest":
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    elif corners:
        attrs["coordinate_transformation_mode"] = "align_corners"
    factors = targets = None
    if by_scales and not (corners and mode != "nearest"):
        given = [scales[a] for a in letters]
        factors = (
            _copying(node, x, axes, wanted, given) if mode == "linear" else _reals(node, given)
        )
    else:
        targets = node.joined(wanted)
    if mode == "nearest":
        found = nearest_gathers(node, x, axes, (factors, targets))
        if found is None:
            given = None if factors is None else [scales[a] for a in letters]
            found = _nearest(node, x, axes, wanted, given)
        if found is not None:
            return found
    return node.emit("Resize", x, None, factors, targets, **attrs)


def _sizes(node: Node, x: Value, scales: dict[str, float]) -> tuple[dict[str, Size], bool]:
    """The output sizes {"h": height, "w": width} of an Interp, and whether they follow from its
    scales (no sizes are given). Raises Unsupported."""
    told = {"h": node.attr("output_height"), "w": node.attr("output_width")}
    expression = node.attr("size_expr")
    if node.attr("dynamic_target_size"):
        return {a: node.size(node[1], a) for a in "hw"}, False
    if expression:
        found = sizes_of(node, expression)
        if len(found) > 2:
            raise Unsupported(f"its expression {expression!r} tells {len(found)} sizes")
        return dict(zip("wh", (*found, node.size(x, "h")), strict=False)), False
    if all(told.values()):
        return dict(told), False
    return {a: _scaled(node, x, a, scales[a]) for a in "hw"}, True


def _scaled(node: Node, x: Value, letter: str, scale: float) -> Size:
    size = node.size(x, letter) if rank(x) > 1 else 1
    if isinstance(size, int):
        return int(np.float32(size) * np.float32(scale))
    real = node.emit("Mul", node.emit("Cast", size, to="float32"), node.const(np.float32(scale)))
    return node.emit("Cast", real, to="int64")


def _nearest(
    node: Node, x: Value, axes: tuple[int, ...], wanted: list[Size], scales: list[float] | None
) -> Value | None:
    """x resized to the sizes `wanted`, to its nearest elements, by Gathers, along axes whose sizes
    only the run tells: element o reads floor(o * (1 / scale)), without `scales` floor(o * (size /
    wanted size)), or o where no size changes. None where all sizes are known (see
    `nearest_gathers`), or all scales are powers of two: a Resize reads the same."""
    known = all(isinstance(n, int) for n in (*(shape(x)[a] for a in axes), *wanted))
    if known or (scales and all(frexp(s)[0] == 0.5 for s in scales)):
        return None
    sizes = [node.joined([node.dim(x, a)]) for a in axes]
    kept = [node.emit("Equal", node.joined([m]), n) for m, n in zip(wanted, sizes, strict=True)]
    whole = kept[0] if len(kept) == 1 else node.emit("And", *kept)
    for k, (axis, before, size) in enumerate(zip(axes, sizes, wanted, strict=True)):
        count = node.const(size) if isinstance(size, int) else node.emit("Squeeze", size)
        places = node.emit("Range", node.const(0), count, node.const(1))
        if scales is None:
            both = (node.emit("Cast", v, to="float32") for v in (before, node.joined([size])))
            ratio = node.emit("Div", *both)
        else:
            ratio = node.const(np.float32(1 / scales[k]))
        at = node.emit("Mul", node.emit("Cast", places, to="float32"), ratio)
        last = node.emit("Sub", before, node.ints(1))
        at = node.emit("Min", node.emit("Cast", at, to="int64"), last)
        x = node.emit("Gather", x, node.emit("Where", whole, places, at), axis=axis)
    return x


def _reals(node: Node, numbers: list[float]) -> Value:
    return node.const(np.array(numbers, np.float32))


def _copying(
    node: Node, x: Value, axes: tuple[int, ...], wanted: list[Size], scales: list[float]
) -> Value:
    """The factors of a linear Interp of x as one float32 vector, one for each of `axes`: that in
    `scales`, or 1 if the size in `wanted` is the axis's own (compared in the run if only the run
    knows it), because ncnn copies along such an axis."""
    found: list[Any] = []
    for axis, size, scale in zip(axes, wanted, scales, strict=True):
        if isinstance(size, int):
            found.append(1.0 if size == shape(x)[axis] else scale)
        elif 1 < scale < 1.5:  # of sizes of 2 and more, others change all
            same = node.emit("Equal", size, node.dim(x, axis))
            found.append(node.emit("Where", same, _reals(node, [1.0]), _reals(node, [scale])))
        else:
            found.append(scale)
    if not any(isinstance(f, Value) for f in found):
        return _reals(node, found)
    parts = [f if isinstance(f, Value) else _reals(node, [f]) for f in found]
    return parts[0] if len(parts) == 1 else node.emit("Concat", *parts, axis=0)


@layer("GridSample")
def grid_sample(node: Node) -> Result:
    x, grid = node.alike(node[0], node[1])
    kinds, edges = ("", "linear", "nearest", "cubic"), ("", "zeros", "border", "reflection")
    mode, edge = node.attr("sample_type"), node.attr("padding_mode")
    if not (0 < mode < 4 and 0 < edge < 4):
        raise Unsupported(f"its sample_type {mode} and padding_mode {edge} are not known")
    if node.attr("permute_fusion"):
        n = rank(grid) + 1
        grid = node.emit("Transpose", grid, perm=(0, *range(2, n), 1))
    return node.emit(
        "GridSample", x, grid, mode=kinds[mode], padding_mode=edges[edge],
        align_corners=bool(node.attr("align_corner")),
    )  # fmt: skip
