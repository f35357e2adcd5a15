"""The peak arithmetic of one core, measured: a loop of independent multiply-adds in registers.

`python -m benchmarks.peak` prints it. The panel writes it into its JSON, and the spread of the
repeated measurements tells how much else the machine was doing.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

ROUNDS = 200_000


def fma_loop(isa: str = "host") -> tuple[Callable[[], None], float]:
    """(a call that runs the loop, its floating-point operations), for an instruction set."""
    from tinsmith.codegen.builder import Module
    from tinsmith.codegen.jit import Loaded, compile_object
    from tinsmith.codegen.target import level
    from tinsmith.codegen.types import F32, PTR

    target = level(isa)
    # Enough to hide the latency of two pipes; one register stays for the factor.
    chains = min(target.registers - 4, 24)
    module = Module(target)
    b = module.function("fma_peak", [("x", PTR)])
    x = b.pointer("x", F32)
    factor = x.splat(target.lanes)
    sums = [(x + 16 * (i + 1)).load(target.lanes) for i in range(chains)]
    with b.loop(0, ROUNDS, carry=sums) as loop:
        loop.next([s.fma(factor, factor) for s in loop.vars])
    for i, s in enumerate(loop.out):
        (x + 16 * (i + 1)).store(s)
    b.ret()
    code = Loaded([compile_object(module.text(), target)], target)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("fma_peak"))
    data = np.full(16 * (chains + 1), 0.5, np.float32)

    def run(keep: object = code) -> None:
        call(data.ctypes.data)

    return run, 2.0 * ROUNDS * chains * target.lanes


def measure(times: int = 15, isa: str = "host") -> dict[str, float]:
    """GFLOP/s of one core in float32: the best of several runs, and their median."""
    run, flops = fma_loop(isa)
    rates: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        rates.append(flops / (time.perf_counter() - start) / 1e9)
    return {"peak_gflops": max(rates), "median_gflops": float(np.median(rates))}


if __name__ == "__main__":
    found = measure()
    print(f"{found['peak_gflops']:.1f} GFLOP/s (median {found['median_gflops']:.1f})")
