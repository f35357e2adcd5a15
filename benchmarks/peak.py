"""The peak arithmetic of one core, measured: a loop of independent multiply-adds in registers.

`python -m benchmarks.peak` prints it. The panel writes it into its JSON, and the spread of the
repeated measurements tells how much else the machine was doing.
"""

from __future__ import annotations

import time

import numpy as np


def measure(times: int = 15, isa: str = "host") -> dict[str, float]:
    """GFLOP/s of one core in float32: the best of several runs, and their median."""
    from tinsmith.codegen.target import level
    from tinsmith.runtime.gauge import fma_loop

    run, flops = fma_loop(level(isa))
    rates: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(10):
            run()
        rates.append(10 * flops / (time.perf_counter() - start) / 1e9)
    return {"peak_gflops": max(rates), "median_gflops": float(np.median(rates))}


if __name__ == "__main__":
    found = measure()
    print(f"{found['peak_gflops']:.1f} GFLOP/s (median {found['median_gflops']:.1f})")
