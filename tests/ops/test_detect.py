"""Non-maximum suppression and region pooling against naive loops."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check, close, normal, refused, rng, types_of
from tinsmith.graph import Type

F32 = np.dtype(np.float32)


def iou(a: Any, b: Any) -> float:
    common = 1.0
    for i in range(2):
        common *= max(0.0, min(a[2 + i], b[2 + i]) - max(a[i], b[i]))
    area = sum(float((c[2] - c[0]) * (c[3] - c[1])) for c in (a, b))
    return common / (area - common) if common > 0 else 0.0


def naive_nms(boxes, scores, most, overlap, least, centred):
    rows = []
    for n in range(len(boxes)):
        corners = []
        for box in boxes[n].astype(float):
            x = [box[i] - box[2 + i] / 2 for i in (0, 1)] if centred else list(box[:2])
            y = [box[i] + box[2 + i] / 2 for i in (0, 1)] if centred else list(box[2:])
            ends = [sorted(p) for p in zip(x, y, strict=True)]
            corners.append([e[0] for e in ends] + [e[1] for e in ends])
        for c in range(scores.shape[1]):
            kept: list[int] = []
            for i in sorted(range(len(corners)), key=lambda i: (-scores[n, c, i], i)):
                if len(kept) == most or (least is not None and not scores[n, c, i] > least):
                    continue
                if all(iou(corners[i], corners[j]) <= overlap for j in kept):
                    kept.append(i)
            rows += [(n, c, i) for i in kept]
    return rows


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("least", [None, 0.4, 2.0])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("most", [0, 2, 100])
def test_nms(most, overlap, least, centred):
    boxes = rng(3).uniform(0, 1, (2, 12, 4)).astype(np.float32)
    scores = rng(4).uniform(0, 1, (2, 3, 12)).astype(np.float32)
    scores[0, 0, :4] = 0.5
    limit = None if least is None else np.array([least], np.float32)
    operands = [np.array([most]), np.array([overlap], np.float32), limit]
    (rows,) = check("NonMaxSuppression", boxes, scores, *operands, center_point_box=centred)
    assert rows.dtype == np.int64
    want = naive_nms(boxes, scores, most, overlap, least, centred)
    assert rows.tolist() == [list(r) for r in want]


def test_nms_keeps_nothing_by_default():
    (rows,) = check("NonMaxSuppression", normal(1, 3, 4), normal(1, 1, 3))
    assert rows.shape == (0, 3)


def test_nms_keeps_a_box_that_overlaps_by_just_the_threshold():
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [0, 0, 1, 0.75]]], np.float32)
    operands = [np.array([[[0.9, 0.8, 0.7]]], np.float32), np.array(9), np.float32(0.5)]
    (rows,) = check("NonMaxSuppression", boxes, *operands)
    assert rows[:, 2].tolist() == [0, 1]


def test_nms_of_more_boxes_than_are_looked_at_at_once():
    low = np.round(rng(5).random((1, 300, 2)) * 12)  # many overlap by just the threshold, and tie
    boxes = np.concatenate([low, low + 6], -1).astype(np.float32)
    scores = np.round(rng(6).random((1, 2, 300)), 1).astype(np.float32)
    for most in (20, 300):
        operands = np.array(most), np.float32(0.5), np.float32(0.1)
        (rows,) = check("NonMaxSuppression", boxes, scores, *operands)
        want = naive_nms(boxes, scores, most, 0.5, np.float32(0.1), 0)
        np.testing.assert_array_equal(rows, want)


def test_nms_of_flat_boxes_and_swapped_corners():
    """Boxes without area suppress nothing; the order of the corners does not matter."""
    boxes = np.array([[[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32)
    (rows,) = check("NonMaxSuppression", boxes, scores, np.array(9), np.float32(0.5))
    assert rows[:, 2].tolist() == [0, 1, 2]


def naive_roi(x, rois, index, mode, size, ratio, scale, shifted):
    height, width = x.shape[2:]
    y = np.zeros((len(rois), x.shape[1], *size))
    for r, roi in enumerate(rois.astype(np.float32)):
        x1, y1, x2, y2 = roi * np.float32(scale) - np.float32(0.5 if shifted else 0)
        extent = [y2 - y1, x2 - x1] if shifted else [max(y2 - y1, 1), max(x2 - x1, 1)]
        cell = [e / n for e, n in zip(extent, size, strict=True)]
        counts = [ratio or max(ceil(c), 0) for c in cell]
        for c, i, j in np.ndindex(x.shape[1], *size):
            samples = []
            for a, b in np.ndindex(*counts):
                v = y1 + (i + (a + 0.5) / counts[0]) * cell[0]
                u = x1 + (j + (b + 0.5) / counts[1]) * cell[1]
                if not (-1 <= v <= height and -1 <= u <= width):
                    samples.append([0.0])
                    continue
                v, u = np.clip(v, 0, height - 1), np.clip(u, 0, width - 1)
                top, left = int(v), int(u)
                corners = []
                for dy, dx in np.ndindex(2, 2):
                    w = (v - top if dy else 1 - v + top) * (u - left if dx else 1 - u + left)
                    at = min(top + dy, height - 1), min(left + dx, width - 1)
                    corners.append(w * float(x[(index[r], c, *at)]))
                samples.append(corners)
            if samples and mode == "avg":
                y[r, c, i, j] = sum(map(sum, samples)) / len(samples)
            elif samples:
                y[r, c, i, j] = max(map(max, samples))
    return y


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("size", [(1, 1), (3, 2)])
def test_roi_align(mode, transform, ratio, size):
    x = normal(2, 2, 7, 6)
    rois = np.array(
        [[0, 0, 5, 6], [1.3, 2.2, 4.7, 6.1], [-3, -2, 2, 3], [4, 4, 20, 20], [2, 2, 2, 2]],
        np.float32,
    )
    index = np.array([0, 1, 1, 0, 1])
    attrs = {"mode": mode, "sampling_ratio": ratio, "spatial_scale": 0.75}
    attrs |= {"output_height": size[0], "output_width": size[1]}
    (y,) = check("RoiAlign", x, rois, index, coordinate_transformation_mode=transform, **attrs)
    want = naive_roi(x, rois, index, mode, size, ratio, 0.75, transform == "half_pixel")
    close(y, want, atol=1e-4)


def test_roi_align_of_no_regions():
    (y,) = check(
        "RoiAlign", normal(1, 2, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    )
    assert y.shape == (0, 2, 1, 1)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 6)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(size, scale):
    x = normal(2, 3, 8, 7)
    rois = np.array(
        [[0, 0, 0, 6, 7], [1, 2, 3, 5, 5], [1, 4, 4, 4, 4], [0, 5, 5, 30, 30], [0, 3, 1, 1, 2]],
        np.float32,
    )
    (y,) = check("MaxRoiPool", x, rois, pooled_shape=size, spatial_scale=scale)
    for r, roi in enumerate(rois):
        x1, y1, x2, y2 = (int(np.floor(v * scale + 0.5)) for v in roi[1:])
        cell = [max(y2 - y1 + 1, 1) / size[0], max(x2 - x1 + 1, 1) / size[1]]
        for i, j in np.ndindex(*size):
            top, bottom = y1 + int(i * cell[0]), y1 + ceil(round((i + 1) * cell[0], 9))
            left, right = x1 + int(j * cell[1]), x1 + ceil(round((j + 1) * cell[1], 9))
            part = x[int(roi[0]), :, max(top, 0) : bottom, max(left, 0) : right]
            close(y[r, :, i, j], part.max(axis=(1, 2)) if part.size else np.zeros(3))


def of(*shape: Any) -> Type:
    return Type(F32, shape)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "fragments"),
    [
        ("NonMaxSuppression", [of(1, 5, 4), of(1, 2, 6)], {}, ["5 boxes", "6"]),
        ("NonMaxSuppression", [of(1, 5, 5), of(1, 2, 5)], {}, ["4 numbers"]),
        ("NonMaxSuppression", [of(5, 4), of(1, 2, 5)], {}, ["boxes needs rank 3"]),
        ("RoiAlign", [of(1, 2, 4, 4), of(3, 5), of(3)], {}, ["rois needs 4 columns, it has 5"]),
        ("RoiAlign", [of(1, 2, 4, 4), of(3, 4), of(3)], {"mode": "sum"}, ["sum", "avg, max"]),
        (
            "RoiAlign",
            [of(1, 2, 4, 4), of(3, 4), of(3)],
            {"mode": "max", "cut": True},
            ["whole cells"],
        ),
        ("MaxRoiPool", [of(1, 2, 4, 4), of(3, 4)], {"pooled_shape": (2, 2)}, ["5 columns"]),
        ("MaxRoiPool", [of(1, 2, 4, 4), of(3, 5)], {"pooled_shape": (2,)}, ["two positive"]),
    ],
)
def test_refused(op, types, attrs, fragments):
    with refused(*fragments):
        types_of(op, types, attrs)
