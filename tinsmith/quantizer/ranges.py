"""Ranges of activations from statistics: one function a method.

A range that holds every element wastes whole numbers on a few large ones; a smaller one cuts these
off. Methods differ in what they call the best of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.quantizer.statistics import BINS, Statistics
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
Range = tuple[float, float]

TAIL = 1e-4
"""The share of elements that the method `percentile` cuts off, both ends together: the 99.99th
percentile of TensorRT's and ONNX Runtime's calibration."""
LEVELS = 128
"""The levels that ranges by relative entropy are chosen for: half of eight bits, as in ncnn and
TensorRT."""
FEW = 64
"""Bins that must be filled before their entropy counts: MNN asks for a hundred. Estimated."""
SMOOTH = 1e-4
"""What ncnn puts in the place of an empty bin before it compares distributions."""
GRID = 64
"""Ends that are tried on each side by methods that search. Estimated."""


@dataclass(frozen=True)
class Method:
    """A way to choose the range of a value.

    choose  its statistics -> (low, high)
    counts  whether it reads the histogram, for which the data are read once more
    """

    name: str
    summary: str
    choose: Callable[[Statistics], Range]
    counts: bool = True


def minmax(s: Statistics) -> Range:
    return s.low, s.high


def average(s: Statistics) -> Range:
    assert s.average is not None
    return s.average


def percentile(s: Statistics) -> Range:
    """The range without the elements farthest out: as many of the smallest as of the largest,
    together the part TAIL."""
    counts = s.histogram.copy()
    counts[BINS] += s.zeros
    total = np.cumsum(counts) / counts.sum()
    edges = np.arange(2 * BINS + 1) / BINS * s.largest - s.largest
    low = edges[int(np.searchsorted(total, TAIL / 2, side="right"))]
    high = edges[min(int(np.searchsorted(total, 1 - TAIL / 2)) + 1, 2 * BINS)]
    return max(low, s.low), min(high, s.high)


def kl(s: Statistics) -> Range:
    """The range as ncnn chooses it: [-t, t], within the values seen, for the t at which 128 levels
    differ least, by relative entropy, from the histogram of magnitudes. Distributions are
    smoothed."""
    return _cut(s, _threshold(s.sizes, smooth=True) + 0.5)


def tensorrt(s: Statistics) -> Range:
    """The range as TensorRT's calibration chooses it: as `kl`, but over the bins that are not empty
    instead of smoothed ones."""
    return _cut(s, _threshold(s.sizes, smooth=False) + 0.5)


def _cut(s: Statistics, bins: float) -> Range:
    """The range of the values seen, cut to [-t, t], where the threshold t is the upper end of bin
    number `bins` of the histogram of magnitudes."""
    most = bins * s.largest / BINS
    return max(s.low, -most), min(s.high, most)


def _threshold(sizes: Array, smooth: bool) -> int:
    """The number of bins of magnitudes, from 128 to BINS, at which to cut: that with the least
    `_entropy`. BINS where fewer than FEW bins are filled, since entropy says nothing of a few
    values."""
    if np.count_nonzero(sizes) < FEW:
        return BINS
    below = np.concatenate(([0.0], np.cumsum(sizes)))
    filled = np.concatenate(([0.0], np.cumsum(sizes > 0)))
    best, least = BINS, np.inf
    for bins in range(LEVELS, BINS):
        found = _entropy(sizes[:bins], below[-1] - below[bins], below, filled, smooth)
        if found < least:
            best, least = bins, found
    return best


def _entropy(own: Array, beyond: float, below: Array, filled: Array, smooth: bool) -> float:
    """The Kullback-Leibler divergence of the histogram's first bins from the same in 128 levels.

    own     the counts of these bins; the last one gets the count `beyond` of all further ones
    below   how many elements lie below each bin
    filled  how many bins that are not empty lie below each bin
    smooth  whether empty bins are filled up a little; otherwise they are left out
    """
    bins = len(own)
    edges = np.arange(LEVELS + 1) * (bins / LEVELS)
    places = np.arange(bins + 1.0)
    mass = np.diff(np.interp(edges, places, below[: bins + 1]))
    count = np.diff(np.interp(edges, places, filled[: bins + 1]))
    each = np.divide(mass, count, out=np.zeros(LEVELS), where=count > 0)
    # A bin that an edge cuts has a part of both levels.
    spread = np.interp(places, edges, np.concatenate(([0.0], np.cumsum(each * np.diff(edges)))))
    q = np.diff(spread) * (own > 0)
    p = own.copy()
    p[-1] += beyond
    return _relative_entropy(p, q, smooth)


def _relative_entropy(p: Array, q: Array, smooth: bool) -> float:
    if p.sum() == 0 or q.sum() == 0:
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    if smooth:
        p, q = np.maximum(p, SMOOTH), np.maximum(q, SMOOTH)
    used = p > 0
    if np.any(q[used] == 0):
        q = np.where(used & (q == 0), np.finfo(np.float64).tiny, q)
    return float(np.sum(p[used] * np.log(p[used] / q[used])))


def aciq(s: Statistics) -> Range:
    """Analytical clipping: the range around the middle (0 if all values have one sign) with the
    least expected error of clipping and rounding, for a normal or a Laplace distribution, whichever
    the mean deviation fits better."""
    total, counts = s.histogram.sum() + s.zeros, s.histogram
    one_sided = s.low >= 0 or s.high <= 0
    middle = 0.0 if one_sided else float(counts @ s.centres) / total
    off = np.abs(s.centres - middle)
    deviation = (float(counts @ off) + s.zeros * abs(middle)) / total
    spread = np.sqrt((float(counts @ off**2) + s.zeros * middle**2) / total)
    levels = 4.0 ** (9 if one_sided else 8)
    normal = abs(deviation / spread - np.sqrt(2 / np.pi)) < abs(deviation / spread - np.sqrt(0.5))
    factors = np.linspace(1, 20, 400)
    if normal:
        clipped = [float(_normal_tail(f)) for f in factors]
        width = spread
    else:
        clipped = [float(2 * np.exp(-f)) for f in factors]
        width = deviation
    noise = np.array(clipped) + factors**2 / (3 * levels)
    most = float(factors[int(noise.argmin())] * width)
    return max(s.low, middle - most), min(s.high, middle + most)


def _normal_tail(f: float) -> float:
    """E[(|x| - f)^2 where |x| > f] of a standard normal x: the squared error of clipping at f."""
    from math import erfc, exp, pi, sqrt

    return (1 + f * f) * erfc(f / sqrt(2)) - 2 * f * exp(-f * f / 2) / sqrt(2 * pi)


def mse(s: Statistics) -> Range:
    """The range with the least squared error of the histogram rounded to 256 levels."""
    counts, centres = s.histogram, s.centres

    def error(low: float, high: float) -> float:
        step = max((high - low) / 255, np.finfo(np.float64).tiny)
        real = np.clip(np.rint((centres - low) / step), 0, 255) * step + low
        return float(counts @ (real - centres) ** 2)

    return _search(s, error)


def entropy(s: Statistics) -> Range:
    """The range with the least relative entropy between the histogram and the same in 128 levels,
    for low and high end each by itself: `tensorrt` for values that do not lie evenly around
    zero."""
    counts = s.histogram

    def error(low: float, high: float) -> float:
        first = int(np.clip((low / s.largest + 1) * BINS, 0, 2 * BINS - 1))
        last = int(np.clip((high / s.largest + 1) * BINS, first + 1, 2 * BINS))
        own = counts[first:last]
        if len(own) < LEVELS:
            return np.inf
        groups = np.arange(len(own)) * LEVELS // len(own)
        full = own > 0
        mass = np.bincount(groups, own, LEVELS)
        each = mass / np.maximum(np.bincount(groups, full, LEVELS), 1)
        p = own.copy()
        p[0] += counts[:first].sum()
        p[-1] += counts[last:].sum()
        return _relative_entropy(p, each[groups] * full, smooth=False)

    return _search(s, error)


def _search(s: Statistics, error: Callable[[float, float], float]) -> Range:
    """The (low, high) of least `error(low, high)`: parts 1/GRID to 1 of the range of values, zero
    included, first the same part for both ends, then low, then high by itself."""
    low, high = min(s.low, 0.0), max(s.high, 0.0)
    if low == high:
        return low, high
    parts = np.linspace(1, 1 / GRID, GRID)
    best = min(parts, key=lambda part: error(low * part, high * part))
    ends = [best, best]
    for side in (0, 1):
        if (low, high)[side] == 0:
            continue

        def one(part: float, side: int = side) -> float:
            tried = list(ends)
            tried[side] = part
            return error(low * tried[0], high * tried[1])

        ends[side] = min(parts, key=one)
    return low * ends[0], high * ends[1]


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("minmax", "every element is in the range", minmax, counts=False),
        Method("average", "the moving average of the ranges of batches", average, counts=False),
        Method("percentile", "without the 0.01 % that lie farthest out", percentile),
        Method("kl", "the least relative entropy, as in ncnn", kl),
        Method("tensorrt", "the least relative entropy, as in TensorRT", tensorrt),
        Method("aciq", "the least expected error of a normal or Laplace distribution", aciq),
        Method("mse", "the least squared error", mse),
        Method("entropy", "the least relative entropy, each end by itself", entropy),
    )
}
