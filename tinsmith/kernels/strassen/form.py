"""Winograd's form of Strassen's method, on square grids of blocks: arrays, or values in code.

    S1 = A21 + A22   S2 = S1 - A11    S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1    T3 = B22 - B12   T4 = B21 - T2

    P1 = A11 B11     P2 = A12 B21     P3 = S2 T2       C11 = P1 + P2
    P4 = S1 T1       P5 = S4 B22      P6 = S3 T3       C12 = P1 + P3 + P4 + P5
    P7 = A22 T4                                        C22 = P1 + P3 + P6 + P4
                                                       C21 = P1 + P3 + P6 + P7

A and B are the operands, C is the result; S and T with the quarters are left and right factors. A
grid of 2 x 2 blocks makes seven products (level 1). On a grid of 4 x 4 each of the seven is again a
product of 2 x 2 grids (level 2: 49 products).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tinsmith.records import dataclass

Grid = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Product:
    """How the sum of one of the seven products is formed, and where it goes. Two tiles of memory,
    place 1 and place 2, keep sums from product to product.

    on       whether the sum is the product plus what place 1 has, rather than the product alone
    keep     the place (1 or 2) in which the sum is stored for later products; 0: none
    quarter  the quarter of the result that the sum completes: 0 C11, 1 C12, 2 C21, 3 C22; or None
    add      whether that quarter is the sum plus what place 2 has, rather than the sum alone
    """

    on: bool
    keep: int
    quarter: int | None = None
    add: bool = False


PRODUCTS = (
    Product(False, 1), Product(True, 0, 0), Product(True, 1), Product(False, 2),
    Product(True, 0, 1, True), Product(True, 1, 3, True), Product(True, 0, 2),
)  # fmt: skip
"""P1 to P7 of one level, in the order in which they are computed."""


def left_factors(a: Grid) -> Iterator[Any]:
    """Yield the left factor of every product of a grid: 7 for 2 x 2 blocks, 49 for 4 x 4, in the
    order of `PRODUCTS`; at level 2 the seven of P1 come first. Sums are computed when needed."""
    if len(a) == 1:
        yield a[0][0]
        return
    a11, a12, a21, a22 = _quarters(a)
    yield from left_factors(a11)
    yield from left_factors(a12)
    s1 = _each(a21, a22, 1)
    s2 = _each(s1, a11, -1)
    yield from left_factors(s2)
    yield from left_factors(s1)
    yield from left_factors(_each(a12, s2, -1))
    yield from left_factors(_each(a11, a21, -1))
    yield from left_factors(a22)


def right_factors(b: Grid) -> Iterator[Any]:
    """Yield the right factor of every product of a grid, in the order of `left_factors`."""
    if len(b) == 1:
        yield b[0][0]
        return
    b11, b12, b21, b22 = _quarters(b)
    t1 = _each(b12, b11, -1)
    t2 = _each(b22, t1, -1)
    for factor in (b11, b21, t2, t1, b22, _each(b22, b12, -1), _each(b21, t2, -1)):
        yield from right_factors(factor)


def _quarters(grid: Grid) -> tuple[Grid, Grid, Grid, Grid]:
    """The quarters 11 (top left), 12 (top right), 21 and 22 of a grid."""
    half = len(grid) // 2
    top, bottom = grid[:half], grid[half:]
    return (
        [row[:half] for row in top], [row[half:] for row in top],
        [row[:half] for row in bottom], [row[half:] for row in bottom],
    )  # fmt: skip


def _each(x: Grid, y: Grid, sign: int) -> Grid:
    """x + y, or x - y if `sign` is -1, block by block."""
    return [
        [p + q if sign > 0 else p - q for p, q in zip(u, v, strict=True)]
        for u, v in zip(x, y, strict=True)
    ]
