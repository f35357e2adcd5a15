"""Chooses ranges of activations from statistics: one function for each method.

A range of all elements makes steps large because of a few large ones; a smaller range clips these.
The methods balance the errors of rounding and clipping differently."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.graph import Array
from tinsmith.quantizer.statistics import BINS, Statistics
from tinsmith.records import dataclass

Range = tuple[float, float]

TAIL = 1e-4
"""The fraction of elements that the method `percentile` clips, both ends together: the 99.99th
percentile of TensorRT's and ONNX Runtime's calibration."""
LEVELS = 128
"""Levels of the quantised distribution in methods by relative entropy: half of eight bits, as in
ncnn and TensorRT."""
FEW = 64
"""Filled bins below which a histogram is too sparse for its entropy: MNN asks for 100.
Estimated."""
SMOOTH = 1e-4
"""Probability of an empty bin after ncnn's smoothing."""
GRID = 64
"""Ends that are tried on each side by methods that search. Estimated."""


@dataclass(frozen=True)
class Method:
    """A way to choose the range of a value.

    choose  its statistics -> (low, high)
    counts  whether it needs the histogram, which takes a second pass over the data
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
    """The range without the smallest and the largest elements: TAIL / 2 of all on each side."""
    counts = s.histogram.copy()
    counts[BINS] += s.zeros
    total = np.cumsum(counts) / counts.sum()
    edges = np.arange(2 * BINS + 1) / BINS * s.largest - s.largest
    low = edges[int(np.searchsorted(total, TAIL / 2, side="right"))]
    high = edges[min(int(np.searchsorted(total, 1 - TAIL / 2)) + 1, 2 * BINS)]
    return max(low, s.low), min(high, s.high)


def kl(s: Statistics) -> Range:
    """ncnn's range: that of the observed values, clipped to [-t, t]. t is chosen so that the
    histogram of magnitudes up to t has the least relative entropy to itself in LEVELS levels. Empty
    bins get the probability SMOOTH."""
    return _cut(s, smooth=True)


def tensorrt(s: Statistics) -> Range:
    """The range of TensorRT's calibration: as `kl`, but empty bins are left out."""
    return _cut(s, smooth=False)


def _cut(s: Statistics, smooth: bool) -> Range:
    """The range of the observed values, clipped to [-t, t]: t lies half a bin of the histogram
    of magnitudes beyond the bins that `_threshold` counts."""
    most = (_threshold(s.sizes, smooth) + 0.5) * s.largest / BINS
    return max(s.low, -most), min(s.high, most)


def _threshold(sizes: Array, smooth: bool) -> int:
    """The number of bins of magnitudes (of the histogram `sizes`), LEVELS to BINS, after which to
    clip: that with the least `_entropy`. BINS, which clips nothing, where fewer than FEW bins are
    filled."""
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
    """The `_relative_entropy` of a histogram's first bins to the same in 128 levels.

    own     the counts of these bins; the last gets the count of all `beyond`, which are clipped
    below   for each bin the number of elements below it
    filled  for each bin the number of non-empty bins below it
    smooth  whether empty bins get the probability SMOOTH; else they are left out
    """
    bins = len(own)
    edges = np.arange(LEVELS + 1) * (bins / LEVELS)
    places = np.arange(bins + 1.0)
    mass = np.diff(np.interp(edges, places, below[: bins + 1]))
    count = np.diff(np.interp(edges, places, filled[: bins + 1]))
    each = np.divide(mass, count, out=np.zeros(LEVELS), where=count > 0)
    # A bin on the border of two levels has a fraction of both.
    spread = np.interp(places, edges, np.concatenate(([0.0], np.cumsum(each * np.diff(edges)))))
    q = np.diff(spread) * (own > 0)
    p = own.copy()
    p[-1] += beyond
    return _relative_entropy(p, q, smooth)


def _relative_entropy(p: Array, q: Array, smooth: bool) -> float:
    """The sum p log(p / q) of two histograms, made distributions; infinite for an empty one. With
    `smooth` probabilities below SMOOTH are raised to it; else bins that are empty in p are left
    out."""
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
    """Analytical clipping (ACIQ): the range around the mean (0 if all values have one sign), within
    the observed values, with the least expected squared error of clipping and rounding, for a
    normal or Laplace distribution, whichever fits the mean absolute deviation better."""
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
    """The expected squared error of clipping a standard normal x at f: E[(|x| - f)^2; |x| > f]."""
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
    """The range with the least relative entropy between the histogram and the same in 128 levels.
    As `tensorrt`, but with both ends chosen separately, for values that are not symmetric."""
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
    """Search for the (low, high) of least `error(low, high)`. Ends are fractions 1/GRID to 1 of the
    observed range, which includes zero: first the same fraction for both ends, then low alone, then
    high alone."""
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
