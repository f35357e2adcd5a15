"""Relocations of x86-64 and AArch64 objects: what each type writes, and into how many bits."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tinsmith.errors import CodegenError

X86_64, AARCH64 = 62, 183  # ELF numbers of machines
RELATIVE = {X86_64: 8, AARCH64: 1027}
"""Type of the dynamic relocation that adds the load address to a stored word."""

ABSOLUTE = {X86_64: 1, AARCH64: 257}
"""Type of the relocation that stores a 64-bit address."""

GOT = {X86_64: {9, 41, 42}, AARCH64: {311, 312}}
"""Types that refer to a word holding the symbol's address."""

Write = Callable[[bytearray, int, int, int], None]


def _signed(value: int, bits: int, what: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise CodegenError(f"generated code is too large: {what} is out of reach")
    return value


def _put(image: bytearray, at: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", image, at)
    struct.pack_into("<I", image, at, word | bits)


def _relative32(image: bytearray, at: int, place: int, value: int) -> None:
    struct.pack_into("<i", image, at, _signed(value - place, 32, "a constant or function"))


def _relative64(image: bytearray, at: int, place: int, value: int) -> None:
    struct.pack_into("<q", image, at, value - place)


def _page(image: bytearray, at: int, place: int, value: int) -> None:
    pages = _signed((value >> 12) - (place >> 12), 21, "a constant")
    _put(image, at, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _near(image: bytearray, at: int, place: int, value: int) -> None:
    distance = _signed(value - place, 21, "a constant")
    _put(image, at, (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5)


def _low(shift: int) -> Write:
    """A writer for AArch64 instructions that hold the low 12 bits of an address, in units of 1 <<
    `shift` bytes: writes (value mod 4096) >> shift into bits 10 to 21."""

    def write(image: bytearray, at: int, place: int, value: int) -> None:
        _put(image, at, (value & 0xFFF) >> shift << 10)

    return write


def _branch(bits: int, position: int) -> Write:
    def write(image: bytearray, at: int, place: int, value: int) -> None:
        distance = _signed((value - place) >> 2, bits, "a function")
        _put(image, at, (distance & (1 << bits) - 1) << position)

    return write


WRITERS: dict[int, dict[int, Write]] = {
    X86_64: {
        2: _relative32,  # PC32
        4: _relative32,  # PLT32
        9: _relative32,  # GOTPCREL and its relaxable forms
        41: _relative32,
        42: _relative32,
        24: _relative64,  # PC64
    },
    AARCH64: {
        260: _relative64,  # PREL64
        261: _relative32,  # PREL32
        273: _branch(19, 5),  # LD_PREL_LO19
        274: _near,  # ADR_PREL_LO21
        275: _page,  # ADR_PREL_PG_HI21
        276: _page,
        277: _low(0),  # ADD_ABS_LO12_NC
        278: _low(0),  # LDST8
        279: _branch(14, 5),  # TSTBR14
        280: _branch(19, 5),  # CONDBR19
        282: _branch(26, 0),  # JUMP26
        283: _branch(26, 0),  # CALL26
        284: _low(1),  # LDST16
        285: _low(2),  # LDST32
        286: _low(3),  # LDST64
        299: _low(4),  # LDST128
        311: _page,  # ADR_GOT_PAGE
        312: _low(3),  # LD64_GOT_LO12_NC
    },
}


def apply(machine: int, kind: int, image: bytearray, at: int, place: int, value: int) -> None:
    """Patch the image for a relocation of ELF type `kind` of the `machine` (X86_64, AARCH64). `at`
    is the offset of the bytes to patch, `place` their address, `value` the address to refer to,
    addend included. Raises CodegenError for an unknown type, and for a value out of reach."""
    writer = WRITERS.get(machine, {}).get(kind)
    if writer is None:
        raise CodegenError(f"generated code has a relocation of an unknown type ({kind})")
    writer(image, at, place, value)
