"""Functions of a byte, as tables of 256 bytes that are read in registers.

A shuffle picks bytes out of a register by indices in another one. Where it picks from 16 bytes, the
table is gone through 16 entries (a row) at a time: rows without the wanted entry give 0, and XOR
puts the results of all rows together.
"""

from __future__ import annotations

from functools import reduce
from operator import xor
from typing import Any

import numpy as np

from tinsmith.codegen.pointers import Ptr
from tinsmith.codegen.target import Target
from tinsmith.codegen.types import Ty
from tinsmith.codegen.values import Val

Array = np.ndarray[Any, Any]

I8, U8 = Ty("i8"), Ty("u8")
ENTRIES, HALF = 256, 128
ROW = 16  # entries that a shuffle picks from
SHUFFLES = {"avx2": (32, "llvm.x86.avx2.pshuf.b"), "avx512": (64, "llvm.x86.avx512.pshuf.b.512")}
"""By instruction set: bytes of a register, and the shuffle, which works on each 16 bytes alone and
gives 0 where an index is negative (Intel 64 and IA-32 Architectures SDM, volume 2)."""
QUARTER = 64  # entries that TBL picks from, as four registers
TBL = "llvm.aarch64.neon.tbl4.v16i8"
"""Gives 0 where an index is 64 or more (Arm A64 instruction set)."""


def width(target: Target) -> int:
    """How many bytes `look_up` looks up with one vector; 1 where the target has no shuffles."""
    return ROW if target.vectors == "neon" else max(1, row_bytes(target))


def row_bytes(target: Target) -> int:
    """Bytes of a register on targets that look bytes up by rows of 16 entries (`SHUFFLES`); 0 on
    others."""
    return SHUFFLES[target.vectors][0] if target.vectors in SHUFFLES else 0


def pack(table: Array, size: int) -> Array:
    """A table of 256 bytes as `look_up` reads it; `size` is the target's `row_bytes`. If that is 0,
    a copy of the table; else 16 registers of `size` bytes, one for each row: the row XOR the one
    before it in the same half of the table, repeated."""
    table = table.view(np.uint8)
    if not size:
        return table.copy()
    changes = table.reshape(2, -1, ROW).copy()
    changes[:, 1:] ^= table.reshape(2, -1, ROW)[:, :-1]
    return np.tile(changes.reshape(-1, 1, ROW), (1, size // ROW, 1)).reshape(-1)


def look_up(table: Ptr, x: Val) -> Val:
    """For each byte of the vector x, the entry of a packed table at that index (0 to 255), as u8.
    x may be shorter than `width`."""
    target, lanes = x.b.target, x.ty.lanes
    size = width(target)
    x = Val(x.b, U8.x(lanes), x.ref)
    if size == 1:
        assert lanes == 1, "this machine looks up one byte at a time"
        return (table + x.to("u64")).load()
    if lanes < size:
        places = [*range(lanes), *[0] * (size - lanes)]
        whole = x.splat(size) if lanes == 1 else x.shuffle(None, places)
        return look_up(table, whole).part(0, lanes)
    return _by_quarters(table, x) if target.vectors == "neon" else _by_rows(table, x)


def _by_rows(table: Ptr, x: Val) -> Val:
    """Each half of the table has 8 rows of 16 entries. A shuffle picks from row k by x - 16 k, and
    gives 0 where that is negative. So rows 0 to that of x add to the result by XOR, each at x mod
    16; since row k holds its entries XOR those of row k - 1, what remains is the entry."""
    b, ty = x.b, x.ty
    size, shuffle = SHUFFLES[b.target.vectors]
    found = None
    for half in (0, 1):
        at = Val(b, I8.x(size), x.ref) ^ -HALF if half else Val(b, I8.x(size), x.ref)
        for k in range(HALF // ROW):
            if k:
                args = [at, b.const(ROW, at.ty)]
                at = b.intrinsic(f"llvm.ssub.sat.{at.ty.suffix}", at.ty, args)
            row = (table + (half * (HALF // ROW) + k) * size).load(size)
            part = b.intrinsic(shuffle, ty, [row, at])
            found = part if found is None else found ^ part
    assert found is not None
    return found


def _by_quarters(table: Ptr, x: Val) -> Val:
    def look(quarter: int) -> Val:
        rows = [(table + quarter * QUARTER + at).load(ROW) for at in range(0, QUARTER, ROW)]
        return x.b.intrinsic(TBL, x.ty, [*rows, x - quarter * QUARTER if quarter else x])

    return reduce(xor, map(look, range(ENTRIES // QUARTER)))
