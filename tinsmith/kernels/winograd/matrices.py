"""Bilinear algorithms for short correlations, as matrices of exact fractions.

The correlation of n = stride * (m - 1) + r values d with r taps g has m results:

    y = A^T [(G g) * (B^T d)],    y[i] = sum over k of g[k] * d[stride * i + k]

with a multiplications (* is elementwise). At stride 1 this is the Cook-Toom algorithm, which
evaluates at a - 1 = m + r - 2 finite points and infinity. A larger stride splits taps and data by
their remainder modulo the stride; each part is a correlation of stride 1, and results are added.

The finite points are fractions whose denominators are powers of 2, so that the transform matrices
of data and results are exact in float32. As many as possible come in pairs +p, -p, whose rows share
most of their arithmetic.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

from tinsmith.records import dataclass

_TABLE = {
    1: "0",
    2: "0 1",
    3: "0 1 -1",
    4: "0 3/4 -3/4 3/2",
    5: "0 3/4 -3/4 3/2 -3/2",
    6: "0 1 -1 3/2 -3/2 3/8",
    7: "0 1/2 -1/2 1 -1 3/2 -3/2",
    8: "0 3/4 -3/4 5/4 -5/4 2 -2 3/8",
}

MOST = max(_TABLE)


def points(count: int) -> tuple[Fraction, ...]:
    """`count` distinct finite evaluation points of the Cook-Toom algorithm."""
    return tuple(map(Fraction, _TABLE[count].split()))


Matrix = tuple[tuple[Fraction, ...], ...]

ZERO, ONE = Fraction(0), Fraction(1)  # exact


@dataclass(frozen=True, eq=False)
class Bilinear:
    """The algorithm of one axis of a Winograd convolution: m results of r taps at a stride, with a
    multiplications. `at` is A^T (m x a), `g` is G (a x r), `bt` is B^T (a x n).

    Algorithms are compared and hashed by identity, as comparing fractions would take longer than
    computing with them: `bilinear` returns the same object each time.
    """

    m: int
    r: int
    stride: int
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def products(self) -> int:
        """How many multiplications m results take: the extent a of the matrices."""
        return len(self.g)

    @property
    def reach(self) -> int:
        """How many input values m results need: the extent n of the matrices."""
        return self.stride * (self.m - 1) + self.r

    @property
    def name(self) -> str:
        return f"F({self.m},{self.r}) in {self.products}"

    @functools.cached_property
    def growth(self) -> float:
        """How much larger summed numbers, and rounding errors, can be than in the plain sum: the
        largest element of |A^T| ((|G| 1) * (|B^T| 1)), over the result r of data and taps of 1."""
        at, g, bt = (np.abs(floats(x)) for x in (self.at, self.g, self.bt))
        return float((at @ (g.sum(1) * bt.sum(1))).max() / self.r)


def floats(matrix: Matrix) -> np.ndarray:
    """A matrix of fractions as float64."""
    return np.array([[float(v) for v in row] for row in matrix])


@functools.lru_cache(maxsize=256)
def bilinear(m: int, r: int, stride: int = 1) -> Bilinear:
    """The algorithm for m results of r taps. Raises ValueError if it is not `supported`."""
    if not supported(m, r, stride):
        raise ValueError(f"no Winograd algorithm for {m} results of {r} taps at stride {stride}")
    at: list[list[Fraction]] = [[] for _ in range(m)]
    g: list[tuple[Fraction, ...]] = []
    bt: list[tuple[Fraction, ...]] = []
    reach = stride * (m - 1) + r
    for phase in range(min(stride, r)):
        taps = range(phase, r, stride)
        part_at, part_g, part_bt = _cook_toom(m, len(taps))
        for i in range(m):
            at[i] += part_at[i]
        g += [_spread(row, phase, stride, r) for row in part_g]
        bt += [_spread(row, phase, stride, reach) for row in part_bt]
    return Bilinear(m, r, stride, tuple(map(tuple, at)), tuple(g), tuple(bt))


@functools.lru_cache(maxsize=256)
def with_whole_taps(axis: Bilinear) -> Bilinear:
    """An equal algorithm for weights that are transformed in each run, whose G takes hardly any
    multiplication: each row of G is divided by its first element that is not 0, so that plain
    powers of a point are left, such as 1, 2 and 4; the columns of A^T are multiplied by the same
    numbers."""
    scales = [next(v for v in row if v) for row in axis.g]
    g = tuple(tuple(v / s for v in row) for row, s in zip(axis.g, scales, strict=True))
    at = tuple(tuple(v * s for v, s in zip(row, scales, strict=True)) for row in axis.at)
    return Bilinear(axis.m, axis.r, axis.stride, at, g, axis.bt)


def supported(m: int, r: int, stride: int) -> bool:
    """Whether `bilinear` can make this algorithm, as `points` has enough points for it."""
    taps = -(-r // stride)
    return m >= 1 and r >= 1 and (m == 1 or taps == 1 or m + taps - 2 <= MOST)


def _spread(row: tuple[Fraction, ...], start: int, step: int, length: int) -> tuple[Fraction, ...]:
    """`length` zeros, but with the elements of `row` at `start`, `start` + `step`, ..."""
    wide = [ZERO] * length
    wide[start : start + step * len(row) : step] = row
    return tuple(wide)


def _cook_toom(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """(A^T, G, B^T) for m results of r taps at stride 1."""
    if m == 1:
        return ((ONE,) * r,), _unit(r), _unit(r)
    if r == 1:
        return _unit(m), ((ONE,),) * m, _unit(m)
    a = m + r - 1
    finite = points(a - 1)
    at = tuple((*(p**i for p in finite), Fraction(i == m - 1)) for i in range(m))
    g, bt = [], []
    for p in finite:
        others = [q for q in finite if q != p]
        scale = ONE
        for q in others:
            scale *= p - q
        g.append(tuple(p**k / scale for k in range(r)))
        bt.append((*_monic(others), ZERO))
    g.append((ZERO,) * (r - 1) + (ONE,))
    bt.append(_monic(finite))
    return at, tuple(g), tuple(bt)


def _unit(n: int) -> Matrix:
    """The n x n identity matrix."""
    return tuple(tuple(Fraction(i == j) for j in range(n)) for i in range(n))


def _monic(roots: list[Fraction] | tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """The coefficients, lowest first, of the monic polynomial with these roots."""
    p = [ONE]
    for root in roots:
        p = [a - root * b for a, b in zip([ZERO, *p], [*p, ZERO], strict=True)]
    return tuple(p)
