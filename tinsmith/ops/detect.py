"""Boxes and regions: non-maximum suppression and pooling over regions of interest."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from tinsmith.graph import Array, Dim, Type, Value, agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import need_data, need_room
from tinsmith.ops.precision import widen
from tinsmith.sizes import smallest

AT_ONCE = 256  # boxes of a group in `suppress`
PAIRS = 1 << 15  # of boxes whose overlaps are computed at once, so that they stay in a cache


def _number(a: Array | None, default: Any) -> Any:
    return default if a is None or not a.size else np.asarray(a).reshape(-1)[0]


@op()
def NonMaxSuppression(
    boxes, scores, max_output_boxes_per_class=None, iou_threshold=None, score_threshold=None, *,
    center_point_box=0,
):  # fmt: skip
    """rows (batch, class, box) [K,3] = the boxes that are kept of each class, best score first

    boxes [N,B,4] as two opposite corners (y, x, y, x), or centre and size (x, y, w, h) with
    center_point_box 1; scores [N,C,B]. A box is left out if its intersection over union with one
    that is kept exceeds iou_threshold (0 by default), or its score does not exceed score_threshold
    (if given). Of each class max_output_boxes_per_class (0 by default) are kept at most.
    """
    most = int(_number(max_output_boxes_per_class, 0))
    overlap = float(_number(iou_threshold, 0.0))
    least = _number(score_threshold, None)
    rows = [np.zeros((0, 3), np.int64)]
    for n in range(boxes.shape[0]):
        corners = np.ascontiguousarray(corners_of(widen(boxes[n]), center_point_box).T)
        for c in range(scores.shape[1]):
            s = widen(scores[n, c])
            high = np.arange(s.size) if least is None else np.flatnonzero(s > least)
            order = high[np.argsort(-s[high], kind="stable")]
            kept = suppress(corners, order, overlap, most)
            found = np.full((len(kept), 3), (n, c, 0), np.int64)
            found[:, 2] = kept
            rows.append(found)
    return np.concatenate(rows)


def corners_of(boxes: Array, centred: int) -> Array:
    """Boxes [B,4] by their low and their high corner, (low, low, high, high). They are given by any
    two opposite corners, or, if `centred`, by centre and size; the axes keep their order."""
    a, b = boxes[:, :2], boxes[:, 2:]
    if centred:
        a, b = a - b / 2, a + b / 2
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], axis=1)


def suppress(boxes: Array, order: Array, overlap: float, most: int) -> list[int]:
    """The indexes of the boxes that non-maximum suppression keeps, at most `most`, best first. A
    box is kept if its intersection over union with none kept before exceeds `overlap`. `boxes`
    [4,B] are corners (low, low, high, high), `order` the indexes of candidates, best first."""
    kept: list[int] = []
    while order.size and len(kept) < most:
        count = min(AT_ONCE, max(32, (most - len(kept)) * 5 // 4))
        some, order = order[:count], order[count:]
        if kept:
            some = some[~_overlapping(boxes[:, some], boxes[:, kept], overlap).any(axis=1)]
        rows = np.packbits(
            _overlapping(boxes[:, some], boxes[:, some], overlap), axis=1, bitorder="little"
        )
        width, data, gone = rows.shape[1], rows.tobytes(), 0
        for place, i in enumerate(some.tolist()):
            if not gone >> place & 1 and len(kept) < most:
                kept.append(i)
                gone |= int.from_bytes(data[place * width : (place + 1) * width], "little")
    return kept


def _overlapping(some: Array, others: Array, overlap: float) -> Array:
    """[m,n] of bool: whether box i of `some` [4,m] and box j of `others` [4,n] have an intersection
    over union of more than `overlap`. Boxes are corners (low, low, high, high)."""
    m, n = some.shape[1], others.shape[1]
    step, found = max(1, PAIRS // max(n, 1)), np.empty((m, n), np.bool_)
    with np.errstate(all="ignore"):
        areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (some, others)]
        for at in range(0, m, step):
            part, sides = some[:, at : at + step], []
            for axis in (0, 1):
                side = np.minimum(part[axis + 2, :, None], others[axis + 2])
                side -= np.maximum(part[axis, :, None], others[axis])
                sides.append(np.maximum(side, 0, out=side))
            common = np.multiply(*sides, out=sides[0])
            union = np.add(areas[0][at : at + step, None], areas[1], out=sides[1])
            union -= common
            too_much = np.greater(common / union, overlap, out=found[at : at + step])
            too_much &= common > 0
            too_much &= union > 0
    return found


@NonMaxSuppression.type
def _(
    boxes, scores, max_output_boxes_per_class=None, iou_threshold=None, score_threshold=None, *,
    center_point_box,
):  # fmt: skip
    need(center_point_box in (0, 1), f"center_point_box must be 0 or 1, it is {center_point_box}")
    for name, v in (("boxes", boxes), ("scores", scores)):
        need(v.rank in (None, 3), f"{name} needs rank 3, it has {v.rank}")
    if boxes.shape is not None:
        need(agree(boxes.shape[2], 4), "a box is 4 numbers")
        if scores.shape is not None:
            for i, j, what in ((0, 0, "batches"), (1, 2, "boxes")):
                a, b = boxes.shape[i], scores.shape[j]
                need(agree(a, b), f"boxes has {a} {what}, scores has {b}")
    return Type(np.dtype(np.int64), (fresh(), 3))


@NonMaxSuppression.count
def _(boxes, scores, most=None, overlap=None, least=None, *, center_point_box):
    kept = scores.dims[2]
    if most is None or most.const is not None:
        kept = smallest(kept, max(int(_number(None if most is None else most.const, 0)), 0))
    return prod(scores.dims[:2]) * kept


@op()
def RoiAlign(
    x, rois, batch_indices, *, mode="avg", output_height=1, output_width=1, sampling_ratio=0,
    spatial_scale=1.0, coordinate_transformation_mode="half_pixel", cut=False,
):  # fmt: skip
    """y[r,c,i,j] = the mean (or maximum) of samples of x in cell (i, j) of region r

    Region r is rois[r] = (x1, y1, x2, y2) * spatial_scale in x[batch_indices[r]], moved by -1/2
    with half_pixel; with output_half_pixel it is not moved, and at least 1x1. A cell has
    sampling_ratio^2 samples, or, for 0, one for each element that it covers. Samples are
    interpolated linearly; for mode "max" the maximum is over the four weighted neighbours of all
    samples. With `cut` (mode "avg" only) cells are clipped to x before their samples are placed.
    A region whose width or height is NaN or infinite is refused.
    """
    shifted = coordinate_transformation_mode == "half_pixel"
    size = (output_height, output_width)
    wide = widen(x)
    need_room((rois.shape[0], x.shape[1], *size), wide.dtype)
    y = np.zeros((rois.shape[0], x.shape[1], *size), wide.dtype)
    for r, roi in enumerate(widen(rois)):
        box = roi * roi.dtype.type(spatial_scale) - roi.dtype.type(0.5 if shifted else 0)
        need_data(np.isfinite(box[2:] - box[:2]).all(), f"region {r} is not finite: {roi.tolist()}")
        plane = wide[int(batch_indices[r])]
        axes = [
            (_cut_samples if cut else _samples)(
                box[1 - a], box[3 - a], size[a], sampling_ratio, plane.shape[1 + a], shifted
            )
            for a in (0, 1)
        ]
        y[r] = (_roi_mean if mode == "avg" else _roi_max)(plane, axes)
    return y.astype(x.dtype, copy=False)


Samples = tuple[Array, Array, Array, Array, int]
FAR = 1e9  # the most samples before x that are counted


def _samples(start: Any, end: Any, cells: int, ratio: int, size: int, shifted: bool) -> Samples:
    """The samples of a region [start, end] of `cells` cells along one axis, on which x has `size`
    elements: (low, high, weight of low, weight of high, count); the first four [cells, samples]. A
    sample is the weighted sum of the elements low and high of x.

    A cell has `count` samples: `ratio`, or, for 0, as many as it is long. Samples more than one
    element outside of x have the weights 0; of a cell much longer than x only the samples near x
    are in the result. Without `shifted` the region is at least 1 long.
    """
    extent = end - start if shifted else max(end - start, start.dtype.type(1))
    cell = extent / cells
    count = ratio if ratio > 0 else max(ceil(cell), 0)
    base = start + np.arange(cells, dtype=start.dtype)[:, None] * cell
    some, first = min(count, max(ratio, 2 * size + 8)), 0  # two or fewer for each element of x
    if some < count:
        first = np.clip((-1 - base) * (count / cell), 2, min(FAR, count - some + 2)) // 1 - 2
    number = (first + np.arange(some)).astype(start.dtype)
    at = base + (number + start.dtype.type(0.5)) * cell / max(count, 1)
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    part = at - low
    return low, np.minimum(low + 1, size - 1), (1 - part) * inside, part * inside, count


def _cut_samples(start: Any, end: Any, cells: int, ratio: int, size: int, shifted: bool) -> Samples:
    """`_samples` of cells that are clipped to x first: a cell has `ratio` samples, or, for 0, as
    many as its rest is long; none if nothing is left. Cells with fewer samples than others get
    samples of weight 0, and larger weights for the rest, so that the mean over all is right."""
    real = start.dtype.type
    cell = (end - start if shifted else max(end - start, real(1))) / cells
    edges = [start + (np.arange(cells, dtype=real) + k) * cell for k in (0, 1)]
    low, high = (np.clip(e, 0, size) for e in edges)
    left = np.ceil(np.maximum(high - low, 0)).astype(np.int64)
    counts = np.where(high > low, ratio if ratio > 0 else left, 0)[:, None]
    most = max(int(counts.max()), 1)
    k = np.arange(most)
    at = low[:, None] + (k.astype(real) + real(0.5)) * cell / np.maximum(counts, 1).astype(real)
    at = np.clip(at, 0, size - 1)
    first = np.floor(at).astype(np.int64)
    share = (k < counts) * most / np.maximum(counts, 1).astype(real)
    next_ = np.minimum(first + 1, size - 1)
    return first, next_, (1 - at + first) * share, (at - first) * share, most


def _roi_mean(plane: Array, axes: list[Samples]) -> Array:
    """The mean of the samples of each cell of a region: [channels, rows, columns] of cells, from
    `plane` [channels, H, W] and the samples along both axes."""
    for axis, (low, high, wl, wh, count) in enumerate(axes, 1):
        along = np.moveaxis(plane, axis, -1)
        samples = along[..., low] * wl + along[..., high] * wh
        plane = np.moveaxis(samples.sum(axis=-1) / max(count, 1), -1, axis)
    return plane


def _roi_max(plane: Array, axes: list[Samples]) -> Array:
    """The maximum over the four weighted neighbours of all samples of each cell of a region:
    [channels, rows, columns] of cells, from `plane` [channels, H, W]. 0 for cells without samples.
    """
    (yl, yh, wyl, wyh, _), (xl, xh, wxl, wxh, _) = axes
    cells, counts = (yl.shape[0], xl.shape[0]), (yl.shape[1], xl.shape[1])
    if 0 in counts:
        return np.zeros((plane.shape[0], *cells), plane.dtype)
    best = None
    for rows, wr in ((yl, wyl), (yh, wyh)):
        for columns, wc in ((xl, wxl), (xh, wxh)):
            some = plane[:, rows.reshape(-1, 1), columns.reshape(1, -1)]
            some = some * (wr.reshape(-1, 1) * wc.reshape(1, -1))
            best = some if best is None else np.maximum(best, some)
    assert best is not None
    split = best.reshape(plane.shape[0], cells[0], counts[0], cells[1], counts[1])
    return split.max(axis=(2, 4))


def _roi_dims(x: Value, rois: Value, columns: int) -> tuple[Dim, Dim]:
    """The numbers of regions and of channels, in x [N,C,H,W] and rois [R,columns]. Raises
    TypeRuleError where these have other forms."""
    need(x.rank in (None, 4), f"x needs rank 4 ([N,C,H,W]), it has {x.rank}")
    need(rois.rank in (None, 2), f"rois needs rank 2, it has {rois.rank}")
    if rois.shape is not None:
        have = rois.shape[1]
        need(agree(have, columns), f"rois needs {columns} columns, it has {have}")
    return rois.shape[0] if rois.shape else fresh(), x.shape[1] if x.shape else fresh()


@RoiAlign.type
def _(
    x, rois, batch_indices, *, mode, output_height, output_width, coordinate_transformation_mode,
    cut, **_,
):  # fmt: skip
    count, channels = _roi_dims(x, rois, 4)
    need_one_of(("avg", "max"), mode=mode)
    need(mode == "avg" or not cut, "a maximum is of whole cells")
    known = ("half_pixel", "output_half_pixel")
    need_one_of(known, coordinate_transformation_mode=coordinate_transformation_mode)
    if batch_indices.shape and isinstance(count, str):
        count = batch_indices.shape[0]
    return Type(x.dtype, (count, channels, output_height, output_width))


@RoiAlign.cost
def _(x, rois, batch_indices, *, output_height, output_width, sampling_ratio, **_):
    samples = max(sampling_ratio, 2) ** 2
    return 8.0 * samples * prod((rois.dims[0], x.dims[1], output_height, output_width))


@op("reduction")
def MaxRoiPool(x, rois, *, pooled_shape, spatial_scale=1.0):
    """y[r,c,i,j] = the maximum of x in cell (i, j) of region r, 0 where the cell is empty

    rois [R,5] as (batch, x1, y1, x2, y2), scaled by spatial_scale and rounded, ends included; they
    must be finite.
    """
    need_room((rois.shape[0], x.shape[1], *pooled_shape), x.dtype)
    y = np.zeros((rois.shape[0], x.shape[1], *pooled_shape), x.dtype)
    for r, roi in enumerate(widen(rois)):
        scaled = roi[1:] * roi.dtype.type(spatial_scale)
        need_data(np.isfinite(scaled).all(), f"region {r} is not finite: {roi.tolist()}")
        ends = np.trunc(scaled + np.copysign(0.5, scaled)).astype(int)  # halves away from zero
        plane = x[int(roi[0])]
        spans = []
        for a, cells in enumerate(pooled_shape):
            start, extent = ends[1 - a], max(ends[3 - a] - ends[1 - a] + 1, 1)
            low = start + np.arange(cells) * extent // cells
            high = start + -(-np.arange(1, cells + 1) * extent // cells)
            spans.append([np.clip(e, 0, plane.shape[1 + a]) for e in (low, high)])
        for i, (top, bottom) in enumerate(zip(*spans[0], strict=True)):
            for j, (left, right) in enumerate(zip(*spans[1], strict=True)):
                if top < bottom and left < right:
                    y[r, :, i, j] = plane[:, top:bottom, left:right].max(axis=(1, 2))
    return y


@MaxRoiPool.type
def _(x, rois, *, pooled_shape, spatial_scale):
    count, channels = _roi_dims(x, rois, 5)
    need(
        len(pooled_shape) == 2 and min(pooled_shape) > 0,
        f"pooled_shape must be two positive numbers, it is {tuple(pooled_shape)}",
    )
    return Type(x.dtype, (count, channels, *pooled_shape))
