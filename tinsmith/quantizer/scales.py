"""Scales and zero points: from floats to integers of a few bits, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.errors import QuantizeError
from tinsmith.graph import dtype_of
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
SMALLEST = 1e-30
"""The smallest scale of weights: the product of two is no denormal float32."""


@dataclass(frozen=True)
class Scale:
    """How a tensor is quantised: q = clip(round(x / scale) + zero) to the integers of `bits` bits
    (`ends`), in the dtype of `zero`. `scale` and `zero` are single numbers, or arrays with an
    element for each index on `axis`."""

    scale: Array
    zero: Array
    axis: int = 0
    bits: int = 8

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        return ends(self.zero.dtype.name, self.bits)

    def spread(self, v: Array, rank: int) -> Array:
        """Reshape v, which is `scale` or `zero`, so that it broadcasts to tensors of this rank."""
        if v.size == 1:
            return v.reshape(())
        dims = [1] * rank
        dims[self.axis] = -1
        return v.reshape(dims)

    def whole(self, x: Array) -> Array:
        """Return x / scale in float64, neither rounded nor shifted by the zero point."""
        return x / self.spread(self.scale.astype(np.float64), x.ndim)

    def quantised(self, x: Array) -> Array:
        """Quantise x: integers of the dtype of `zero`, each rounded to the nearest."""
        zero = self.spread(self.zero.astype(np.float64), x.ndim)
        low, high = self.ends
        return np.clip(np.rint(self.whole(x)) + zero, low, high).astype(np.int32).astype(
            self.zero.dtype
        )  # fmt: skip

    def real(self, q: Array) -> Array:
        """Dequantise integers q to float32."""
        zero = self.spread(self.zero.astype(np.float32), q.ndim)
        return (q.astype(np.float32) - zero) * self.spread(self.scale, q.ndim)


def ends(dtype: str, bits: int) -> tuple[int, int]:
    """Return (least, greatest) of the integers with `bits` bits in a dtype: unsigned ones from 0;
    signed ones symmetric, such as -127 to 127."""
    if dtype.startswith("uint"):
        return 0, 2**bits - 1
    return 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1


def checked(scale: Array, what: str) -> Array:
    """Return scales as float32. Raises QuantizeError, which calls what is scaled `what`, unless all
    are positive and finite."""
    found = np.asarray(scale, np.float32)
    if not (np.isfinite(found).all() and (found > 0).all()):
        wrong = found[~(np.isfinite(found) & (found > 0))].reshape(-1)[0]
        raise QuantizeError(
            f"the scale of {what} would be {wrong:g}; scales are positive and finite: the values "
            "it is made from are all zero, or not finite"
        )
    return found


def of_range(low: float, high: float, symmetric: bool, what: str) -> Scale:
    """Return the scale of an activation with values from `low` to `high`: uint8 with a zero point,
    or, if `symmetric`, int8 without. 0.0 is represented exactly, for padding. Raises QuantizeError,
    which names `what`, if both are 0 or one is not finite."""
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        scale = checked(np.asarray(max(-low, high) / 127), what)
        return Scale(scale.reshape(()), np.zeros((), np.int8))
    scale = checked(np.asarray((high - low) / 255), what)
    zero = np.clip(np.rint(-low / scale.astype(np.float64)), 0, 255)
    return Scale(scale.reshape(()), np.asarray(zero, np.uint8))


def of_weights(w: Array, axis: int | None, bits: int, best: bool = False) -> Scale:
    """Return the symmetric scale of weights: one number for each index on `axis`, or one (None). It
    covers the largest weight; with `best`, for few bits, it is the one of least squared error.
    Weights of up to 4 bits are int4, others int8."""
    rows = w.reshape(1, -1)
    if axis is not None:
        rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    most = 2 ** (bits - 1) - 1
    largest = np.abs(rows).max(axis=1, initial=0).astype(np.float64)
    scale = np.maximum(np.where(largest > 0, largest, 1.0) / most, SMALLEST)
    if best:
        scale = _least_error(rows, scale, most)
    kind = dtype_of("int8" if bits > 4 else "int4")
    found = checked(scale, "weights").reshape(() if axis is None else -1)
    return Scale(found, np.zeros(found.shape, np.int8).astype(kind), axis or 0, bits)


STEPS = 40
"""Scales that `_least_error` tries for each row. Estimated: finer steps gain nothing."""


def _least_error(rows: Array, scale: Array, most: int) -> Array:
    """Return for each row of weights the scale of least squared error, from half of the given one
    to all of it. `most` is the greatest integer."""
    best, least = scale.copy(), np.full(len(rows), np.inf)
    for part in np.linspace(1, 0.5, STEPS):
        tried = (scale * part)[:, None]
        error = np.clip(np.rint(rows / tried), -most, most) * tried - rows
        squares = np.einsum("ij,ij->i", error, error)
        better = squares < least
        best[better], least[better] = tried[better, 0], squares[better]
    return best
