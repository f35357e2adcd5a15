"""The quarter turn in which an angle lies, and the remaining angle: exact for every float32.

From an angle up to 2^20 a multiple of pi / 2, given in three parts, is subtracted. A larger angle
is multiplied by 2 / pi in chunks of 24 bits, whose products with a float32 are exact in float64;
each product is reduced modulo 4 before it is added. That path runs only if some lane needs it.
"""

from __future__ import annotations

import math

from tinsmith.codegen.math import bits_of, rint
from tinsmith.codegen.values import Val

ROUND64 = 6755399441055744.0  # 1.5 * 2**52: adding it rounds a float64 to a whole number
LARGE = 1048576.0  # 2**20: larger angles take the path by chunks of 24 bits

_TWO_OVER_PI = (  # the bits of 2 / pi, 24 in each
    0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD,
    0xC0DB62, 0x95993C, 0x439041, 0xFE5163, 0xABDEBB,
)  # fmt: skip


def _cut(value: float, bits: int) -> float:
    """The leading bits of a number."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * (1 << bits)), exponent - bits)


_PI2_1 = _cut(math.pi / 2, 27)  # products with n < 2^26 are exact
_PI2_2 = _cut(math.pi / 2 - _PI2_1, 25)
_PI2_3 = 6.123233995736766e-17 + (math.pi / 2 - _PI2_1 - _PI2_2)


def quadrant(x: Val) -> tuple[Val, Val]:
    """(q, r) with x = q * pi / 2 + r and |r| <= pi / 4, for float32 numbers given as float64. Only
    the two low bits of the integer q are right, which tell the quadrant. r is NaN for infinite
    x."""
    t = x.fma(2 / math.pi, ROUND64)
    n = t - ROUND64
    r = n.fma(-_PI2_3, n.fma(-_PI2_2, n.fma(-_PI2_1, x)))
    large = x.abs() > LARGE
    with x.b.loop(0, large.any().to("i64"), carry=[bits_of(t), r]) as loop:
        q, far = _reduced(x)
        loop.next([large.select(q, loop.vars[0]), large.select(far, loop.vars[1])])
    return loop.out[0], loop.out[1]


def _reduced(x: Val) -> tuple[Val, Val]:
    """`quadrant` for large x: (q, r) from x * 2 / pi modulo 4, summed over pieces of 2 / pi;
    products that are multiples of 4 drop out."""
    total = x.b.zero(x.ty)
    for k, chunk in enumerate(_TWO_OVER_PI):
        part = x * math.ldexp(chunk, -24 * (k + 1))
        if 24 * (k + 1) < 128:  # beyond 2^56, a product of 48 bits is a multiple of 4
            part = (part.abs() < 2.0**56).select(part, 0.0)
        total = _modulo(total + _modulo(part))
    t = total + ROUND64
    r = (total - (t - ROUND64)) * (math.pi / 2)
    finite = x.abs() < math.inf
    return bits_of(t), finite.select(r, math.nan)


def _modulo(v: Val) -> Val:
    """v minus the nearest multiple of 4, exact."""
    return rint(v * 0.25).fma(-4.0, v)
