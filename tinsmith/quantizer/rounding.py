"""Compensated rounding of weights: later weights compensate the rounding errors of earlier ones.

Weights are rounded one input at a time; each error is spread over the inputs that are not rounded
yet, weighted by the correlations of the layer's inputs (optimal brain surgery, known as GPTQ). At
four bits that is much better than rounding to the nearest."""

from __future__ import annotations

import numpy as np

from tinsmith.graph import Array, Node
from tinsmith.ops._weights import by_outputs, from_outputs, is_convolution, is_matrix_product
from tinsmith.ops.window import padded, window, windows
from tinsmith.quantizer.scales import Scale

DAMPING = 0.01
"""Fraction of the diagonal's mean that is added to the diagonal, so that the inverse exists.
Estimated."""
ROWS = 4096
"""Results of a batch, at most, whose inputs are added to the correlations. Estimated."""
DEEPEST = 4608
"""Inputs of one result, at most, for which correlations are kept: 3x3 taps of 512 channels, 170 MB
of float64. Deeper layers are rounded to the nearest."""


class Correlations:
    """The correlations of a layer's inputs: `sums` [group, depth, depth] = sum over results of x
    x^T, where x are the `depth` inputs that one result sums up (channels and taps)."""

    def __init__(self, node: Node, weights: Array) -> None:
        self.node, self.weights = node, weights
        self.group = node.attrs.get("group", 1)
        self.depth = depth_of(node, weights)
        self.sums = np.zeros((self.group, self.depth, self.depth))
        self._random = np.random.default_rng(0)

    def add(self, x: Array) -> None:
        """Add to `sums` a batch of the layer's data, for at most ROWS results, drawn at random."""
        for i, part in enumerate(self._columns(x)):
            self.sums[i] += part.T @ part

    def _columns(self, x: Array) -> list[Array]:
        """Return for each group a matrix [results, depth]: a row has the inputs that one result is
        computed from (im2col). Of more than ROWS results, ROWS are drawn at random."""
        if self.weights.ndim == 2:
            flat = x.reshape(-1, x.shape[-1])
            return [flat[self._picked(len(flat))].astype(np.float64)]
        kernel, node = self.weights.shape[2:], self.node
        win, rank = window(x.shape[2:], kernel, node.stride, node.pad, node.dilation), len(kernel)
        # [n, channels, *places, *kernel] -> [n, *places, channels, *kernel]
        moved = np.moveaxis(windows(padded(x, win, 0), win), 1, 1 + rank)
        count = int(np.prod(moved.shape[: 1 + rank]))
        rows = self._picked(count)
        places = np.unravel_index(rows, moved.shape[: 1 + rank])
        flat = moved[places].reshape(len(rows), self.group, -1).astype(np.float64)
        return [flat[:, i] for i in range(self.group)]

    def _picked(self, count: int) -> Array:
        """Return up to ROWS different numbers below `count`, sorted."""
        if count <= ROWS:
            return np.arange(count)
        return np.sort(self._random.choice(count, ROWS, replace=False))


def depth_of(node: Node, weights: Array) -> int:
    """Return the number of inputs (channels and taps) that each result of a node sums up."""
    return int(np.prod(by_outputs(node, weights).shape[1:]))


def takes(node: Node, weights: Array) -> bool:
    """Whether the weights of a node can be rounded with compensation: those of a product with a
    matrix, or of a convolution without `auto_pad`, if results sum up at most DEEPEST inputs."""
    plain = weights.ndim == 2 if is_matrix_product(node) else is_convolution(node)
    fixed = node.attrs.get("auto_pad", "NOTSET") == "NOTSET"
    return plain and fixed and depth_of(node, weights) <= DEEPEST


def compensated(found: Correlations, scale: Scale) -> Array:
    """Return `found.weights` as integers in their shape, of the dtype of `scale.zero`, rounded with
    compensation."""
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
    """Return the weights `rows` [outputs, depth] of one group as whole numbers in float64, in
    `scale.ends`, rounded by GPTQ: column by column, those of the largest inputs first; the columns
    that are not rounded yet compensate each error in the results, by the correlations `sums`
    [depth, depth]. `steps` [outputs]: the scale of each output."""
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
