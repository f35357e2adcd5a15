"""Code for matrix registers, run on machines without: numpy does what their instructions do.

The text of a kernel stays as it is, but for the intrinsics: each becomes a call of a Python
function (the conversion to bfloat16 arithmetic on integers), and LLVM makes the rest fit.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import Target, level, runnable

TILES = np.zeros((8, 16, 64), np.uint8)

_CONVERT = """define internal <32 x bfloat> @NAME(<16 x float> %x, <16 x float> %y) {
  %v = shufflevector <16 x float> %y, <16 x float> %x, <32 x i32> <LANES>
  %i = bitcast <32 x float> %v to <32 x i32>
  %s = lshr <32 x i32> %i, splat (i32 16)
  %odd = and <32 x i32> %s, splat (i32 1)
  %half = add <32 x i32> %odd, splat (i32 32767)
  %up = add <32 x i32> %i, %half
  %nan = fcmp uno <32 x float> %v, zeroinitializer
  %r = select <32 x i1> %nan, <32 x i32> splat (i32 2143289344), <32 x i32> %up
  %h = lshr <32 x i32> %r, splat (i32 16)
  %t = trunc <32 x i32> %h to <32 x i16>
  %b = bitcast <32 x i16> %t to <32 x bfloat>
  ret <32 x bfloat> %b
}""".replace("LANES", ", ".join(f"i32 {i}" for i in range(32)))


def _rows(at: int, stride: int) -> Any:
    whole = np.ctypeslib.as_array((ctypes.c_uint8 * (15 * stride + 64)).from_address(at))
    return np.lib.stride_tricks.as_strided(whole, (16, 64), (stride, 1))


def _clear(tile: int) -> None:
    TILES[tile] = 0


def _load(tile: int, at: int, stride: int) -> None:
    TILES[tile] = _rows(at, stride)


def _store(tile: int, at: int, stride: int) -> None:
    _rows(at, stride)[:] = TILES[tile]


def _multiply(c: int, a: int, w: int) -> None:
    left, right = (
        (TILES[t].view(np.uint16).astype(np.uint32) << 16).view(np.float32) for t in (a, w)
    )
    by_pairs = right.reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)
    TILES[c].view(np.float32)[:] += left @ by_pairs


def _multiply_bytes(c: int, a: int, w: int) -> None:
    left = TILES[a].astype(np.int64)
    right = TILES[w].view(np.int8).astype(np.int64)
    by_groups = right.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    TILES[c].view(np.uint32)[:] += (left @ by_groups).astype(np.uint32)


_I8, _I64 = ctypes.c_int8, ctypes.c_int64
_DONE = {
    "tilezero": (_clear, "i8 %x", _I8),
    "tileloadd64": (_load, "i8 %x, ptr %y, i64 %z", _I8, _I64, _I64),
    "tilestored64": (_store, "i8 %x, ptr %y, i64 %z", _I8, _I64, _I64),
    "tdpbf16ps": (_multiply, "i8 %x, i8 %y, i8 %z", _I8, _I8, _I8),
    "tdpbusd": (_multiply_bytes, "i8 %x, i8 %y, i8 %z", _I8, _I8, _I8),
    "ldtilecfg": (lambda at: None, "ptr %x", _I64),
    "tilerelease": (lambda: None, ""),
}
_CALLS = {name: ctypes.CFUNCTYPE(None, *types)(f) for name, (f, _, *types) in _DONE.items()}


def emulated(text: str) -> str:
    """The text with functions for the intrinsics of matrix registers and bfloat16."""

    def instead(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("avx512bf16"):
            return _CONVERT.replace("NAME", "emulated." + name)
        if name not in _DONE:
            return found[0]
        address = ctypes.cast(_CALLS[name], ctypes.c_void_p).value
        _, args, *_ = _DONE[name]
        call = f"call void inttoptr (i64 {address} to ptr)({args})"
        return f"define internal void @emulated.{name}({args}) {{\n  {call}\n  ret void\n}}"

    text = re.sub(r"declare [^@\n]*@llvm\.x86\.([\w.]+)\([^\n]*\)", instead, text)
    return re.sub(rf"@llvm\.x86\.(?={'|'.join(_DONE)}|avx512bf16)", "@emulated.", text)


def can_run() -> bool:
    """Whether this machine runs such code, by whatever means."""
    return any(runnable(level(name)) for name in ("amx", "avx2"))


def load(codes: Mapping[str, str], target: Target) -> Any:
    """`load_library`, on any machine with vectors."""
    if target.isa != "amx" or runnable(target):
        return load_library(codes, target)
    hosts = (level(name) for name in ("avx512vnni", "avx512", "avx2"))
    host = next(filter(runnable, hosts))
    return load_library({name: emulated(text) for name, text in codes.items()}, host)
