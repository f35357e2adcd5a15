"""1 + e^-x, the divisor of sigmoid and its relatives: 2^(j / n) comes from a table in registers.

x * -log2(e) is rounded to a multiple of 1 / n, so that a short polynomial covers the remainder. The
low bits of the rounded number select the table's entry; the others are the exponent.
"""

from __future__ import annotations

import numpy as np

from tinsmith.codegen.math import (
    LOG2E,
    at_least,
    at_most,
    bits_of,
    expm1_near,
    horner,
    split,
    two_to,
)
from tinsmith.codegen.pieces import ENTRIES, has_tables, look_up
from tinsmith.codegen.types import I32
from tinsmith.codegen.values import Val

_HIGH = float(np.float32(LOG2E))
_LOW = LOG2E - _HIGH
_EXP2 = {  # entries of the table: (2^g - 1) / g on |g| <= 1 / (2 * entries)
    16: (0.69314718, 0.2402359, 0.05550281),  # relative error 1.1e-9 of 2^g
    8: (0.69314721, 0.24026407, 0.0554989),  # 1.8e-8
}
_ENOUGH = 86.0  # 1 + e^-86 is 1; a smaller power would be no normal number


def one_plus_exp_of_minus(x: Val) -> Val:
    """1 + e^-x, <= 2 ulp below 2^127.9, <= 25 ulp above; infinite where e^-x overflows."""
    entries = _entries(x)
    if not entries:
        return _without_table(x)
    shift = 24 - entries.bit_length()  # of the bits of t, to where exponents are
    rounder = 1.5 * 2.0**shift
    x = at_most(x, _ENOUGH)
    t = at_most(x.fma(-_HIGH, rounder), rounder + 128 - 1 / entries)
    g = x.fma(-_LOW, x.fma(-_HIGH, rounder - t))
    bits = bits_of(t)
    power = (look_up(bits, _powers(entries, shift), I32) + (bits << shift)).bitcast(x.ty)
    return power.fma(horner(g, _EXP2[entries]) * g, power + 1.0)


def sigmoid(x: Val) -> Val:
    """1 / (1 + e^-x), <= 3.1 ulp; 0 where e^-x overflows."""
    return x.b.const(1.0, x.ty) / one_plus_exp_of_minus(x)


def _without_table(x: Val) -> Val:
    t, r = split(at_most(at_least(-x, -_ENOUGH), 89.0))
    half = two_to(t, 126)  # 2^(n - 1): n may be 128
    y = half.fma(expm1_near(r), half + 0.5)
    return y + y


def _entries(x: Val) -> int:
    """How many entries (16 or 8) a table has from which one instruction looks up every lane of x; 0
    if the target has no such instruction."""
    if has_tables(x):
        return ENTRIES
    return 8 if x.b.target.vectors in ("avx2", "avx512") and x.ty.lanes == 8 else 0


def _powers(entries: int, shift: int) -> list[int]:
    """A table for 2^(j / entries): the bits of these float32, minus j << shift, which the caller's
    `bits << shift` adds with the exponent."""
    numbers = np.exp2(np.arange(entries) / entries).astype(np.float32).view(np.int32)
    return [int(bits) - (j << shift) for j, bits in enumerate(numbers)]
