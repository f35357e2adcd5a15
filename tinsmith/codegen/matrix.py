"""Matrix registers (AMX): sixteen rows of 64 bytes; products of bfloat16 are added to them.

`multiply(b, c, a, w)` adds the product of [16][32] bfloat16 in register a and [16][16][2] in
register w to the float32 [16][16] in register c; w[i][n] holds elements 2 i and 2 i + 1 of column
n. There are eight registers, named by number; no value of the builder stands for one. (Intel 64 and
IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import BF16, U8

REGISTERS = 8  # matrix registers of a core
SIDE = 16  # rows of a register, and float32 in a row
DEPTH = 32  # bfloat16 in a row
CONFIGURATION = 64  # bytes that configure the registers
LARGEST = 3.3961774e38  # the nearest bfloat16 of larger numbers is infinite

_IMMEDIATE = "i8 immarg"


@contextmanager
def matrices(b: Builder, room: Ptr) -> Iterator[None]:
    """Whole registers may be used within. `room`: CONFIGURATION bytes, into which go the palette,
    the bytes of each register's rows (two bytes each, the lower first), and its number of rows."""
    palette, row = [1, *[0] * 15], [64, 0]
    sizes = [*palette, *row * REGISTERS, *[0] * 16, *[SIDE] * REGISTERS, *[0] * 8]
    room.cast(U8).store(b.vector(sizes, U8))
    b.intrinsic("llvm.x86.ldtilecfg", None, text=f"ptr {room.address}", params="ptr")
    yield
    b.intrinsic("llvm.x86.tilerelease", None)


def clear(b: Builder, register: int) -> None:
    b.intrinsic("llvm.x86.tilezero", None, text=f"i8 {register}", params=_IMMEDIATE)


def load(b: Builder, register: int, at: Ptr, stride: int) -> None:
    """Load sixteen rows of 64 bytes, `stride` bytes apart."""
    _move(b, "llvm.x86.tileloadd64", register, at, stride)


def store(b: Builder, register: int, at: Ptr, stride: int) -> None:
    _move(b, "llvm.x86.tilestored64", register, at, stride)


def _move(b: Builder, name: str, register: int, at: Ptr, stride: int) -> None:
    text = f"i8 {register}, ptr {at.address}, i64 {stride}"
    b.intrinsic(name, None, text=text, params=f"{_IMMEDIATE}, ptr, i64")


def multiply(b: Builder, c: int, a: int, w: int) -> None:
    text = ", ".join(f"i8 {register}" for register in (c, a, w))
    b.intrinsic("llvm.x86.tdpbf16ps", None, text=text, params=", ".join([_IMMEDIATE] * 3))


def halve(b: Builder, x: Val, y: Val, endless: bool = True) -> tuple[Val, Val]:
    """Split two vectors of 16 float32 into 32 bfloat16 `high` and 32 `low` parts; their sum is
    right to a relative error of 2^-17 (G. Henry, P. T. P. Tang, A. Heinecke, 2019,
    arXiv:1904.06376).

    With `endless`, numbers that are infinite, too large or NaN go into `low` alone: they then meet
    `high` of the other matrix once, and never its `low`, whose zeros would make NaN of infinities.
    Without it they give NaN.
    """
    both = [(v.abs() < LARGEST).select(v, 0.0) if endless else v for v in (x, y)]
    high = _join(b, *both)
    parts = [high.shuffle(None, range(at, at + SIDE)).to("f32") for at in (0, SIDE)]
    return high, _join(b, *(v - part for v, part in zip((x, y), parts, strict=True)))


def _join(b: Builder, x: Val, y: Val) -> Val:
    """The bfloat16 nearest to the lanes of x, then of y."""
    name, inner, native = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", x.ty.llvm, f"<{DEPTH} x bfloat>"
    b.module.declare(name, f"declare {native} @{name}({inner}, {inner})")
    ty = BF16.x(DEPTH)
    got = b.emit(ty, f"call {native} @{name}({inner} {y.ref}, {inner} {x.ref})")
    return b.emit(ty, f"bitcast {native} {got.ref} to {ty.llvm}")
