"""Rounding of weights: each to the nearest, or so that later ones make up for earlier ones.

Rounded one input at a time, the error of each is spread over the inputs that are still to come, as
the correlations of the layer's inputs tell (the method of optimal brain surgery, known as GPTQ for
language models). At four bits that is much better than rounding each to the nearest.
"""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Node
from tinsmith.ops._weights import by_outputs, from_outputs, is_convolution, is_matrix_product
from tinsmith.quantizer.scales import Array, Scale

DAMPING = 0.01
"""Part of the mean of the diagonal that is added to it: keeps the inverse finite. Estimated."""
ROWS = 4096
"""Places of an image, or rows of a matrix, that a batch adds at most. Estimated."""
DEEPEST = 4608
"""Inputs of one result, at most, for which correlations are kept: 170 MB of float64 for that many,
3x3 taps of 512 channels. Deeper layers are rounded to the nearest."""


class Correlations:
    """What compensated rounding knows of a layer's inputs: `sums` [group, depth, depth], the
    products of each two of the `depth` inputs that a result sums, added up over results and
    batches."""

    def __init__(self, node: Node, weights: Array) -> None:
        self.node, self.weights = node, weights
        self.group = node.attrs.get("group", 1)
        self.depth = depth_of(node, weights)
        self.sums = np.zeros((self.group, self.depth, self.depth))
        self._random = np.random.default_rng(0)

    def add(self, x: Array) -> None:
        """Add the inputs of one batch to the correlations."""
        for i, part in enumerate(self._columns(x)):
            self.sums[i] += part.T @ part

    def _columns(self, x: Array) -> list[Array]:
        """For each group the inputs [results, depth], one row for each of up to ROWS results drawn
        at random."""
        if self.weights.ndim == 2:
            return [self._some(x.reshape(-1, x.shape[-1])).astype(np.float64)]
        kernel = self.weights.shape[2:]
        pad, rank = self.node.pad or (0,) * (2 * len(kernel)), len(kernel)
        edges = [(0, 0), (0, 0), *zip(pad[:rank], pad[rank:], strict=True)]
        x = np.pad(x, edges)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, self._pairs("dilation"), strict=True)]
        taps = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, 2 + rank)))
        steps = tuple(slice(None, None, s) for s in self._pairs("stride"))
        holes = tuple(slice(None, None, d) for d in self._pairs("dilation"))
        taps = taps[(slice(None), slice(None), *steps, *holes)]
        # [n, channels, *places, *kernel] -> [n, *places, channels, *kernel]
        order = (0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
        moved = taps.transpose(order)
        count = int(np.prod(moved.shape[: 1 + rank]))
        rows = self._picked(count)
        places = np.unravel_index(rows, moved.shape[: 1 + rank])
        flat = moved[places].reshape(len(rows), self.group, -1).astype(np.float64)
        return [flat[:, i] for i in range(self.group)]

    def _pairs(self, name: str) -> tuple[int, ...]:
        return getattr(self.node, name) or (1,) * (self.weights.ndim - 2)

    def _picked(self, count: int) -> Array:
        if count <= ROWS:
            return np.arange(count)
        return np.sort(self._random.choice(count, ROWS, replace=False))

    def _some(self, rows: Array) -> Array:
        return rows[self._picked(len(rows))]


def depth_of(node: Node, weights: Array) -> int:
    """How many inputs each result of a node sums."""
    return int(np.prod(by_outputs(node, weights).shape[1:]))


def takes(node: Node, weights: Array) -> bool:
    """Whether the weights of a node can be rounded by correlations."""
    plain = weights.ndim == 2 if is_matrix_product(node) else is_convolution(node)
    fixed = node.attrs.get("auto_pad", "NOTSET") == "NOTSET"
    return plain and fixed and depth_of(node, weights) <= DEEPEST


def compensated(found: Correlations, scale: Scale) -> Array:
    """The weights of a layer as whole numbers (of their shape, in the scale's type), rounded so
    that later ones make up for the errors of earlier ones."""
    w = found.weights
    rows = by_outputs(found.node, w)
    rows = rows.reshape(len(rows), -1)
    steps = np.broadcast_to(scale.scale.astype(np.float64).reshape(-1), (len(rows),))
    each = len(rows) // found.group
    own = [slice(i * each, (i + 1) * each) for i in range(found.group)]
    parts = [_round(rows[s], found.sums[i], steps[s], scale) for i, s in enumerate(own)]
    q = np.concatenate(parts)
    q = from_outputs(found.node, q, w.shape)
    return q.astype(np.int32).astype(scale.zero.dtype)


def _round(rows: Array, sums: Array, steps: Array, scale: Scale) -> Array:
    """Weights [outputs, depth] as whole numbers, rounded column by column, those of the largest
    inputs first: what the error of a column changes in the results, the columns still to come make
    up for, as the correlations `sums` [depth, depth] tell. `steps` [outputs] are the scales."""
    low, high = scale.ends
    diagonal = np.diagonal(sums)
    order = np.argsort(-diagonal, kind="stable")
    h = sums[np.ix_(order, order)].copy()
    h[np.diag_indices_from(h)] += DAMPING * max(float(diagonal.mean()), 1e-12)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    left = rows[:, order].astype(np.float64)
    q = np.empty_like(left)
    for i in range(left.shape[1]):
        q[:, i] = np.clip(np.rint(left[:, i] / steps), low, high)
        error = (left[:, i] - q[:, i] * steps) / upper[i, i]
        left[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    back = np.empty_like(q)
    back[:, order] = q
    return back


def nearest(w: Array, scale: Scale) -> Array:
    """The weights of a layer as whole numbers, each rounded to the nearest."""
    return scale.quantised(w)
