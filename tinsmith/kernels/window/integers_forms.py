"""Winograd's methods F(m x m, 3x3) in whole numbers: what the transforms of one axis are.

A method for floats has fractions in G, which transforms weights. Here each row of G is multiplied
by what makes it whole, and column k of A' by a whole number that makes up for it, so that result i
of an axis comes out as s[i] y[i]. With (m+2)^2 products in place of 9 m^2

    s s' y = A (U * V) A',   U = G w G',   V = B x B'

is exact modulo 2^32: V and U fit into 16 bits, whatever bytes x and w are made of, and products
and sums may wrap around. Of s s' = odd * 2^e the odd factor has an inverse modulo 2^32, and what
is left, 2^e y, must fit into 32 bits: weights decide whether it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.codegen.values import Val
from tinsmith.records import dataclass

Array = np.ndarray[Any, Any]
Axis = Callable[[list[Val]], list[Val]]
MODULUS = 1 << 32
"""Of sums of 32 bits."""
BYTES = 255
"""The largest difference of two bytes of one signedness."""


@dataclass(frozen=True)
class Form:
    """A method for tiles of m x m results.

    tile      m
    taps      G, of whole numbers: (m + 2) x 3
    scales    s: what each result of an axis is too large by
    forward   the transform of m + 2 pixels of an axis, B, as code
    backward  the transform of m + 2 products to m results of an axis, times `scales`, as code
    around    flops that take as long as the transforms, for each lane of 32 bits of transformed
              input or of products
    """

    tile: int
    taps: tuple[tuple[int, int, int], ...]
    scales: tuple[int, ...]
    forward: Axis
    backward: Axis
    around: float

    @property
    def window(self) -> int:
        """How many pixels of an axis a tile needs."""
        return self.tile + 2

    @property
    def points(self) -> int:
        """Products of a tile, for each pair of channels."""
        return self.window**2

    def result(self, i: int, j: int, v: Val) -> Val:
        """Result (i, j) of a tile from what the transforms leave of it."""
        odd, shift = _odd_and_shift(self.scales[i] * self.scales[j])
        if odd > 1:
            v = v * _signed(pow(odd, -1, MODULUS))
        return v >> shift if shift else v

    def transformed(self, w: Array) -> Array:
        """G w G' of the weights w [outputs, inputs, 3, 3]: [point, inputs, outputs]. float32 holds
        all of these numbers."""
        g = np.array(self.taps, np.float32)
        points = np.kron(g, g) @ w.reshape(-1, 9).T.astype(np.float32)
        return points.reshape(self.points, *w.shape[:2]).swapaxes(1, 2)

    def fits(self, most: int) -> bool:
        """Whether results come out right, whatever bytes the input has, with weights less their
        zero points of which `most_of_one_sign` is `most`."""
        shift = max(_odd_and_shift(s * t)[1] for s in self.scales for t in self.scales)
        return BYTES * most << shift < MODULUS // 2


def most_of_one_sign(w: Array) -> int:
    """The largest sum of the positive weights of an output, or of its negative ones without their
    sign: what results are at most, over BYTES. w [outputs, k]."""
    both, rest = (v.sum(axis=1, dtype=np.int64) for v in (np.abs(w), w))
    return int((both + np.abs(rest)).max()) // 2


def _odd_and_shift(scale: int) -> tuple[int, int]:
    """(odd, shift) with scale = odd * 2^shift."""
    shift = (scale & -scale).bit_length() - 1
    return scale >> shift, shift


def _signed(number: int) -> int:
    """The int32 that is `number` modulo 2^32."""
    return number - MODULUS if number >= MODULUS // 2 else number


# ---- points 0, 1, -1 and infinity


def _forward2(x: list[Val]) -> list[Val]:
    return [x[0] - x[2], x[1] + x[2], x[2] - x[1], x[1] - x[3]]


def _backward2(m: list[Val]) -> list[Val]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


# ---- points 0, 1, -1, 2, -2 and infinity


def _forward4(x: list[Val]) -> list[Val]:
    far, near = x[4] - x[2], x[3] - x[1]
    even, odd, twice = x[4] - (x[2] << 2), x[3] - (x[1] << 2), near << 1
    return [((x[0] - x[2]) << 2) + far, even + odd, even - odd, far + twice, far - twice,
            (x[5] - x[3]) - (near << 2)]  # fmt: skip


def _backward4(m: list[Val]) -> list[Val]:
    ones, twos = m[1] + m[2], m[3] + m[4]
    one, two = m[1] - m[2], m[3] - m[4]
    return [(m[0] << 2) + (m[0] << 1) + (ones << 2) + twos, (one << 1) + two, ones + twos,
            one + (two << 1) + (m[5] << 2) + (m[5] << 1)]  # fmt: skip


FORMS = {
    2: Form(2, ((2, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 2)), (2, 2), _forward2, _backward2, 12.0),
    4: Form(
        4,
        ((1, 0, 0), (-1, -1, -1), (-1, 1, -1), (1, 2, 4), (1, -2, 4), (0, 0, 1)),
        (24, 12, 6, 6),
        _forward4,
        _backward4,
        20.0,
    ),
}
"""By the extent of their tiles."""
