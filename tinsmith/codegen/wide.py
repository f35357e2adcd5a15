"""Vector functions of float32 that compute in float64: for rare functions, right to <= 1 ulp.

Inner steps are right to about 1e-11, so that all but one of thousands of results are the float32
nearest to the true value. `fmod` is exact.

Angles are reduced to a quadrant and an angle within it (`quadrant`). From an angle up to 2^20 a
multiple of pi / 2, given in three parts, is subtracted. If some lane is larger, angles are also
multiplied by 2 / pi in chunks of 24 bits, whose products with a float32 are exact in float64; each
product is reduced modulo 4 before it is added.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from tinsmith.codegen.math import INF, LN2, LOG2E, NAN, bits_of, copysign, horner, rint, with_sign
from tinsmith.codegen.values import Val

ROUND64 = 6755399441055744.0  # 1.5 * 2**52: adding it rounds a float64 to a whole number
LARGE = 1048576.0  # 2**20: larger angles take the path by chunks of 24 bits

_TWO_OVER_PI = (  # the bits of 2 / pi, 24 in each
    0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD,
    0xC0DB62, 0x95993C, 0x439041, 0xFE5163, 0xABDEBB,
)  # fmt: skip


def _cut(value: float, bits: int) -> float:
    """A `value` > 0, truncated to its `bits` leading bits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * (1 << bits)), exponent - bits)


_PI2_1 = _cut(math.pi / 2, 27)  # products with n < 2^26 are exact
_PI2_2 = _cut(math.pi / 2 - _PI2_1, 25)
_PI2_3 = 6.123233995736766e-17 + (math.pi / 2 - _PI2_1 - _PI2_2)


def quadrant(x: Val) -> tuple[Val, Val]:
    """(q, r) with x = q * pi / 2 + r and |r| <= pi / 4, for float32 numbers given as float64. Only
    the two low bits of the integer q are right, which tell the quadrant. r is NaN for infinite x
    and NaN."""
    t = x.fma(2 / math.pi, ROUND64)
    n = t - ROUND64
    r = n.fma(-_PI2_3, n.fma(-_PI2_2, n.fma(-_PI2_1, x)))
    large = x.abs() > LARGE
    with x.b.loop(0, large.any().to("i64"), carry=[bits_of(t), r]) as loop:
        q, far = _reduced(x)
        loop.next([large.select(q, loop.vars[0]), large.select(far, loop.vars[1])])
    return loop.out[0], loop.out[1]


def _reduced(x: Val) -> tuple[Val, Val]:
    """`quadrant` for large x: (q, r) from x * 2 / pi modulo 4, summed over chunks of 2 / pi;
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


_EXPM1 = (  # (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, relative error 5.3e-12
    0.4999999999973516, 0.1666666675475174, 0.04166666695596581, 0.00833328888623184,
    0.0013888809157802386, 0.0001990501004691201, 2.4882575591314e-05,
)  # fmt: skip
_LOG1P = (  # (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) <= 1 + f <= sqrt(2), error 1.9e-11
    0.333333339793836, -0.24999997893368006, 0.19999902764891558, -0.1666678419289032,
    0.14290409099496224, -0.12500382018426845, 0.11013120013135068, -0.09898774161619806,
    0.09975342241051341, -0.09976160105845078, 0.05533550693548351,
)  # fmt: skip
_SIN = (  # (sin(r) - r) / r^3 in r^2 on |r| <= pi / 4
    -0.16666666640588274, 0.008333329280530799, -0.00019839304417218682, 2.7180464857392434e-06,
)  # fmt: skip
_COS = (  # (cos(r) - 1) / r^2 in r^2
    -0.49999999999484146, 0.04166666655250019, -0.001388888060909759,
    2.479895007127639e-05, -2.7174017310272934e-07,
)  # fmt: skip
_ATAN = (  # (atan(t) - t) / t^3 in t^2 on |t| <= tan(pi / 8)
    -0.3333333249819862, 0.19999903820387574, -0.14282005117480476,
    0.1104465733678527, -0.08476069232866214, 0.04743617951797199,
)  # fmt: skip
_ASIN = (  # (asin(s) - s) / s^3 in s^2 on |s| <= 1/2
    0.16666667180254255, 0.07499948898030125, 0.04465997204738016, 0.030112526766018718,
    0.024604703704713796, 0.007509498022539613, 0.034646299918168665,
)  # fmt: skip


def _wide(function: Callable[..., Val]) -> Callable[..., Val]:
    """Decorator: a function of float64 vectors as one of float32, converted before and after."""

    def narrow(*args: Val) -> Val:
        return function(*(a.to("f64") for a in args)).to("f32")

    narrow.__doc__, narrow.__name__ = function.__doc__, function.__name__
    return narrow


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _exp(x: Val) -> Val:
    """e^x for |x| <= 700, relative error 1e-11."""
    t = x.fma(LOG2E, ROUND64)
    r = (t - ROUND64).fma(-LN2, x)
    p = (r * r).fma(horner(r, _EXPM1), r) + 1.0
    return p * ((bits_of(t) << 52) + (1023 << 52)).bitcast(x.ty)


def _log(x: Val) -> Val:
    """log(x) for normal x > 0, error 2e-11 of the result; undefined for other x, NaN included."""
    half = _bits(math.sqrt(0.5))
    k = bits_of(x) + (_bits(1.0) - half)
    m = ((k & ((1 << 52) - 1)) + half).bitcast(x.ty)
    exponent = k.bitcast(k.ty.of("u64")) >> 52
    e = (exponent | _bits(2.0**52)).bitcast(x.ty) - (2.0**52 + 1023)
    f = m - 1.0
    s = f * f
    return e.fma(LN2, f + s.fma(-0.5, (s * f) * horner(f, _LOG1P)))


def _bounded(x: Val, bound: float) -> Val:
    """x between -bound and bound; NaN stays NaN."""
    c = x.b
    return c.const(bound, x.ty).min(c.const(-bound, x.ty).max(x))


def _log_full(x: Val) -> Val:
    """log(x) with log(0) = -inf, log(inf) = inf, NaN for x < 0 and NaN."""
    y = (x < INF).select(_log(x), x)
    y = x.eq(0.0).select(-INF, y)
    return (x < 0.0).select(NAN, y)


@_wide
def log2(x: Val) -> Val:
    """Logarithm of x to base 2."""
    return _log_full(x) * LOG2E


@_wide
def log10(x: Val) -> Val:
    """Logarithm of x to base 10."""
    return _log_full(x) * 0.4342944819032518


@_wide
def sinh(x: Val) -> Val:
    """(e^x - e^-x) / 2; by its series near 0, where digits would cancel."""
    size = x.b.const(100.0, x.ty).min(x.abs())
    e = _exp(size)
    far = (e - 1.0 / e) * 0.5
    s = x * x
    near = size.fma(s * horner(s, [1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800]), size)
    return with_sign((size < 0.5).select(near, far), x)


@_wide
def cosh(x: Val) -> Val:
    """(e^x + e^-x) / 2."""
    e = _exp(x.b.const(100.0, x.ty).min(x.abs()))
    return (e + 1.0 / e) * 0.5


@_wide
def arcsinh(x: Val) -> Val:
    """log(x + sqrt(x^2 + 1))."""
    size = x.abs()
    s = x * x
    far = _log_full(size + (s + 1.0).sqrt())
    near = size.fma(s * s.fma(0.075, -1 / 6), size)
    return with_sign((size < 1e-2).select(near, far), x)


@_wide
def arccosh(x: Val) -> Val:
    """log(x + sqrt(x^2 - 1)); NaN for x < 1."""
    y = _log_full(x + ((x - 1.0) * (x + 1.0)).sqrt())
    return (x < 1.0).select(NAN, y)


@_wide
def arctanh(x: Val) -> Val:
    """artanh(x) = log((1 + x) / (1 - x)) / 2; NaN for |x| > 1."""
    size = x.abs()
    s = x * x
    far = _log_full((size + 1.0) / (1.0 - size)) * 0.5
    near = size.fma(s * horner(s, [1 / 3, 1 / 5]), size)
    y = (size < 1e-2).select(near, far)
    return (size > 1.0).select(NAN, with_sign(y, x))


def _atan_unit(t: Val) -> Val:
    """atan(t) for |t| <= tan(pi / 8)."""
    s = t * t
    return t.fma(s * horner(s, _ATAN), t)


def _atan_positive(a: Val) -> Val:
    """atan(a) for a >= 0, infinity included."""
    b = a.b
    high, middle = a > 2.414213562373095, a > 0.4142135623730951
    top = high.select(-1.0, middle.select(a - 1.0, a))
    bottom = high.select(a, middle.select(a + 1.0, b.const(1.0, a.ty)))
    zero = b.zero(a.ty)
    offset = high.select(
        b.const(math.pi / 2, a.ty), middle.select(b.const(math.pi / 4, a.ty), zero)
    )
    return offset + _atan_unit(top / bottom)


@_wide
def arctan(x: Val) -> Val:
    """The angle in [-pi / 2, pi / 2] whose tangent is x."""
    return with_sign(_atan_positive(x.abs()), x)


@_wide
def arctan2(y: Val, x: Val) -> Val:
    """The angle of the point (x, y), in [-pi, pi], with the signs of zeros as in IEEE 754."""
    ay, ax = y.abs(), x.abs()
    swap = ay > ax
    low, high = swap.select(ax, ay), swap.select(ay, ax)
    t = low / high
    t = high.eq(0.0).select(0.0, t)
    t = low.eq(INF).select(1.0, t)
    angle = _atan_positive(t)
    angle = swap.select(math.pi / 2 - angle, angle)
    left = bits_of(x) < 0
    angle = left.select(math.pi - angle, angle)
    odd = x.is_nan() | y.is_nan()
    return odd.select(NAN, with_sign(angle, y))


def _asin(x: Val) -> Val:
    size = x.abs()
    big = size > 0.5
    z = big.select((1.0 - size) * 0.5, x * x)
    s = big.select(z.sqrt(), size)
    p = s.fma(z * horner(z, _ASIN), s)
    return with_sign(big.select(p.fma(-2.0, math.pi / 2), p), x)


@_wide
def arcsin(x: Val) -> Val:
    """The angle in [-pi / 2, pi / 2] whose sine is x; NaN for |x| > 1."""
    return (x.abs() > 1.0).select(NAN, _asin(x))


@_wide
def arccos(x: Val) -> Val:
    """The angle in [0, pi] whose cosine is x; NaN for |x| > 1."""
    return (x.abs() > 1.0).select(NAN, math.pi / 2 - _asin(x))


# ---- circular functions


def _sin_cos(r: Val) -> tuple[Val, Val]:
    s = r * r
    return r.fma(s * horner(s, _SIN), r), s.fma(horner(s, _COS), 1.0)


def _circular(x: Val, shift: int) -> Val:
    q, r = quadrant(x)
    q = q + shift
    sine, cosine = _sin_cos(r)
    value = (q & 1).ne(0).select(cosine, sine)
    return (bits_of(value) ^ ((q & 2) << 62)).bitcast(x.ty)


@_wide
def sin(x: Val) -> Val:
    """The sine of x, in radians."""
    return _circular(x, 0)


@_wide
def cos(x: Val) -> Val:
    """The cosine of x, in radians."""
    return _circular(x, 1)


@_wide
def tan(x: Val) -> Val:
    """The tangent of x, in radians."""
    q, r = quadrant(x)
    sine, cosine = _sin_cos(r)
    odd = (q & 1).ne(0)
    value = odd.select(cosine, sine) / odd.select(sine, cosine)
    return (bits_of(value) ^ ((q & 1) << 63)).bitcast(x.ty)


# ---- powers and remainders


def power(x: Val, y: Val) -> Val:
    """x^y as C's pow."""
    whole = rint(y).eq(y)
    half = y * 0.5
    odd = whole & rint(half).ne(half)
    wx, wy = x.abs().to("f64"), _bounded(y.to("f64"), 1e30)
    log = (wx < INF).select(_log(wx), wx)
    log = wx.eq(0.0).select(-1e300, log)
    log = wx.eq(INF).select(1e300, log)
    size = _exp(_bounded(log * wy, 120.0)).to("f32")
    negative = bits_of(x) < 0
    signed = (negative & odd).select(-size, size)
    bad = (x < 0.0) & rint(y).ne(y) & (x > -INF)
    result = bad.select(NAN, signed)
    return (x.eq(1.0) | y.eq(0.0)).select(1.0, result)


@_wide
def fmod(x: Val, y: Val) -> Val:
    """x - y * trunc(x / y), exact; NaN for infinite x or y = 0."""
    rest, size = x.abs(), y.abs()
    for _ in range(12):  # each step takes 25 of up to 278 bits off the quotient
        q = (bits_of(rest / size) & ~((1 << 27) - 1)).bitcast(x.ty)
        q = (q < 1.0).select(0.0, _whole(q))
        rest = q.fma(-size, rest)
        rest = (rest < 0.0).select(rest + size, rest)
    rest = (rest >= size).select(rest - size, rest)
    rest = size.eq(INF).select(x.abs(), rest)
    bad = x.abs().eq(INF) | y.eq(0.0) | x.is_nan() | y.is_nan()
    return bad.select(NAN, with_sign(rest, x))


def _whole(q: Val) -> Val:
    """floor for q >= 0."""
    near = rint(q)
    return near - (near > q).select(q.b.const(1.0, q.ty), 0.0)


def remainder(x: Val, y: Val) -> Val:
    """x - y * floor(x / y), exact but for a last rounding: of the sign of y, as Python's %."""
    m = fmod(x, y)
    moved = m.ne(0.0) & ((bits_of(m) ^ bits_of(y)) < 0)
    m = moved.select(m + y, m)
    return m.eq(0.0).select(with_sign(m.b.zero(m.ty), y), m)


def floor_divide(x: Val, y: Val) -> Val:
    """floor(x / y), of the exact quotient; where y is 0, x / y."""
    m = fmod(x, y)
    moved = m.ne(0.0) & ((bits_of(m) ^ bits_of(y)) < 0)
    q = (x - m) / y
    near = rint(moved.select(q - 1.0, q))
    near = near.eq(0.0).select(copysign(near, x / y), near)
    return y.eq(0.0).select(x / y, near)
