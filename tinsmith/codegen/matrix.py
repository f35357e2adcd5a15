"""Matrix registers (AMX): their instructions, and float32 as sums of bfloat16.

A register has sixteen rows of 64 bytes. `multiply(b, c, a, w)` adds the product of [16][32]
bfloat16 in register a and [16][16][2] in register w to the float32 [16][16] in register c; w[i][n]
holds elements 2 i and 2 i + 1 of column n. `multiply_bytes(b, c, a, w)` adds that of [16][64]
unsigned bytes and [16][16][4] signed ones to the int32 in register c, modulo 2^32. The eight
registers are named by number. (Intel 64 and IA-32 Architectures SDM, volume 1, chapter 18.)

Split precision keeps a float32 as the sum of `parts` bfloat16, each the nearest to what those
before leave: of two parts, hi + lo is right to a relative error of 2^-17 (G. Henry, P. T. P. Tang,
A. Heinecke, 2019, arXiv:1904.06376).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import BF16, U8

Array = np.ndarray[Any, Any]

REGISTERS = 8  # matrix registers of a core
SIDE = 16  # rows of a register, and float32 in a row
DEPTH = 32  # bfloat16 in a row
CONFIGURATION = 64  # bytes that configure the registers
LARGEST = 3.3961774e38  # the nearest bfloat16 of larger numbers is infinite
STRETCH = 1 << 14  # elements of an array that are split at a time: caches hold them


@contextmanager
def matrices(b: Builder, room: Ptr) -> Iterator[None]:
    """A context whose code may use the matrix registers, all of full size: they are configured
    before it and released after it. `room`: CONFIGURATION bytes of memory, to which code writes the
    configuration."""
    palette, row = [1, *[0] * 15], [64, 0]
    sizes = [*palette, *row * REGISTERS, *[0] * 16, *[SIDE] * REGISTERS, *[0] * 8]
    room.cast(U8).store(b.vector(sizes, U8))
    b.intrinsic("llvm.x86.ldtilecfg", None, text=f"ptr {room.address}", params="ptr")
    yield
    b.intrinsic("llvm.x86.tilerelease", None)


def clear(b: Builder, register: int) -> None:
    _on(b, "tilezero", register)


def load(b: Builder, register: int, at: Ptr, stride: int) -> None:
    """Load a register: 16 rows of 64 bytes, from `at` on `stride` bytes apart."""
    _on(b, "tileloadd64", register, text=f", ptr {at.address}, i64 {stride}", params=", ptr, i64")


def store(b: Builder, register: int, at: Ptr, stride: int) -> None:
    """Store a register: 16 rows of 64 bytes, from `at` on `stride` bytes apart."""
    _on(b, "tilestored64", register, text=f", ptr {at.address}, i64 {stride}", params=", ptr, i64")


def multiply(b: Builder, c: int, a: int, w: int) -> None:
    """Add the product of bfloat16 in registers a and w to the float32 in register c."""
    _on(b, "tdpbf16ps", c, a, w)


def multiply_bytes(b: Builder, c: int, a: int, w: int) -> None:
    """Add the product of unsigned bytes in register a and signed ones in w to the int32 in c."""
    _on(b, "tdpbusd", c, a, w)


def _on(b: Builder, name: str, *registers: int, text: str = "", params: str = "") -> None:
    """Emit the instruction `name` on matrix registers, by their numbers. `text` and `params` are
    further operands and their types, as LLVM text, each after a comma."""
    numbers = ", ".join(f"i8 {register}" for register in registers)
    kinds = ", ".join(["i8 immarg"] * len(registers))
    b.intrinsic(f"llvm.x86.{name}", None, text=numbers + text, params=kinds + params)


def split(b: Builder, x: Val, y: Val, parts: int = 2, endless: bool = True) -> list[Val]:
    """Two vectors of 16 float32 in split precision: `parts` vectors of 32 bfloat16, hi first, with
    the parts of x in lanes 0 to 15 and those of y in lanes 16 to 31.

    With `endless`, NaN and numbers of magnitude LARGEST or more (infinite as bfloat16) are in the
    last part alone, and 0 in the others: products multiply the last part by the other operand's
    first part only, so that no infinity meets a 0 and becomes NaN. Without `endless` such numbers
    give NaN.
    """
    rest, found = [x, y], []
    for more in range(parts)[::-1]:
        kept = rest
        if more and endless:
            kept = [(v.abs() < LARGEST).select(v, 0.0) for v in rest]
        found.append(_join(b, *kept))
        if more:
            wide = [found[-1].shuffle(None, range(at, at + SIDE)).to("f32") for at in (0, SIDE)]
            rest = [v - w for v, w in zip(rest, wide, strict=True)]
    return found


def split_array(x: Array, parts: int = 2) -> list[Array]:
    """A finite float32 array in split precision: `parts` arrays of its shape, hi first, of the bits
    of bfloat16 as uint16."""
    flat, half = x.reshape(-1), np.uint32(0x8000)
    found = [np.empty(flat.shape, np.uint16) for _ in range(parts)]
    for at in range(0, flat.size, STRETCH):
        rest = flat[at : at + STRETCH]
        for part in found:
            near = rest.view(np.uint32) + half
            np.right_shift(near, 16, out=part[at : at + STRETCH], casting="unsafe")
            if part is not found[-1]:
                near &= np.uint32(0xFFFF0000)
                rest = rest - near.view(np.float32)
    return [part.reshape(x.shape) for part in found]


def _join(b: Builder, x: Val, y: Val) -> Val:
    """A vector of 32 bfloat16: those nearest to the 16 lanes of x, then to those of y."""
    name, inner, native = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", x.ty.llvm, f"<{DEPTH} x bfloat>"
    b.module.declare(name, f"declare {native} @{name}({inner}, {inner})")
    ty = BF16.x(DEPTH)
    got = b.emit(ty, f"call {native} @{name}({inner} {y.ref}, {inner} {x.ref})")
    return b.emit(ty, f"bitcast {native} {got.ref} to {ty.llvm}")
