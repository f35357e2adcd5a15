"""The finite evaluation points of the Cook-Toom algorithms, chosen for small rounding errors.

Points are dyadic fractions, so that the transform matrices of data and results are exact in
float32. Where possible they come in pairs +p, -p, whose rows share most of their arithmetic.
"""

from __future__ import annotations

from fractions import Fraction

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
    """`count` distinct finite points; the point at infinity is not among them."""
    return tuple(map(Fraction, _TABLE[count].split()))
