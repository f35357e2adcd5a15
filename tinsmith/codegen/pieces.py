"""Smooth functions by piecewise polynomials: a short one for each of many intervals.

Coefficients are looked up in registers, by an instruction whose execution unit multiplications do
not use.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from tinsmith.codegen.math import ROUND32, at_most, bits_of
from tinsmith.codegen.math import gelu as without_tables
from tinsmith.codegen.types import F32, Ty
from tinsmith.codegen.values import Val

ENTRIES = 16  # intervals: entries of a table in a vector of 16 lanes


def has_tables(x: Val) -> bool:
    """Whether `look_up` works on x with tables of ENTRIES coefficients: AVX-512, 16 lanes."""
    return x.b.target.vectors == "avx512" and x.ty.lanes == ENTRIES


def look_up(index: Val, table: Sequence[int | float], elem: Ty) -> Val:
    """table[index] for each of 8 lanes (AVX2) or 16 (AVX-512). The table has as many entries, of
    the 32-bit type `elem`; of an index only the low 3 or 4 bits count."""
    values = index.b.vector(table, elem)
    kind = "sf" if elem.is_float else "si"
    name, order = f"llvm.x86.avx512.permvar.{kind}.512", (values, index)
    if len(table) == 8:
        name = "llvm.x86.avx2.perm" + ("ps" if elem.is_float else "d")
    assert len(table) == index.ty.lanes in (8, 16)
    return index.b.intrinsic(name, values.ty, order)


_GELU_PITCH = 2.78125  # intervals in 1; the last one starts at 5.21
_GELU_DEGREE = 4  # of the polynomial in each interval


def gelu(x: Val) -> Val:
    """x / 2 * (1 + erf(x / sqrt(2))) within 2e-7 * max(1, |x|); exactly 0 below -5.4."""
    if not has_tables(x):
        return without_tables(x)
    size = x.abs()
    y = at_most(size, (ENTRIES - 1) / _GELU_PITCH)
    t = y.fma(_GELU_PITCH, ROUND32)
    u = y.fma(_GELU_PITCH, ROUND32 - t)
    index = bits_of(t)
    *tables, last = _gelu_tables()
    half = look_up(index, last, F32)
    for table in reversed(tables):
        half = half.fma(u, look_up(index, table, F32))
    return size.fma(half, x * 0.5)


@functools.cache
def _gelu_tables() -> tuple[tuple[float, ...], ...]:
    """Polynomials for erf(y / sqrt(2)) / 2: result[d][i] is the coefficient of u^d in interval i,
    where u is the distance of y >= 0 from the interval's middle, in intervals. In the last interval
    the polynomial is 1/2."""
    pieces = [
        fit(lambda u, n=n: math.erf((n + u) / _GELU_PITCH / math.sqrt(2)) / 2, _GELU_DEGREE)
        for n in range(ENTRIES - 1)
    ]
    pieces.append([0.5] + [0.0] * _GELU_DEGREE)
    return tuple(zip(*pieces, strict=True))


def fit(function: Callable[[float], float], degree: int) -> list[float]:
    """The coefficients, lowest first, of the polynomial of this degree that equals the function at
    the Chebyshev points of [-1/2, 1/2]."""
    points = [math.cos(math.pi * (2 * k + 1) / (2 * degree + 2)) / 2 for k in range(degree + 1)]
    values = [function(u) for u in points]
    for level in range(1, degree + 1):  # divided differences
        for k in range(degree, level - 1, -1):
            values[k] = (values[k] - values[k - 1]) / (points[k] - points[k - level])
    coefficients = [values[degree]]
    for k in range(degree - 1, -1, -1):  # times (u - points[k]), plus values[k]
        shifted = [0.0, *coefficients]
        for i, c in enumerate(coefficients):
            shifted[i] -= points[k] * c
        shifted[0] += values[k]
        coefficients = shifted
    return coefficients
