"""How fast the dense kernels run alone: products as a share of the multiply-add peak, the rest in
bytes a second. `python -m benchmarks.micro_dense [target] [row prefix]`.

Every row is one kernel on one shape, run over and over from machine code, data warm in the caches
where it fits; times are minima. Products by a vector, whose weights are read once, are also shown
as a share of the rate at which one core reads memory (measured in the same process, see
`tinsmith.runtime.gauge`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._repeat import least
from benchmarks.peak import measure
from tests.kernels.harness import one_node, prepare
from tinsmith.codegen.target import Target, level
from tinsmith.runtime.gauge import read_loop
from tinsmith.runtime.limits import calibrated

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Row:
    kernel: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    attrs: dict[str, Any]
    consts: tuple[int, ...] = ()
    flops: float = 0.0
    axes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        shown = " ".join("x".join(map(str, s)) for s in self.shapes)
        return f"{self.kernel} {shown} {self.axes or ''}".strip()


def products() -> Iterator[Row]:
    for m, k, n in (
        (196, 768, 768), (196, 768, 3072), (196, 3072, 768), (197, 768, 2304), (49, 384, 1536),
        (784, 192, 768), (784, 768, 192), (3136, 96, 384), (3136, 384, 96), (64, 512, 512),
        (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (100, 300, 100),
    ):  # fmt: skip
        yield Row("matmul_packed", "MatMul", ((m, k), (k, n)), {}, (1,), 2.0 * m * k * n)
    for m, k, n in ((8, 768, 768), (16, 1024, 4096)):
        yield Row("matmul_packed", "MatMul", ((m, k), (k, n)), {}, (1,), 2.0 * m * k * n)
    for m, k, n in (
        (1, 512, 512),
        (1, 2048, 1000),
        (1, 4096, 4096),
        (1, 25088, 4096),
        (4, 4096, 4096),
    ):
        yield Row("gemv_packed", "MatMul", ((m, k), (k, n)), {}, (1,))
    for a, b in (
        ((12, 197, 64), (12, 64, 197)), ((12, 197, 197), (12, 197, 64)),
        ((64, 49, 32), (64, 32, 49)), ((64, 49, 49), (64, 49, 32)),
        ((512, 512), (512, 512)), ((1024, 1024), (1024, 1024)),
        ((8, 1024, 64), (8, 64, 1024)), ((8, 1024, 1024), (8, 1024, 64)),
    ):  # fmt: skip
        yield Row("matmul_batched", "MatMul", (a, b), {}, (), 2.0 * np.prod(a) * b[-1])
    yield Row("matvec", "MatMul", ((4096, 4096), (4096, 1)), {})


def others() -> Iterator[Row]:
    for shape, axis in (
        ((12, 197, 197), -1),
        ((192, 49, 49), -1),
        ((1, 1000), -1),
        ((64, 21, 1024), 1),
    ):
        yield Row("softmax", "Softmax", (shape,), {"axis": axis})
    for n, c in ((196, 768), (3136, 96), (784, 192)):
        yield Row("layer_norm", "LayerNorm", ((n, c), (c,), (c,)), {}, (1, 2))
    yield Row("rms_norm", "RMSNorm", ((128, 4096), (4096,)), {}, (1,))
    yield Row("instance_norm", "InstanceNorm", ((1, 32, 128, 128), (32,), (32,)), {}, (1, 2))
    for shape, axes in (
        ((1, 256, 56, 56), (2, 3)), ((1, 2048, 7, 7), (2, 3)), ((56, 56, 256), (0, 1)),
        ((512, 1024), (0,)), ((512, 1024), (1,)), ((64, 33, 64), (1,)),
    ):  # fmt: skip
        yield Row("reduce", "Reduce", (shape,), {"kind": "mean"}, (1,), axes=axes)
    yield Row("arg_reduce", "ArgReduce", ((64, 1000),), {"kind": "max", "axis": 1})
    yield Row("arg_reduce", "ArgReduce", ((1, 21, 256, 256),), {"kind": "max", "axis": 1})


def read_rate(target: Target, nbytes: int = 256 << 20, times: int = 5) -> float:
    """Bytes a second at which one core reads memory that no cache holds."""
    data, read = np.ones(nbytes // 4, np.float32), read_loop(target)
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        read(data.ctypes.data, data.size)
        best = min(best, time.perf_counter() - start)
    return nbytes / best


def table(target: str = "host", prefix: str = "", *, seconds: float = 0.15) -> Iterator[str]:
    """One line a row: time, rate, share of the peak (products), the planner's estimate."""
    machine = calibrated(level(target))
    peak, memory = measure(isa=target)["peak_gflops"], read_rate(machine)
    yield f"peak {peak:.1f} GFLOP/s, memory {memory / 1e9:.1f} GB/s"
    for row in (*products(), *others()):
        if not str(row).startswith(prefix):
            continue
        arrays = [RNG.standard_normal(s).astype(np.float32) for s in row.shapes]
        if row.axes is not None:
            arrays.append(np.array(row.axes))
        node = one_node(row.op, arrays, row.attrs, row.consts)
        bench = prepare(node, {f"x{i}": a for i, a in enumerate(arrays)}, row.kernel, machine)
        best = least(bench, machine, seconds)
        nbytes = sum(a.nbytes for a in arrays) + sum(v.type.nbytes for v in node.outputs)
        rate = f"{nbytes / best / 1e9:6.1f} GB/s"
        if nbytes > machine.l3:
            rate += f" {100 * nbytes / best / memory:4.0f} %"
        if row.flops:
            rate = (
                f"{row.flops / best / 1e9:6.1f} GF/s {100 * row.flops / best / 1e9 / peak:4.0f} %"
            )
        cost = bench.choice.cost * 1e6
        yield f"{row!s:52} {best * 1e6:9.1f} us  {rate:20} est {cost:8.1f}  {bench.choice.detail}"


if __name__ == "__main__":
    for line in table(*sys.argv[1:3]):
        print(line, flush=True)
