"""Vector functions in float32: exp, log, tanh, erf, and what activations need.

Each takes and gives vectors of any number of lanes, calls nothing, and treats infinities, denormals
and NaN as numpy does unless its docstring says otherwise. Errors are in ulp of the result, over all
float32 inputs; `tests/codegen/test_math.py` measures them. The polynomials were fitted here, as by
Remez' algorithm. Functions that are never hot compute in float64: see `wide`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.values import Val

INF = float("inf")
NAN = float("nan")

ROUND32 = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, kept in the low bits
ROUND32_BITS = 0x4B400000  # the bits of ROUND32
LOG2E = 1.4426950408889634  # log2(e)
LN2 = 0.6931471805599453  # log(2)
LN2_HI = 0.693359375  # few bits: a product with a small whole number is exact
LN2_LO = -2.1219444005469057e-4  # log(2) - LN2_HI

_EXPM1 = (  # (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, relative error 2.4e-10 of e^r - 1
    0.5000000046525395, 0.16666666817446396, 0.04166635416339418,
    0.008333272952164864, 0.0013941050089022696, 0.00019914228915484837,
)  # fmt: skip
_LOG1P = (  # (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) <= 1 + f <= sqrt(2), error 5.9e-9 of f
    0.3333331672581704, -0.25000810405145646, 0.20002286274943318, -0.16624554043652354,
    0.14181191938011997, -0.13128754800694623, 0.12881647494076673, -0.07859611510065165,
)  # fmt: skip
_ERF_NEAR = (  # erf(x) / x - 1 in x^2 on |x| <= 0.9
    0.12837916676475714, -0.37612634981186543, 0.11283715045875937, -0.026860509008761007,
    0.005203860272813512, -0.0008175650204995406, 8.513145271446931e-05,
)  # fmt: skip
_ERF_FAR = (  # -log(erfc(x)) on 0.9 <= x <= 4
    -0.0001705508358316881, 1.1294951529226032, 0.6333866598061196, 0.10823660377701359,
    -0.025091486054090267, 0.0041605226549374305, -0.00043230205294574135, 2.0909468150956527e-05,
)  # fmt: skip
_EXP2 = (  # (2^r - 1) / r on |r| <= 1/2, relative error 9.2e-8 of 2^r
    0.6931469775990712, 0.2402224208528939, 0.055507337433887034, 0.009671512643582025,
    0.0013264727155819429,
)  # fmt: skip
_GELU_EDGE = 5.4  # beyond it erf(y / sqrt(2)) is 1 in float32
_GELU = (  # erf(y / sqrt(2)) / (2 y) in t = 2 (y / 5.4)^2 - 1, y <= 5.4; above 1/2 at the end
    0.13092811401655663, -0.06532798883503044, 0.04849938640624413, -0.03920910098882048,
    0.03212117319867117, -0.025724363962178698, 0.01960893119919822, -0.014052935885618876,
    0.0097821966194044, -0.006541552089288772, 0.0034229729272627256, -0.0013459142362554448,
    0.0010806643351273261, -0.0009727404299623678, 0.0003237873543201201,
)  # fmt: skip


def horner(x: Val, coefficients: Sequence[float]) -> Val:
    """The polynomial with these coefficients, lowest power first."""
    total = x.b.const(coefficients[-1], x.ty)
    for c in reversed(coefficients[:-1]):
        total = total.fma(x, c)
    return total


def at_most(x: Val, bound: float) -> Val:
    """min(x, bound), NaN where x is NaN: one instruction."""
    return x.b.const(bound, x.ty).min(x)


def at_least(x: Val, bound: float) -> Val:
    """max(x, bound), NaN where x is NaN: one instruction."""
    return x.b.const(bound, x.ty).max(x)


def bits_of(x: Val) -> Val:
    return x.bitcast(x.ty.of(f"i{x.ty.bits}"))


def copysign(size: Val, sign: Val) -> Val:
    """|size| with the sign of `sign`."""
    top = 1 << (size.ty.bits - 1)
    return ((bits_of(size) & (top - 1)) | (bits_of(sign) & top)).bitcast(size.ty)


def with_sign(size: Val, sign: Val) -> Val:
    """`size`, which is not negative, with the sign of `sign`."""
    return (bits_of(size) | (bits_of(sign) & (1 << (size.ty.bits - 1)))).bitcast(size.ty)


# ---- rounding


def rint(x: Val) -> Val:
    """The nearest whole number, halves to even; exact."""
    if x.b.target.has_rounding:
        return x.unary("rint")
    limit = 2.0 ** (23 if x.ty.kind == "f32" else 52)
    size = x.abs()
    near = with_sign((size + limit) - limit, x)
    return (size < limit).select(near, x)


def nearest(x: Val) -> Val:
    """`rint` of floats that int32 holds, as int32: one instruction on x86-64."""
    if x.b.target.triple.startswith("x86_64"):
        ty = x.ty.of("i32")
        return x.b.intrinsic(f"llvm.lrint.{ty.suffix}.{x.ty.suffix}", ty, [x])
    return rint(x).truncated("i32")


def floor(x: Val) -> Val:
    if x.b.target.has_rounding:
        return x.unary("floor")
    near = rint(x)
    return copysign_zero(near - (near > x).select(x.b.const(1, x.ty), 0.0), x)


def ceil(x: Val) -> Val:
    if x.b.target.has_rounding:
        return x.unary("ceil")
    near = rint(x)
    return copysign_zero(near + (near < x).select(x.b.const(1, x.ty), 0.0), x)


def copysign_zero(y: Val, x: Val) -> Val:
    """`y`, with the sign of `x` where it is zero."""
    return y.eq(0.0).select(with_sign(y.b.zero(y.ty), x), y)


def trunc(x: Val) -> Val:
    if x.b.target.has_rounding:
        return x.unary("trunc")
    return with_sign(floor(x.abs()), x)


# ---- exponentials


def split(x: Val) -> tuple[Val, Val]:
    """(t, r) with x = n * ln(2) + r and |r| <= ln(2) / 2, for |x| <= 2**21: the integer n is given
    as t = ROUND32 + n, a float32."""
    t = x.fma(LOG2E, ROUND32)
    n = t - ROUND32
    return t, n.fma(-LN2_LO, n.fma(-LN2_HI, x))


def expm1_near(r: Val) -> Val:
    """e^r - 1 for |r| <= ln(2) / 2, relative error 1e-7."""
    return (r * r).fma(horner(r, _EXPM1), r)


def two_to(t: Val, bias: int = 127) -> Val:
    """2^n, times 2^(`bias` - 127), for t = ROUND32 + n: n is put into the exponent's bits."""
    return ((bits_of(t) << 23) + (bias << 23)).bitcast(t.ty)


def _has_scalef(x: Val) -> bool:
    return x.b.target.vectors == "avx512" and x.ty.lanes == 16


def _scale(p: Val, t: Val) -> Val:
    """p * 2^n, rounded once, for t = ROUND32 + n and -256 < n < 256."""
    if _has_scalef(p):
        return scalef(p, t - ROUND32)
    n = bits_of(t) - ROUND32_BITS
    half = n >> 1
    rest = n - half
    first = ((half << 23) + (127 << 23)).bitcast(p.ty)
    second = ((rest << 23) + (127 << 23)).bitcast(p.ty)
    return p * first * second


def scalef(p: Val, n: Val) -> Val:
    """p * 2^n for whole numbers n given as floats: only for vectors of 16 float32, with AVX-512."""
    v = p.ty.llvm
    name, params = "llvm.x86.avx512.mask.scalef.ps.512", f"{v}, {v}, {v}, i16, i32"
    text = f"{v} {p.ref}, {v} {n.ref}, {v} {p.ref}, i16 -1, i32 4"
    return p.b.intrinsic(name, p.ty, text=text, params=params)


def exp(x: Val) -> Val:
    """e^x, <= 1 ulp, denormal results included."""
    t, r = split(at_most(at_least(x, -104.0), 89.0))
    return _scale(expm1_near(r) + 1.0, t)


def exp2(x: Val) -> Val:
    """2^x, <= 1 ulp."""
    x = at_most(at_least(x, -151.0), 129.0)
    t = x + ROUND32
    r = (x - (t - ROUND32)) * LN2
    return _scale(expm1_near(r) + 1.0, t)


def exp_inner(x: Val) -> Val:
    """e^x for -87 <= x <= 88 (NaN stays NaN), <= 1 ulp, in few instructions."""
    t, r = split(x)
    return (expm1_near(r) + 1.0) * two_to(t)


def exp_below(x: Val) -> Val:
    """e^x for x <= 0, <= 1 ulp, in few instructions; 0 where x < -87 (see `exp2_below`)."""
    return (x < -87.0).select(0.0, exp_inner(at_least(x, -87.0)))


def exp2_below(x: Val) -> Val:
    """2^x for x <= 0, relative error 2e-7, in few instructions; 0 from about 2^-126 down.

    Denormals add nothing to sums that contain a 1, and slow some processors down a hundredfold.
    """
    kept = at_least(x, -127.0)
    t = kept + ROUND32
    n = t - ROUND32
    p = horner(kept - n, _EXP2).fma(kept - n, 1.0)
    if _has_scalef(x):
        return (x < -126.0).select(0.0, scalef(p, n))
    return p * two_to(t)  # 2^-127 has the bits of 0


def expm1(x: Val) -> Val:
    """e^x - 1, <= 2 ulp."""
    t, r = split(at_most(at_least(x, -18.0), 89.0))
    half = two_to(t, 126)  # 2^(n - 1): n may be 128
    y = half.fma(expm1_near(r), half - 0.5)
    return y + y


def tanh(x: Val) -> Val:
    """The hyperbolic tangent, <= 2.5 ulp."""
    t, r = split(at_most(x.abs(), 10.0) * 2.0)
    power = two_to(t)
    m = power.fma(expm1_near(r), power - 1.0)  # e^(2 |x|) - 1
    return with_sign(m / (m + 2.0), x)


# ---- logarithms

_SQRT_HALF_BITS = 0x3F3504F3  # the bits of sqrt(1/2)


def _decompose(x: Val) -> tuple[Val, Val]:
    """(e << 23, m), int32 and float32, with x = 2^e * m and sqrt(1/2) <= m < sqrt(2), for normal x
    > 0."""
    i = bits_of(x) - _SQRT_HALF_BITS
    m = ((i & 0x7FFFFF) + _SQRT_HALF_BITS).bitcast(x.ty)
    return i & -0x800000, m


def _log_sum(f: Val, e: Val) -> Val:
    """e * ln(2) + log(1 + f), for whole e and sqrt(1/2) <= 1 + f <= sqrt(2) (see `_decompose`)."""
    s = f * f
    tail = s.fma(-0.5, (s * f) * horner(f, _LOG1P))
    return e.fma(LN2_HI, f + e.fma(LN2_LO, tail))


def _log_edges(y: Val, x: Val, u: Val) -> Val:
    """The logarithm `y` of u, corrected at the edges: -inf where u is 0, NaN where u < 0, x where u
    is infinite or NaN."""
    y = (u < INF).select(y, x)
    y = u.eq(0.0).select(-INF, y)
    return (u < 0.0).select(NAN, y)


def log(x: Val) -> Val:
    """Natural logarithm, <= 1 ulp."""
    tiny = x < 1.1754943508222875e-38
    top, m = _decompose(tiny.select(x * 8388608.0, x))
    e = (top >> 23).to("f32") - tiny.select(x.b.const(23.0, x.ty), 0.0)
    return _log_edges(_log_sum(m - 1.0, e), x, x)


def log1p(x: Val) -> Val:
    """log(1 + x), <= 2 ulp."""
    u = x + 1.0
    seen = u - 1.0
    lost = (x - seen) + (1.0 - (u - seen))  # 1 + x = u + lost exactly
    top, m = _decompose(u)
    scale = (x.b.const(127 << 23, top.ty) - top).bitcast(x.ty)  # 2^-e
    f = (m - 1.0) + (x < 3.4e7).select(lost * scale, 0.0)
    return _log_edges(_log_sum(f, (top >> 23).to("f32")), x, u)


# ---- the error function


def erf(x: Val) -> Val:
    """The error function, <= 2 ulp."""
    size = x.abs()
    square = x * x
    near = x.fma(horner(square, _ERF_NEAR), x)
    far = 1.0 - exp_inner(-horner(at_most(size, 4.0), _ERF_FAR))
    return (size < 0.9).select(near, with_sign(far, x))


def gelu(x: Val) -> Val:
    """x / 2 * (1 + erf(x / sqrt(2))) within 2e-7 * max(1, |x|); exactly 0 below -5.4."""
    size = x.abs()
    y = at_most(size, _GELU_EDGE)
    t = (y * y).fma(2.0 / _GELU_EDGE**2, -1.0)
    half = at_most(horner(t, _GELU) * y, 0.5)
    return size.fma(half, x * 0.5)
