"""The last layers of object detectors (SSD, YOLO, Faster R-CNN): they decode boxes, and choose some
by score with non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinsmith.graph import Array, Type, agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import OPS, need, op
from tinsmith.ops._rules import Tensor, cut, integers, need_data
from tinsmith.ops.detect import corners_of, suppress
from tinsmith.sizes import NUMBER, Number, smallest


@op()
def BestBoxes(boxes, scores, labels=None, *, overlap, candidates=None, most=None, regions=False):
    """rows (label, score, x1, y1, x2, y2) of each image, [N,K,6]: boxes left by non-max suppression

    boxes [N,B,4] are two opposite corners, scores [N,C,B]; a box whose score is NaN is left out. Of
    each class only the `candidates` best boxes count (None: all); best first, those are kept whose
    intersection over union with none kept before exceeds `overlap`. Of all classes together the
    `most` best stay (None: all), ties in order of class and box. The label is labels[n,b], or 1 +
    the class. K is the largest number of boxes of an image; images with fewer have rows of 0 at the
    end. With `regions`, the sides of boxes are longer by 1 for overlaps (corners are pixels), and
    the results are two: boxes [N,K,1,4] and scores [N,K,1,1].
    """
    need_data(boxes.shape[1] == scores.shape[2], "there is not one score for each box")
    rows = [
        _best(
            b, s, None if labels is None else labels[n], float(overlap), candidates, most, regions
        )
        for n, (b, s) in enumerate(zip(boxes, scores, strict=True))
    ]
    y = np.zeros((len(rows), max(map(len, rows), default=0), 6), np.float32)
    for to, some in zip(y, rows, strict=True):
        to[: len(some)] = some
    return (y[:, :, None, 2:], y[:, :, None, 1:2]) if regions else y


def _best(
    boxes: Array, scores: Array, labels: Array | None, overlap: float, candidates: int | None,
    most: int | None, grown: bool,
) -> Array:  # fmt: skip
    """The rows (label, score, x1, y1, x2, y2) of one image in `BestBoxes`, best score first, boxes
    with score NaN left out. boxes [B,4], scores [C,B], labels [B] or None (the label is 1 + the
    class); `grown` is its `regions`: sides count as longer by 1."""
    corners = corners_of(boxes, 0).T + np.array([[0], [0], [grown], [grown]], np.float32)
    found = [np.zeros((0, 6), np.float32)]
    for c, s in enumerate(scores):
        at = np.flatnonzero(~np.isnan(s))
        at = at[np.argsort(-s[at], kind="stable")][:candidates]
        at = np.array(suppress(corners, at, overlap, at.size), np.int64)
        label = np.full(at.size, c + 1, np.float32) if labels is None else labels[at]
        found.append(np.concatenate([label[:, None], s[at, None], boxes[at]], axis=1))
    every = np.concatenate(found)
    return every[np.argsort(-every[:, 1], kind="stable")][:most]


@BestBoxes.type
def _(boxes, scores, labels=None, *, candidates, most, regions, **_):
    _need_floats(boxes, scores, labels)
    need(boxes.rank == scores.rank == 3, "boxes are [N, B, 4], scores [N, C, B]")
    need(labels is None or labels.rank == 2, "labels are [N, B]")
    for n in (candidates, most):
        need(n is None or n >= 0, f"a number of boxes is {n}")
    batch, count = boxes.shape[0], fresh()
    tails = ((1, 4), (1, 1)) if regions else ((6,),)
    return tuple(Type(np.dtype(np.float32), (batch, count, *tail)) for tail in tails)


@BestBoxes.count
def _(boxes, scores, labels=None, *, candidates, most, **_):
    _, classes, count = scores.dims
    every = classes * (count if candidates is None else smallest(count, candidates))
    return every if most is None else smallest(every, most)


def _need_floats(*values: Any) -> None:
    for v in values:
        need(v is None or v.dtype == np.float32, "it takes float32 only")


def _if(condition: Tensor, scores: Tensor) -> Tensor:
    """`scores` where a condition holds, else NaN: `BestBoxes` leaves out boxes of score NaN."""
    return OPS["Where"](condition, scores, np.float32(np.nan))


def _around(centre: Sequence[Tensor], size: Sequence[Tensor], axis: int) -> Tensor:
    """The corners (x1, y1, x2, y2), joined along `axis`, of boxes from their centres and sizes.
    Each of these is a list: [x, y], two tensors of length 1 along `axis`, or one tensor that has x
    and y along `axis`."""
    half = [OPS["Mul"](s, np.float32(0.5)) for s in size]
    ends = [OPS[side](c, h) for side in ("Sub", "Add") for c, h in zip(centre, half, strict=True)]
    return OPS["Concat"](*ends, axis=axis)


@op("composed")
def PriorDetection(
    loc, conf, priors, *, classes, overlap=0.05, candidates=300, most=100, least=0.5
):
    """rows (label, score, x1, y1, x2, y2) of each image, [N,K,6]: the boxes of an SSD detector

    priors [N,2,4P] are P boxes (x1, y1, x2, y2), priors[:,0], and variances v = priors[:,1]. loc
    [N,4P] moves their centres by v * loc * size, and multiplies their sizes by e^(v * loc). conf
    [N,P*classes] are the scores; class 0 is no object. Of scores above `least` `BestBoxes` keeps
    the `candidates` best of each class, and the `most` best of all. Rows of 0 fill up to K.
    """
    priors = OPS["Reshape"](priors, [0, 0, -1, 4])
    prior, v = (OPS["Squeeze"](cut(priors, k, k + 1, 1), [1]) for k in (0, 1))
    t = OPS["Mul"](OPS["Reshape"](loc, [0, -1, 4]), v)
    low, high = (cut(prior, k, k + 2, 2) for k in (0, 2))
    size, middle = OPS["Sub"](high, low), OPS["Mul"](OPS["Add"](low, high), np.float32(0.5))
    centre = OPS["Add"](middle, OPS["Mul"](cut(t, 0, 2, 2), size))
    size = OPS["Mul"](size, OPS["Exp"](cut(t, 2, 4, 2)))
    scores = OPS["Transpose"](OPS["Reshape"](conf, [0, -1, classes]), perm=(0, 2, 1))
    scores = cut(scores, 1, classes, 1)
    return OPS["BestBoxes"](
        _around([centre], [size], 2), _if(OPS["Greater"](scores, np.float32(least)), scores),
        overlap=overlap, candidates=candidates, most=most,
    )  # fmt: skip


@PriorDetection.type
def _(loc, conf, priors, *, classes, **_):
    _need_floats(loc, conf, priors)
    need(loc.rank == conf.rank == 2 and priors.rank == 3, "loc and conf are rows, priors matrices")
    need(priors.shape[1] == 2, "priors are boxes and variances")
    moved, scores = loc.shape[1], conf.shape[1]
    if isinstance(moved, NUMBER) and isinstance(scores, NUMBER):
        need(4 * scores == moved * classes, f"conf has not {classes} scores for each box of loc")
    return Type(np.dtype(np.float32), (loc.shape[0], fresh(), 6))


@op("composed")
def GridDetection(*grids, classes, boxes, anchors, mask, scales=(), least=0.01, overlap=0.45):
    """rows (1 + class, score, x1, y1, x2, y2) of each image, [N,K,6]: the boxes of a YOLO detector

    A grid is [N, boxes * (5 + classes), H, W]: x, y, w, h, o, and c for each class, of each box in
    each cell. Box b of grid g has the anchor a = anchors[mask[g * boxes + b]] (width, height; if
    mask is empty, anchors[b]), the centre (cell + s(x, y)) / (W, H), and the size e^(w, h) * a /
    floor(scales[g] * (W, H)), where s(v) = 1 / (1 + e^-v). Its score is 1 / (1 + e^-o (1 + e^-c))
    for its largest c. Without scales (YOLOv2) it is s(o) * softmax(c), and the size is e^(w, h) * a
    / (W, H). `BestBoxes` chooses among scores of at least `least`. Rows of 0 fill up to K.
    """
    pairs = np.float32(anchors).reshape(-1, 2)
    found = []
    for g, grid in enumerate(grids):
        rows = list(mask[g * boxes : (g + 1) * boxes] if mask else range(boxes))
        sides, scale = pairs[rows], np.float32(scales[g] if scales else 1)
        found.append(_cells(grid, classes, sides, scale, bool(scales)))
    parts = zip(*found, strict=True)
    where, scores, labels = (OPS["Concat"](*some, axis=1) for some in parts)
    scores = _if(OPS["GreaterOrEqual"](scores, np.float32(least)), scores)
    return OPS["BestBoxes"](where, OPS["Unsqueeze"](scores, [1]), labels, overlap=overlap)


def _cells(
    grid: Tensor, classes: int, sides: Array, scale: Any, logistic: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes [N,K,4] of one grid of `GridDetection`, their scores [N,K] and labels [N,K], for
    K = boxes * H * W. `sides` [boxes, 2] are its anchors, `scale` is scales[g] or 1. With
    `logistic` scores are by the first formula there, else by that of YOLOv2."""
    boxes, (height, width) = len(sides), grid.shape[2:]
    need_data(grid.shape[1] == boxes * (5 + classes), f"{grid.shape[1]} channels")
    x = OPS["Reshape"](grid, integers([0, boxes, 5 + classes, height, width]))
    centre, size = [], []
    for k, n in enumerate((width, height)):
        cells = OPS["Reshape"](_counted(grid, n), [1, 1, 1, *((1, -1) if k == 0 else (-1, 1))])
        whole = _number(grid, n)
        at = OPS["Add"](OPS["Sigmoid"](cut(x, k, k + 1, 2)), cells)
        centre.append(OPS["Div"](at, whole))
        side = OPS["Mul"](OPS["Exp"](cut(x, k + 2, k + 3, 2)), sides[:, k].reshape(-1, 1, 1, 1))
        size.append(OPS["Div"](side, OPS["Floor"](OPS["Mul"](whole, scale))))
    o, c = cut(x, 4, 5, 2), cut(x, 5, 5 + classes, 2)
    best = OPS["Reduce"](c, [2], kind="max")
    if logistic:
        rest = [OPS["Exp"](OPS["Neg"](v)) for v in (o, best)]
        odds = OPS["Mul"](rest[0], OPS["Add"](rest[1], np.float32(1)))
        score = OPS["Reciprocal"](OPS["Add"](odds, np.float32(1)))
    else:
        total = OPS["Reduce"](OPS["Exp"](OPS["Sub"](c, best)), [2], kind="sum")
        score = OPS["Div"](OPS["Sigmoid"](o), total)
    label = OPS["Cast"](OPS["ArgReduce"](c, kind="max", axis=2), to="float32")
    where = OPS["Transpose"](_around(centre, size, 2), perm=(0, 1, 3, 4, 2))
    label = OPS["Add"](label, np.float32(1))
    flat = (OPS["Reshape"](v, [0, -1]) for v in (score, label))
    return OPS["Reshape"](where, [0, -1, 4]), *flat


def _counted(x: Tensor, count: Number) -> Tensor:
    """The vector 0, 1, ..., count - 1 as float32: an array, or, for a symbolic `Size`, the
    output of nodes in the graph of x."""
    if isinstance(count, int):
        return np.arange(count, dtype=np.float32)
    zero, one = x.graph.const(np.int64(0)), x.graph.const(np.int64(1))
    return OPS["Cast"](OPS["Range"](zero, np.array(count, object), one), to="float32")


def _number(x: Tensor, count: Number) -> Tensor:
    """`count` as a float32 scalar: a number, or, for a symbolic `Size`, the output of a
    node in the graph of x."""
    if isinstance(count, int):
        return np.float32(count)
    return OPS["Cast"](x.graph.const(np.array(count, object)), to="float32")


@GridDetection.type
def _(*grids, classes, boxes, anchors, mask, scales, **_):
    _need_floats(*grids)
    need(all(g.rank == 4 for g in grids) and grids, "grids are [N, C, H, W]")
    need(classes > 0 and boxes > 0, "it needs classes and boxes")
    known = len(anchors) // 2
    need(all(0 <= m < known for m in mask), f"mask asks for more than {known} anchors")
    need(len(mask) in (0, boxes * len(grids)), f"mask has {len(mask)} entries")
    need(mask or known >= boxes, f"{known} anchors for {boxes} boxes")
    need(len(scales) in (0, len(grids)), f"{len(scales)} scales for {len(grids)} grids")
    want = boxes * (5 + classes)
    for g in grids:
        need(agree(g.shape[1], want), f"a grid has not {want} channels")
    return Type(np.dtype(np.float32), (grids[0].shape[0], fresh(), 6))


@op("composed")
def RegionProposal(
    score, move, image, *, stride=16, base=16, candidates=6000, most=300, overlap=0.7, least=16
):
    """boxes [N,K,1,4], scores [N,K,1,1] = the best regions of each image, as in Faster R-CNN

    Each cell of `stride` pixels has nine anchors: of ratios (height to width) 1/2, 1 and 2, and for
    each of these of sides 8, 16 and 32 times `base`. `move` [N,36,H,W] holds (x, y, w, h) for each
    anchor in this order: its centre moves by (x, y) * size, and its size is multiplied by e^(w, h).
    `score` is [N,18,H,W], of which the last nine count. image [N,3] is the height, width and scale
    of a picture: boxes are clipped to it, and those with a side below `least` * scale are left out.
    `BestBoxes` chooses with `regions`; 0 fills up to K.
    """
    anchors = _anchors(base)
    sizes = anchors[:, 2:] - anchors[:, :2]
    t = OPS["Reshape"](move, integers([0, 9, 4, *move.shape[2:]]))
    centre, size = [], []
    for k in (0, 1):
        side, first, n = sizes[:, k].reshape(-1, 1, 1, 1), anchors[:, k], move.shape[3 - k]
        cells = OPS["Reshape"](_counted(move, n), [1, 1, 1, *((1, -1) if k == 0 else (-1, 1))])
        at = OPS["Add"](OPS["Mul"](cells, np.float32(stride)), first.reshape(-1, 1, 1, 1))
        at = OPS["Add"](at, side * np.float32(0.5))
        centre.append(OPS["Add"](at, OPS["Mul"](cut(t, k, k + 1, 2), side)))
        size.append(OPS["Mul"](OPS["Exp"](cut(t, k + 2, k + 3, 2)), side))
    ends = OPS["Sub"](OPS["Gather"](image, [1, 0, 1, 0], axis=1), np.float32(1))
    where = OPS["Max"](_around(centre, size, 2), np.float32(0))
    where = OPS["Min"](where, OPS["Reshape"](ends, [0, 1, 4, 1, 1]))
    scale = OPS["Reshape"](cut(image, 2, 3, 1), [0, 1, 1, 1, 1])
    sides = OPS["Add"](OPS["Sub"](cut(where, 2, 4, 2), cut(where, 0, 2, 2)), np.float32(1))
    large = OPS["GreaterOrEqual"](sides, OPS["Mul"](scale, np.float32(least)))
    large = OPS["And"](cut(large, 0, 1, 2), cut(large, 1, 2, 2))
    scores = _if(large, OPS["Unsqueeze"](cut(score, 9, 18, 1), [2]))
    where = OPS["Reshape"](OPS["Transpose"](where, perm=(0, 1, 3, 4, 2)), [0, -1, 4])
    return OPS["BestBoxes"](
        where, OPS["Reshape"](scores, [0, 1, -1]), overlap=overlap, candidates=candidates,
        most=most, regions=True,
    )  # fmt: skip


def _anchors(base: int) -> Array:
    """The nine anchors of `RegionProposal` in its first cell: [9,4] as (x1, y1, x2, y2)."""
    rows = []
    for ratio in (0.5, 1.0, 2.0):
        w = np.round(base / np.sqrt(ratio))
        h = np.round(w * ratio)
        rows += [(w * s, h * s) for s in (8, 16, 32)]
    return np.asarray(_around([np.float32(base / 2)], [np.array(rows, np.float32)], 1))


@RegionProposal.type
def _(score, move, image, **_):
    _need_floats(score, move, image)
    need(score.rank == 4 and move.rank == 4, "score and move are [N, C, H, W]")
    need(score.shape[1] == 18 and move.shape[1] == 36, "there are nine anchors")
    need(image.rank == 2, "image is a row for each element of the batch")
    count = fresh()
    return tuple(Type(np.dtype(np.float32), (score.shape[0], count, 1, n)) for n in (4, 1))


@op("reduction")
def PlaceRoiPool(x, rois, *, pooled_shape, channels, spatial_scale=1.0):
    """y[n,c,i,j] = the mean of x[n, (c, i, j)] in cell (i, j) of region n, 0 where that is empty

    The position-sensitive pooling of R-FCN: each cell (i, j) has channels of its own, so x is
    [N, channels * h * w, H, W] for (h, w) = pooled_shape. rois [N,4], one region for each image,
    are (x1, y1, x2, y2), with both ends inside; they are rounded, then scaled by spatial_scale.
    """
    rows, columns = pooled_shape
    y = np.zeros((len(x), channels, rows, columns), np.float32)
    for n, plane in enumerate(x.reshape(len(x), channels, rows, columns, *x.shape[2:])):
        roi = rois[n].reshape(-1)
        near = np.trunc(np.array([*roi[:2], *(roi[2:4] + 1)], np.float32) + np.copysign(0.5, roi))
        ends = near.astype(np.float32) * np.float32(spatial_scale)
        spans = []
        for a, cells in ((1, rows), (0, columns)):
            cell = max(ends[a + 2] - ends[a], np.float32(0.1)) / np.float32(cells)
            places = np.arange(cells, dtype=np.float32)
            low, high = np.floor(ends[a] + places * cell), np.ceil(ends[a] + (places + 1) * cell)
            size = x.shape[3 - a]
            spans.append([np.clip(e, 0, size).astype(int) for e in (low, high)])
        for i, (top, bottom) in enumerate(zip(*spans[0], strict=True)):
            for j, (left, right) in enumerate(zip(*spans[1], strict=True)):
                if top < bottom and left < right:
                    y[n, :, i, j] = plane[:, i, j, top:bottom, left:right].mean(axis=(1, 2))
    return y


@PlaceRoiPool.type
def _(x, rois, *, pooled_shape, channels, spatial_scale):
    _need_floats(x, rois)
    need(x.rank == 4 and rois.rank == 2, "x is [N, C, H, W], rois [N, 4]")
    need(len(pooled_shape) == 2 and min(pooled_shape) > 0, f"{pooled_shape} is no shape")
    want = channels * pooled_shape[0] * pooled_shape[1]
    need(agree(x.shape[1], want), f"x has no {want} channels")
    return x.type.like(shape=(x.shape[0], channels, *pooled_shape))
