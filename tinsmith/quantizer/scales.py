"""Scales and zero points: from floats to integers of a few bits, and back."""

from __future__ import annotations

import numpy as np

from tinsmith.errors import QuantizeError
from tinsmith.graph import Array, dtype_of
from tinsmith.ops.quant import spread
from tinsmith.records import dataclass

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
        """The least and the greatest integer: unsigned ones from 0; signed ones symmetric, such as
        -127 to 127."""
        if self.zero.dtype.name.startswith("uint"):
            return 0, 2**self.bits - 1
        return 1 - 2 ** (self.bits - 1), 2 ** (self.bits - 1) - 1

    def quantised(self, x: Array) -> Array:
        """Quantise x: integers of the dtype of `zero`, each rounded to the nearest."""
        scale, zero = (
            spread(v.astype(np.float64), x.shape, self.axis, 0) for v in (self.scale, self.zero)
        )
        whole = np.clip(np.rint(x / scale) + zero, *self.ends)
        return whole.astype(np.int32).astype(self.zero.dtype)

    def real(self, q: Array) -> Array:
        """Dequantise integers q to float32."""
        zero = spread(self.zero.astype(np.float32), q.shape, self.axis, 0)
        return (q.astype(np.float32) - zero) * spread(self.scale, q.shape, self.axis, 0)


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
