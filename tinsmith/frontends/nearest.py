"""Resizing to the nearest elements as PyTorch and ncnn do it, which at ties and by rounding choose
other elements than ONNX and our Resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Array, Value
from tinsmith.ops._rules import need_room
from tinsmith.ops.resize import Sampling, axis_tables, resized


def nearest_gathers(
    node: Any, x: Value, axes: Sequence[int], given: Sequence[Value | None], half: bool = False
) -> Value | None:
    """x resized along `axes` to its nearest elements, by a Gather for each; `node` is a SourceNode.
    `given` are (scales, sizes), one of them None; `half`: see `nearest_moves`. None, and no nodes
    are added, where a Resize takes the same elements, or only the run tells sizes."""
    arrays = [None if v is None else v.const for v in given]
    dims = [x.shape[a] for a in axes] if x.shape is not None else [""]
    found = nearest_moves(dims, arrays, half)
    for axis, at in zip(axes, found or (), strict=False):
        x = node.emit("Gather", x, at, axis=axis)
    return None if found is None else x


def nearest_moves(
    dims: Sequence[Any], given: Sequence[Array | None], half: bool = False
) -> list[Array] | None:
    """For axes of sizes `dims`, the indexes that nearest resizing reads along each. `given` are
    (scales, sizes after resizing), one of them None. With `half` coordinates are those of the
    middles of elements, else of their beginnings. None where a Resize reads the same elements, or
    where sizes are not known.

    PyTorch and ncnn multiply by 1 / scale (or the ratio of the sizes) in float32; ONNX, and our
    Resize, divide by the scale."""
    scales, sizes = given
    if (scales is None and sizes is None) or not all(isinstance(d, int) for d in dims):
        return None
    factors = None if scales is None else [float(n) for n in scales]
    after = resized(dims, factors, [] if sizes is None else [int(n) for n in sizes], "stretch")
    rows = zip(dims, after, factors or [None] * len(dims), strict=True)
    found = [nearest(n, int(m), f, half) for n, m, f in rows]
    transform = ("half_pixel", "round_prefer_ceil") if half else ("asymmetric", "floor")
    how = Sampling("nearest", *transform, -0.75, False, False, "stretch")
    ours = {t.axis: t.places[:, 0] for t in axis_tables(dims, [None, scales, sizes], None, how)}
    same = (np.array_equal(ours.get(a, np.arange(len(at))), at) for a, at in enumerate(found))
    return None if all(same) else found


def nearest(before: int, after: int, scale: float | None = None, half: bool = False) -> Array:
    """The index [after] in an axis of `before` elements that each of `after` elements reads: see
    `nearest_moves`; scale None is after / before. Raises BudgetExceeded."""
    need_room((after,), np.float64)
    ratio = (
        np.float32(before) / np.float32(max(after, 1)) if scale is None else np.float32(1 / scale)
    )
    at = (np.arange(after, dtype=np.float32) + np.float32(half / 2)) * ratio
    return np.minimum(np.floor(at).astype(np.int64), before - 1)
