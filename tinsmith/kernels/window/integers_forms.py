"""Winograd's methods F(m x m, 3x3) in whole numbers: the transforms of one axis.

For floats the matrix G, which transforms weights, has fractions. Here each row of G is multiplied
by a number that makes it whole, and the matrix A by whole numbers that make up for it, so that
result i of an axis comes out as s[i] y[i] rather than y[i]. With (m+2)^2 products, not 9 m^2,

    s[i] s[j] y[i, j] = (A (U * V) A')[i, j],   U = G w G',   V = B x B'

is exact modulo 2^32: U and V fit into 16 bits for all bytes w and x, and products and sums may wrap
around. To divide by s[i] s[j] = odd * 2^e, the odd factor is multiplied by its inverse modulo 2^32;
what is left, 2^e y, is shifted. It must fit into 32 bits, which depends on the weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinsmith.codegen.values import Val
from tinsmith.graph import Array
from tinsmith.records import dataclass

Axis = Callable[[list[Val]], list[Val]]
"""Code that transforms the values of one axis."""
MODULUS = 1 << 32
"""Sums of 32 bits are known modulo this number."""
BYTES = 255
"""The largest difference of two bytes of one signedness."""


@dataclass(frozen=True)
class Form:
    """A method for tiles of m x m results.

    tile      m
    taps      the matrix G in whole numbers, (m + 2) x 3
    scales    s: the factor by which each result of an axis comes out too large
    forward   emits the transform of m + 2 pixels of an axis, by the matrix B
    backward  emits the transform of m + 2 products of an axis to m results, by the matrix A
    around    the time of both transforms, for each 32-bit lane of transformed input or of products,
              as the number of flops that take as long
    """

    tile: int
    taps: tuple[tuple[int, int, int], ...]
    scales: tuple[int, ...]
    forward: Axis
    backward: Axis
    around: float

    @property
    def window(self) -> int:
        """How many neighbouring pixels along one axis the results of a tile read: m + 2."""
        return self.tile + 2

    @property
    def points(self) -> int:
        """Elements of a transformed tile: products for each pair of channels."""
        return self.window**2

    def result(self, i: int, j: int, v: Val) -> Val:
        """Emit result (i, j) of a tile from `v`, its value times the scales, modulo 2^32."""
        odd, shift = _odd_and_shift(self.scales[i] * self.scales[j])
        if odd > 1:
            v = v * _signed(pow(odd, -1, MODULUS))
        return v >> shift if shift else v

    def transformed(self, w: Array) -> Array:
        """The transformed weights G w G' of w [outputs, inputs, 3, 3], as [point, inputs, outputs]:
        whole numbers, exact in float32."""
        g = np.array(self.taps, np.float32)
        points = np.kron(g, g) @ w.reshape(-1, 9).T.astype(np.float32)
        return points.reshape(self.points, *w.shape[:2]).swapaxes(1, 2)

    def fits(self, most: int) -> bool:
        """Whether results are right for all inputs, if `most_of_one_sign` of the weights, less
        their zero points, is `most`."""
        shift = max(_odd_and_shift(s * t)[1] for s in self.scales for t in self.scales)
        return BYTES * most << shift < MODULUS // 2


def most_of_one_sign(w: Array) -> int:
    """The largest sum, over all outputs, of an output's positive weights, or of the magnitudes of
    its negative ones. A result's magnitude is at most BYTES times that. `w` is [outputs, k]."""
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
"""The methods, by the extent of their tiles."""
