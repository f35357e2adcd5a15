"""Importers of the last layers of object detectors, and of pooling over regions."""

from __future__ import annotations

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Node, Result, known, layer
from tinsmith.graph import Array, Value

AUTO = -233


@layer("PriorBox")
def prior_box(node: Node) -> Result:
    """Import PriorBox: the boxes of an SSD detector, of the sizes in the layer's parameters, around
    the centre of each cell of the first input. They depend on sizes alone, also the picture's (the
    second input), so they are a constant [1, 2, 4 * boxes]: edges, then variances; without a second
    input edges alone, [1, 4 * boxes]. Raises Unsupported for unknown sizes."""
    w, h = (node.size(node[0], a) for a in "wh")
    image = [node.attr("image_width"), node.attr("image_height")]
    if not isinstance(w, int) or not isinstance(h, int):
        raise Unsupported("the size of its grid is not known")
    fractions = len(node.inputs) == 1 and image == [AUTO, AUTO] and not node.attr("max_sizes")
    steps = [node.attr("step_width"), node.attr("step_height")]
    ratios = node.attr("aspect_ratios")
    variances = [node.attr(f"variance{i}") for i in range(4)]
    offset, clip = float(np.float32(node.attr("offset"))), node.attr("clip")
    node.ignore("flip", "max_sizes", "step_mmdetection", "center_mmdetection")
    if fractions:
        steps = [1 / n if s == AUTO else s for s, n in zip(steps, (w, h), strict=True)]
        sides = [(s * h / w, s) for s in node.attr("min_sizes")]
        first = node.attr("min_sizes")[0]
        sides += [(first * h / w * r**0.5, first / r**0.5) for r in ratios[1:]]
        boxes = _boxes(w, h, steps, offset, np.array(sides, np.float32), (1, 1), False)
        boxes = np.clip(boxes, 0, 1) if clip else boxes
        return node.const(boxes.reshape(1, -1))
    for i, letter in enumerate("wh"):
        size = node.size(node[1], letter) if image[i] == AUTO else image[i]
        if not isinstance(size, int) or size < 1:
            raise Unsupported("the size of its picture is not known")
        image[i] = size
    for i, n in enumerate((w, h)):
        if steps[i] == AUTO:
            steps[i] = image[i] / n
            if node.attr("step_mmdetection"):
                steps[i] = float(np.ceil(steps[i]))
    sides = []
    for i, s in enumerate(node.attr("min_sizes")):
        sides.append((s, s))
        if most := node.attr("max_sizes"):
            sides.append(((s * most[i]) ** 0.5,) * 2)
        for r in ratios:
            sides.append((s * r**0.5, s / r**0.5))
            if node.attr("flip"):
                sides.append((s / r**0.5, s * r**0.5))
    middle = bool(node.attr("center_mmdetection"))
    boxes = _boxes(w, h, steps, offset, np.array(sides, np.float32), image, middle).reshape(-1)
    boxes = np.clip(boxes, 0, 1) if clip else boxes
    rows = np.stack([boxes, np.tile(np.array(variances, np.float32), boxes.size // 4)])
    return node.const(rows[None])


def _boxes(
    w: int, h: int, steps: list[float], offset: float, sides: Array, image: object, middle: bool
) -> Array:
    """Boxes [h, w, sides, 4] as (x1, y1, x2, y2), in fractions of `image`, (width, height).

    `steps` are the width and height of a cell, `sides` [sides, 2] those of the boxes. The centre in
    cell i is at (i + offset) * step, or, with `middle`, at offset * (step - 1) + i * step."""
    at = [
        offset * (s - 1) + np.arange(n) * s if middle else (offset + np.arange(n)) * s
        for n, s in zip((w, h), map(np.float32, steps), strict=True)
    ]
    centre = np.stack(np.meshgrid(*at), axis=-1)[:, :, None].astype(np.float32)
    ends = [centre - sides * np.float32(0.5), centre + sides * np.float32(0.5)]
    return (np.concatenate(ends, axis=-1) / np.float32([*image, *image])).astype(np.float32)  # type: ignore[misc]


@layer("DetectionOutput")
def detection_output(node: Node) -> Result:
    loc, conf, priors = (node[i] for i in range(3))
    attrs = node.named()
    told = [node.attr(f"variance{i}") for i in range(4)]
    if attrs["classes"] == AUTO:  # classes outermost, and boxes without variances
        sizes = known(conf, "its classes")
        if len(sizes) != 2:
            raise Unsupported(f"its scores are not a row for each class, they are {sizes}")
        attrs["classes"], count = sizes
        conf = node.emit("Transpose", conf, perm=(0, 2, 1))
        priors = node.reshaped(priors, 1, 4 * count)
        rows = node.const(np.tile(np.array(told, np.float32), count).reshape(1, 1, -1))
        priors = node.emit("Concat", *node.alike(priors, rows), axis=1)
    loc, conf = (node.for_samples(v, (loc, conf, priors)) for v in (loc, conf))
    values = node.reshaped(loc, -1), node.reshaped(conf, -1), priors
    return node.emit("PriorDetection", *values, **attrs)


@layer("YoloDetectionOutput", "Yolov3DetectionOutput")
def yolo(node: Node) -> Result:
    attrs = node.named()
    attrs["mask"] = tuple(map(int, attrs.get("mask", ())))
    return node.emit("GridDetection", *node.alike(*node.present), **attrs)


@layer("Proposal")
def proposal(node: Node) -> Result:
    scores, moves, image = node.alike(*(node[i] for i in range(3)))
    return node.emit("RegionProposal", scores, moves, node.reshaped(image, -1), **node.named())


def _places(node: Node, x: Value) -> Value:
    """The images, int64 [N], that regions are in: 0, 1, ..., N - 1, as image i has region i."""
    count = node.dim(x, 0)
    if isinstance(count, int):
        return node.const(np.arange(count))
    zero, one = node.const(0, np.int64), node.const(1, np.int64)
    return node.emit("Range", zero, node.emit("Squeeze", count, node.ints(0)), one)


@layer("ROIPooling", "PSROIPooling", "ROIAlign")
def regions(node: Node) -> Result:
    size, attrs = (node.attr("pooled_height"), node.attr("pooled_width")), node.named()
    x, rois = node.alike(node[0], node.reshaped(node[1], 4))
    if node.type == "PSROIPooling":
        return node.emit("PlaceRoiPool", x, rois, pooled_shape=size, **attrs)
    if node.type == "ROIPooling":
        column = node.emit(
            "Unsqueeze", node.emit("Cast", _places(node, x), to="float32"), node.ints(1)
        )
        rois = node.emit("Concat", column, rois, axis=1)
        return node.emit("MaxRoiPool", x, rois, pooled_shape=size, **attrs)
    shift = "half_pixel" if node.attr("aligned") else "output_half_pixel"
    return node.emit(
        "RoiAlign", x, rois, _places(node, x), coordinate_transformation_mode=shift,
        cut=node.attr("version") == 0, **attrs,
    )  # fmt: skip
