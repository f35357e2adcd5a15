"""Runs one expression of vectors natively over whole arrays, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tinsmith.codegen.builder import Module, Val
from tinsmith.codegen.elf import link
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.library import SharedLibrary
from tinsmith.codegen.target import level
from tinsmith.codegen.types import I64, PTR, from_dtype

STEP = 64
KEEP: list[Any] = []


def compiled(
    body: Callable[..., Val], dtypes: Sequence[str], result: str, target: str, lanes: int = 0
) -> Callable[..., np.ndarray]:
    """`body` over vectors (bool operands as i1) as a function of flat arrays of equal length."""
    machine = level(target)
    lanes = lanes or max(4, machine.lanes)
    module = Module(machine)
    names = [f"x{i}" for i in range(len(dtypes))]
    b = module.function("f", [*((n, PTR) for n in (*names, "y")), ("n", I64)])
    with b.loop(0, b.args["n"], lanes) as i:
        values = []
        for name, dtype in zip(names, dtypes, strict=True):
            value = (b.pointer(name, from_dtype(np.dtype(dtype))) + i).load(lanes)
            values.append(value.to("i1") if dtype == "bool" else value)
        (b.pointer("y", from_dtype(np.dtype(result))) + i).store(body(*values))
    b.ret()
    library = SharedLibrary(link([compile_object(module.text(), machine)]))
    KEEP.append(library)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(names) + 1), ctypes.c_int64)(
        library.address("f")
    )

    def run(*arrays: Any) -> np.ndarray:
        flat = [np.asarray(a, d).reshape(-1) for a, d in zip(arrays, dtypes, strict=True)]
        n = flat[0].size
        padded = [np.concatenate([a, np.resize(a, -n % STEP)]) for a in flat]
        y = np.zeros(padded[0].size, result)
        call(*[a.ctypes.data for a in padded], y.ctypes.data, padded[0].size)
        return y[:n]

    return run


def ulp(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units of float32's last place at `want`, a float64 array; 0 where both are
    the same infinity or NaN, inf where only one of them is special."""
    with np.errstate(all="ignore"):
        nearest = want.astype(np.float32)
        same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
        wide = got.astype(np.float64)
        unit = np.spacing(np.maximum(np.abs(nearest), np.float32(2**-126))).astype(np.float64)
        top = np.float64(2.0**128)
        a = np.where(np.isinf(wide), np.sign(wide) * top, wide)
        w = np.where(np.isinf(want), np.sign(want) * top, np.clip(want, -top, top))
        unit = np.where(np.isfinite(unit), unit, 2.0**104)
        error = np.where(same, 0.0, np.abs(a - w) / unit)
    return np.where(np.isnan(error), np.inf, error)


@cache
def every(step: int) -> np.ndarray:
    """Every `step`-th float32, all signs and exponents, NaN and infinities included."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 2**-126]
    special += [3.4028235e38, -3.4028235e38, 88.72284, -87.33655, -103.98]
    return np.concatenate([bits.view(np.float32), np.array(special, np.float32)])
