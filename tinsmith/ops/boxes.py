"""Boxes from the grids of detectors: decoded, chosen by score, and those that overlap left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinsmith.graph import Type
from tinsmith.ops._op import fresh, need, op
from tinsmith.ops._rules import need_data
from tinsmith.ops.detect import _suppress

Array = np.ndarray[Any, Any]


def _chosen(boxes: Array, scores: Array, overlap: float, most: int) -> list[int]:
    """The places of boxes [K,4] by falling score, none too near a former one."""
    order = np.argsort(-scores, kind="stable")
    return _suppress(np.ascontiguousarray(boxes.T), order, overlap, most)


def _stacked(found: Iterable[Array], width: int) -> Array:
    """Rows of each element of a batch, as many as the most of them has, rows of 0 behind."""
    rows = list(found)
    y = np.zeros((len(rows), max(map(len, rows), default=0), width), np.float32)
    for i, some in enumerate(rows):
        y[i, : len(some)] = some
    return y


def _rows(labels: Any, scores: Array, boxes: Array) -> Array:
    columns = np.broadcast_to(np.asarray(labels, np.float32), scores.shape)
    return np.concatenate([columns[:, None], scores[:, None], boxes], axis=1)


def _around(cx: Array, cy: Array, w: Array, h: Array) -> Array:
    """Boxes [K,4] as (x1, y1, x2, y2) from centres and sizes."""
    return np.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], axis=-1).reshape(-1, 4)


def _need_floats(*values: Any) -> None:
    for v in values:
        need(v is None or v.dtype == np.float32, "it takes float32 only")


@op()
def PriorDetection(
    loc, conf, priors, *, classes, overlap=0.05, candidates=300, most=100, least=0.5, variances=None
):
    """rows (label, score, x1, y1, x2, y2) of each element of a batch, [N,K,6], 0 behind the last

    loc [N,4P] moves the boxes priors[:,0] [N,2,4P], by priors[:,1] or `variances`: centres by
    v * loc * size, sizes by e^(v * loc); conf is [N,P*classes]. Of each class but 0 the
    `candidates` best above `least` are chosen, without what overlaps more; of all, the `most` best.
    """

    def rows(n: int) -> Array:
        prior = priors[n % len(priors)].reshape(-1, loc.shape[1])
        p, t = prior[0].reshape(-1, 4), loc[n].reshape(-1, 4)
        v = prior[1].reshape(-1, 4) if variances is None else np.float32(variances)
        size, t = p[:, 2:] - p[:, :2], t * v
        centre = (p[:, :2] + p[:, 2:]) * np.float32(0.5) + t[:, :2] * size
        size = size * np.exp(t[:, 2:])
        boxes = _around(centre[:, 0], centre[:, 1], size[:, 0], size[:, 1])
        scores, found = conf[n].reshape(len(p), -1), [np.zeros((0, 6), np.float32)]
        need_data(scores.shape[1] == classes, f"conf has {scores.shape[1]} classes, not {classes}")
        for c in range(1, classes):
            at = np.flatnonzero(scores[:, c] > least)
            at = at[np.argsort(-scores[at, c], kind="stable")][:candidates]
            kept = at[_chosen(boxes[at], scores[at, c], overlap, len(at))]
            found.append(_rows(c, scores[kept, c], boxes[kept]))
        every = np.concatenate(found)
        return every[np.argsort(-every[:, 1], kind="stable")][:most]

    return _stacked(map(rows, range(len(loc))), 6)


@PriorDetection.type
def _(loc, conf, priors, **_):
    _need_floats(loc, conf, priors)
    need(loc.rank == conf.rank == 2 and priors.rank == 3, "loc and conf are rows, priors matrices")
    return Type(np.dtype(np.float32), (loc.shape[0], fresh(), 6))


@op()
def GridDetection(*grids, classes, boxes, anchors, mask, scales=(), least=0.01, overlap=0.45):
    """rows (label + 1, score, x1, y1, x2, y2) of each element of a batch, [N,K,6], 0 behind them

    A grid is [N, boxes * (5 + classes), H, W]: x, y, w, h, o and classes c of each box in each
    cell. Box b of grid g has the anchor a = anchors[mask[g * boxes + b]], centre (cell + s(x, y)) /
    size, and size e^(w, h) * a / (scales[g] * size), s = 1 / (1 + e^-v). Its score is
    1 / (1 + e^-o (1 + e^-c)), or, without scales, s(o) * softmax(c), and a / size its size.
    """

    def rows(n: int) -> Array:
        found = [np.zeros((0, 6), np.float32)]
        for g, grid in enumerate(grids):
            h, w = grid.shape[2:]
            need_data(grid.shape[1] == boxes * (5 + classes), f"{grid.shape[1]} channels")
            x = grid[n].reshape(boxes, 5 + classes, h, w)
            at = [int(m) for m in mask[g * boxes : (g + 1) * boxes]] if mask else range(boxes)
            a = np.float32(anchors).reshape(-1, 2)[list(at)][:, :, None, None]
            whole = np.array([[[w]], [[h]]], np.float32) * np.float32(scales[g] if scales else 1)
            centre = 1 / (1 + np.exp(-x[:, :2])) + np.stack(np.meshgrid(np.arange(w), np.arange(h)))
            centre = centre / np.array([[[w]], [[h]]], np.float32)
            size = np.exp(x[:, 2:4]) * a / whole
            c = x[:, 5:]
            label, best = c.argmax(axis=1), c.max(axis=1)
            if scales:
                score = 1 / (1 + np.exp(-x[:, 4]) * (1 + np.exp(-best)))
            else:
                score = 1 / (1 + np.exp(-x[:, 4])) / np.exp(c - best[:, None]).sum(axis=1)
            high = score >= least
            some = _around(*(v[high] for v in (*centre.swapaxes(0, 1), *size.swapaxes(0, 1))))
            found.append(_rows(label[high] + 1, score[high], some.astype(np.float32)))
        every = np.concatenate(found)
        return every[_chosen(every[:, 2:], every[:, 1], overlap, len(every))]

    return _stacked(map(rows, range(len(grids[0]))), 6)


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
    return Type(np.dtype(np.float32), (grids[0].shape[0], fresh(), 6))


@op()
def RegionProposal(
    score, move, image, *, stride=16, base=16, candidates=6000, most=300, overlap=0.7, least=16
):
    """(boxes [N,K,1,4], scores [N,K,1,1]) of the best regions, 0 behind the last

    Nine anchors, of sides 8, 16, 32 times `base` and ratios 1/2, 1, 2, stand in each cell of
    `stride` pixels; `move` [N,36,H,W] moves their centres by parts of their size, and scales by
    e^v; score is [N,18,H,W], the last nine count. Boxes end at the edge of the picture: image [N,3]
    is its height, width and scale; smaller ones than `least` times that scale are left out.
    """
    h, w = score.shape[2:]
    y, x = (np.mgrid[:h, :w] * stride).astype(np.float32)
    boxes, scores = [], []
    for n in range(len(score)):
        tall, wide, scale = image[n].reshape(-1)[:3]
        found = []
        for k, a in enumerate(_anchors(base)):
            t, size = move[n, 4 * k : 4 * k + 4], a[2:] - a[:2]
            centre = [
                x + a[0] + size[0] / 2 + size[0] * t[0],
                y + a[1] + size[1] / 2 + size[1] * t[1],
            ]
            b = _around(centre[0], centre[1], size[0] * np.exp(t[2]), size[1] * np.exp(t[3]))
            b = np.clip(b, 0, np.array([wide - 1, tall - 1, wide - 1, tall - 1], np.float32))
            found.append(np.concatenate([b, score[n, 9 + k].reshape(-1, 1)], axis=1))
        every = np.concatenate(found).astype(np.float32)
        large = (every[:, 2:4] - every[:, :2] + 1 >= least * scale).all(axis=1)
        every = every[large]
        every = every[np.argsort(-every[:, 4], kind="stable")][:candidates]
        grown = every[:, :4] + np.array([0, 0, 1, 1], np.float32)
        kept = _chosen(grown, every[:, 4], overlap, most)
        boxes.append(every[kept, :4])
        scores.append(every[kept, 4:])
    return _stacked(boxes, 4)[:, :, None], _stacked(scores, 1)[:, :, None]


def _anchors(base: int) -> Array:
    rows = []
    for ratio in (0.5, 1.0, 2.0):
        w = np.round(base / np.sqrt(ratio))
        h = np.round(w * ratio)
        rows += [(w * s, h * s) for s in (8, 16, 32)]
    sizes = np.array(rows, np.float32).T
    middle = np.array(base / 2, np.float32)
    return _around(middle, middle, sizes[0], sizes[1])


@RegionProposal.type
def _(score, move, image, **_):
    _need_floats(score, move, image)
    need(score.rank == 4 and move.rank == 4, "score and move are [N, C, H, W]")
    need(score.shape[1] == 18 and move.shape[1] == 36, "there are nine anchors")
    count = fresh()
    return tuple(Type(np.dtype(np.float32), (score.shape[0], count, 1, n)) for n in (4, 1))


@op("reduction")
def PlaceRoiPool(x, rois, *, pooled_shape, channels, spatial_scale=1.0):
    """y[n,c,i,j] = the mean of x[n, (c, i, j)] in cell (i, j) of region n, 0 where that is empty

    Every cell has channels of its own: x is [N, channels * h * w, H, W]; rois [N,4] are (x1, y1,
    x2, y2), rounded, ends included, and scaled by spatial_scale then.
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
    need(x.shape[1] in (want,) or isinstance(x.shape[1], str), f"x has no {want} channels")
    return x.type.like(shape=(x.shape[0], channels, *pooled_shape))
