"""The peak arithmetic of one core, measured: a loop of independent multiply-adds in registers.

`python -m benchmarks.peak` prints it, with `--row` what a row of the table of cores has, with
`--products` what rows of the table of products reach. The panel writes it into its JSON, and the
spread of the repeated measurements tells how much else the machine was doing.
"""

from __future__ import annotations

import sys
import time

import numpy as np


def measure(times: int = 15, isa: str = "host", types: str = "float32") -> dict[str, float]:
    """GFLOP/s of one core in float32, or thousand millions of operations a second on other `types`
    of elements, such as "uint8 int8": the best of several runs, and their median."""
    from tinsmith.codegen.products import product_of
    from tinsmith.codegen.target import level
    from tinsmith.runtime.gauge import fma_loop

    left, right = (types.split() * 2)[:2]
    run, flops = fma_loop(level(isa), 0, product_of(level(isa), left, right))
    rates: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(10):
            run()
        rates.append(10 * flops / (time.perf_counter() - start) / 1e9)
    return {"peak_gflops": max(rates), "median_gflops": float(np.median(rates))}


def row(times: int = 20) -> str:
    """What this machine measures, at the best of several times, for `tinsmith/codegen/cores.py`.

    The clock is that at which the peak has the multiply-adds a cycle that the table assumes."""
    from tinsmith.codegen.target import host
    from tinsmith.runtime import gauge

    target = host()
    found = [gauge.measure(target) for _ in range(times)]
    best = type(found[0])(*map(max, zip(*found, strict=True)))._replace(
        wait=min(r.wait for r in found)
    )
    clock = best.peak / (2 * target.lanes * target.pipes)
    per_cycle = (best.l2_bandwidth / clock, best.l3_bandwidth / clock)
    return (
        f"clock {clock / 1e9:.2f} GHz, wide {best.wide:.2f}, l2 {per_cycle[0]:.1f} and l3 "
        f"{per_cycle[1]:.1f} bytes a cycle, memory {best.dram_bandwidth / 1e9:.0f} and together "
        f"{best.dram_together / 1e9:.0f} GB/s, wait {best.wait * 1e9:.0f} ns"
    )


def products(times: int = 30) -> str:
    """What the rows of the table of products reach on this machine, beside float32."""
    from tinsmith.codegen.products import PRODUCTS, VECTORS
    from tinsmith.codegen.target import host
    from tinsmith.runtime.gauge import fma_loop

    target, best = host(), {}
    rows = [row for row in PRODUCTS.values() if row.unit == VECTORS and row.needs(target)]
    loops = {row.name: fma_loop(target, 0, row) for row in rows}
    for _ in range(times):  # in turns: the clock changes
        for name, (run, operations) in loops.items():
            start = time.perf_counter()
            run()
            rate = operations / (time.perf_counter() - start) / 1e9
            best[name] = max(rate, best.get(name, 0.0))
    lines = (f"{n:10} {rate:7.1f} GOP/s  {rate / best['float32']:.2f}" for n, rate in best.items())
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--products"]:
        print(products())
    elif sys.argv[1:] == ["--row"]:
        print(row())
    else:
        found = measure()
        print(f"{found['peak_gflops']:.1f} GFLOP/s (median {found['median_gflops']:.1f})")
