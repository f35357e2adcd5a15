"""Statistics of a value over calibration data: ranges, means, a histogram; of a size that does not
depend on the amount of data."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tinsmith.errors import CalibrationError
from tinsmith.graph import Array
from tinsmith.records import dataclass

BINS = 2048
"""Bins of a histogram on each side of zero, as in ncnn and TensorRT."""
MOMENTUM = 0.9
"""Weight of the old moving average of a range at the next batch. Estimated: the usual one."""


@dataclass
class Statistics:
    """Statistics of one value, in two passes over the data: `look` at every batch, then, for the
    histogram, `count` every batch.

    low, high  range of all elements
    average    moving average of the ranges of batches
    sums       sum of the elements of each channel (index on `axis`), begun anew when the number of
               channels changes; `number`: of elements in all
    histogram  2 * BINS bins from -largest to largest, zeros not counted; `zeros`: their number
    """

    name: str
    axis: int
    low: float = np.inf
    high: float = -np.inf
    average: tuple[float, float] | None = None
    number: int = 0
    sums: Array | None = None
    histogram: Array = field(default_factory=lambda: np.zeros(2 * BINS))
    zeros: int = 0

    def look(self, x: Array) -> None:
        """Add a batch to range, moving average and sums. Raises CalibrationError for elements that
        are not finite."""
        if x.size == 0:
            return
        low, high = float(x.min()), float(x.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise CalibrationError(
                f"{self.name!r} is not finite for the data: it reaches from {low:g} to {high:g}"
            )
        self.low, self.high = min(self.low, low), max(self.high, high)
        old = self.average or (low, high)
        self.average = (
            MOMENTUM * old[0] + (1 - MOMENTUM) * low,
            MOMENTUM * old[1] + (1 - MOMENTUM) * high,
        )
        axis = self.axis % x.ndim if x.ndim else 0
        others = tuple(i for i in range(x.ndim) if i != axis)
        sums = np.asarray(x.sum(axis=others, dtype=np.float64))
        if self.sums is None or self.sums.shape != sums.shape:  # of other channels than before
            self.sums, self.number = sums, x.size
        else:
            self.sums, self.number = self.sums + sums, self.number + x.size

    @property
    def largest(self) -> float:
        """The largest magnitude of an element."""
        return max(-self.low, self.high, 0.0)

    @property
    def means(self) -> Array:
        """The mean of every channel, [channels]."""
        assert self.sums is not None
        return self.sums * self.sums.size / self.number

    def count(self, x: Array) -> None:
        """Add a batch to the histogram and the number of zeros."""
        flat = x.reshape(-1)
        zero = int(np.count_nonzero(flat == 0))
        self.zeros += zero
        if self.largest == 0:
            return
        places = ((flat / self.largest + 1.0) * BINS).astype(np.int32)
        np.clip(places, 0, 2 * BINS - 1, out=places)
        counts = np.bincount(places, minlength=2 * BINS).astype(np.float64)
        counts[BINS] -= zero
        self.histogram += counts

    @property
    def sizes(self) -> Array:
        """The histogram of magnitudes, BINS bins from 0 to largest, without zeros."""
        return self.histogram[BINS:] + self.histogram[:BINS][::-1]

    @property
    def centres(self) -> Array:
        """The middle of every bin of the histogram."""
        return (np.arange(2 * BINS) + 0.5) / BINS * self.largest - self.largest
