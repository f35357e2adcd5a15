"""float16 and bfloat16: how they are kept, and their conversion from and to float32.

They are 16 bits in memory and in registers, and are moved and converted, never computed with.
Conversions round to nearest, ties to even, keep denormals, and overflow to infinity; NaN stays NaN
and keeps its sign. LLVM converts float16 only where the machine does: elsewhere it would call a
library.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tinsmith.codegen.types import Ty

if TYPE_CHECKING:
    from tinsmith.codegen.values import Val

CONVERTING = ("avx2", "avx512", "neon")  # instruction sets that convert float16

_SIGN = 0x8000  # the sign bit of either kind
_INF32, _INF16 = 0x7F800000, 0x7C00  # the bits of infinity in float32 and in float16


def bits_of(value: float, kind: str) -> int:
    """The 16 bits, as a number, of `value`, which the `kind` "f16" or "bf16" holds exactly."""
    if kind == "bf16":
        return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return struct.unpack("<H", struct.pack("<e", value))[0]


def widened(x: Val) -> Val:
    """The float32 that equals a float16 or bfloat16."""
    wide = Ty("u32", x.ty.lanes)
    if x.ty.kind == "bf16":
        return (_integer(x).to("u32") << 16).bitcast(wide.of("f32"))
    if x.b.target.vectors in CONVERTING:
        half = _llvm_half(x.ty.lanes)
        as_half = x.b.emit(x.ty, f"bitcast {x.ty.llvm} {x.ref} to {half}")
        single = wide.of("f32")
        return x.b.emit(single, f"fpext {half} {as_half.ref} to {single.llvm}")
    bits = _integer(x).to("u32")
    size = bits & 0x7FFF
    scaled = (size << 13).bitcast(wide.of("f32")) * 2.0**112  # denormals become normal, exactly
    out = scaled.bitcast(wide)
    out = (size >= _INF16).select(out | _INF32, out)
    return (out | ((bits & _SIGN) << 16)).bitcast(wide.of("f32"))


def narrowed(x: Val, kind: str) -> Val:
    """The half of `kind` "f16" or "bf16" nearest to a float32, lane by lane."""
    if kind == "bf16":
        return _to_bfloat16(x)
    if x.b.target.vectors in CONVERTING:
        ty, half = x.ty.of(kind), _llvm_half(x.ty.lanes)
        as_half = x.b.emit(ty, f"fptrunc {x.ty.llvm} {x.ref} to {half}")
        return x.b.emit(ty, f"bitcast {half} {as_half.ref} to {ty.llvm}")
    return _to_float16(x)


def to_odd(x: Val) -> Val:
    """A float64 rounded to float32 such that rounding it again, to a half, gives the same as
    rounding it directly: inexact results get an odd last bit."""
    near = x.to("f32")
    back = near.to("f64")
    bits = near.bitcast(near.ty.of("i32"))
    inexact = (back < x) | (back > x)
    move = inexact & (bits & 1).eq(0)
    step = (back.abs() > x.abs()).select(bits - 1, bits + 1)
    return move.select(step, bits).bitcast(near.ty)


def _to_bfloat16(x: Val) -> Val:
    bits = x.bitcast(x.ty.of("u32"))
    even = (bits >> 16) & 1
    rounded = (bits + even + 0x7FFF) >> 16
    quiet = ((bits >> 16) & _SIGN) | 0x7FC0
    return _half(x.is_nan().select(quiet, rounded), "bf16")


def _to_float16(x: Val) -> Val:
    single = x.ty
    bits = x.bitcast(single.of("u32"))
    size = bits & 0x7FFFFFFF
    tiny = size.bitcast(single) + 0.5  # what is below 2^-14 is rounded to a multiple of 2^-24
    low = tiny.bitcast(bits.ty) - 0x3F000000
    even = (size >> 13) & 1
    normal = (size + even - ((127 - 15) << 23) + 0xFFF) >> 13
    big = (size > _INF32).select(x.b.const(0x7E00, bits.ty), _INF16)
    out = (size < 0x38800000).select(low, (size >= 0x47800000).select(big, normal))
    return _half(out | ((bits >> 16) & _SIGN), "f16")


def _integer(x: Val) -> Val:
    return x.bitcast(x.ty.of("u16"))


def _half(bits: Val, kind: str) -> Val:
    return bits.to("u16").bitcast(bits.ty.of(kind))


def _llvm_half(lanes: int) -> str:
    return "half" if lanes == 1 else f"<{lanes} x half>"
