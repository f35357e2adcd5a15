"""Generated functions f(x, y, n), with y[i] = g(x[i]) for n a multiple of 4."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Module, Val
from tinsmith.codegen.target import Target, host
from tinsmith.codegen.types import F32, I64, PTR

PARAMS = [("x", PTR), ("y", PTR), ("n", I64)]
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
X = np.linspace(-2, 2, 32, dtype=np.float32)


def text_of(name: str, g: Callable[[Val], Val], target: Target | None = None) -> str:
    """The LLVM IR of one function."""
    module = Module(target or host())
    b = module.function(name, PARAMS)
    x, y = b.pointer("x", F32), b.pointer("y", F32)
    with b.loop(0, b.args["n"], 4) as i:
        (y + i).store(g((x + i).load(4)))
    b.ret()
    return module.text()


def texts(count: int) -> dict[str, str]:
    """So many functions: the k-th is exp(x) + k."""
    return {f"f{k}": text_of(f"f{k}", lambda v, k=k: m.exp(v) + float(k)) for k in range(count)}


def apply(library: Any, name: str, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    SIGNATURE(library.address(name))(x.ctypes.data, y.ctypes.data, x.size)
    return y
