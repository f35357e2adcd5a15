"""How fast kernels run alone: `python -m benchmarks.micro [--isa avx2] [--only NAME] [--passes N]`.

One row is one kernel on one shape of a well-known network, run over and over from machine code,
with warm caches where its data fits. The time is the least of many runs; the share is of the
multiply-add peak, which is measured before and after each row (the better counts), and for data
that no cache holds of the rate at which one core reads memory. `estimate` is what the planner
believes, by the table of cores (`tinsmith/codegen/cores.py`), whatever this machine measures.
Winograd's and Strassen's flops are those of the definition, so that their share may exceed 100 %.

Machines that are shared change their clocks and slow down for seconds: of several passes over the
table, the one in the middle by its share is shown. Use `taskset -c N` where other work would move
the process around.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Protocol

import click
import numpy as np
from rich.table import Table

from benchmarks import _micro_dense, _micro_window
from benchmarks._repeat import least
from benchmarks.peak import measure
from benchmarks.report import screen
from tests.kernels.harness import prepare, site_of
from tinsmith.codegen.target import Target, level, runnable
from tinsmith.graph import Node
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.ops import OPS
from tinsmith.runtime.gauge import read_loop


class Case(Protocol):
    @property
    def kernel(self) -> str: ...

    def node(self) -> Node: ...


@dataclass(frozen=True)
class Result:
    """One row. Times in ms, GFLOP/s, GB/s; `memory` is the rate of reading, where that counts."""

    isa: str
    kernel: str
    shape: str
    detail: str
    ms: float
    estimate_ms: float
    gflop: float
    gbytes: float
    peak: float
    memory: float | None

    @property
    def computed(self) -> float:
        """The share of the multiply-add peak."""
        return 1e3 * self.gflop / self.ms / self.peak

    @property
    def read(self) -> float:
        """The share of the memory's rate; 0 where a cache holds the data."""
        return 1e3 * self.gbytes / self.ms / self.memory if self.memory else 0.0

    @property
    def share(self) -> str:
        """Of the nearer limit."""
        return (
            f"{self.computed:.0%}" if self.computed >= self.read else f"{self.read:.0%} of memory"
        )


def typical(passes: list[Result]) -> Result:
    """The pass in the middle, by its time at the peak of that pass: clocks change."""
    return sorted(passes, key=lambda r: r.ms * r.peak)[len(passes) // 2]


def measured(case: Case, target: Target, seconds: float) -> Result | None:
    """The case on an instruction set; None where the kernel declines."""
    node = case.node()
    try:
        offers = KERNELS[case.kernel].offer(site_of(node, target))
    except Skip:
        return None
    pick = min(range(len(offers)), key=lambda i: offers[i].cost)
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.standard_normal(v.type.dims, dtype=np.float32)
        for v in node.inputs
        if v is not None and v.const is None
    }
    bench = prepare(node, feeds, case.kernel, target, pick=pick)
    peaks = [measure(5, target.isa)["peak_gflops"]]
    best = least(bench, target, seconds)
    peaks.append(measure(5, target.isa)["peak_gflops"])
    nbytes = sum(v.type.nbytes for v in (*node.inputs, *node.outputs) if v is not None)
    flops = OPS[node.op.name].flops(node.inputs, node.outputs, node.attrs)
    return Result(
        target.isa, case.kernel, str(case), bench.choice.detail, best * 1e3,
        bench.choice.cost * 1e3, flops / 1e9, nbytes / 1e9, max(peaks),
        read_rate(target) if nbytes > target.l3 else None,
    )  # fmt: skip


def read_rate(target: Target, nbytes: int = 256 << 20, times: int = 5) -> float:
    """GB/s at which one core reads memory that no cache holds."""
    data, read = np.ones(nbytes // 4, np.float32), read_loop(target)
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        read(data.ctypes.data, data.size)
        best = min(best, time.perf_counter() - start)
    return nbytes / best / 1e9


def cases(only: str, isa: str) -> Iterator[Case]:
    """Those that contain `only`; where an instruction set has the vectors of another, those of its
    own kernels."""
    own = level(isa).vectors != isa
    for case in chain(_micro_window.cases(), _micro_dense.cases()):
        if only in f"{case.kernel} {case}" and (not own or isa in KERNELS[case.kernel].isas):
            yield case


def as_table(rows: list[Result], isa: str) -> Table:
    table = Table("kernel", "shape", "choice", title=isa)
    for column in ("ms", "estimate", "GFLOP/s", "peak", "GB/s", "share"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.kernel, row.shape, row.detail, f"{row.ms:.4f}", f"{row.estimate_ms:.4f}",
            f"{1e3 * row.gflop / row.ms:.1f}", f"{row.peak:.1f}",
            f"{1e3 * row.gbytes / row.ms:.1f}", row.share,
        )  # fmt: skip
    return table


@click.command()
@click.option(
    "--isa", multiple=True, help="Instruction sets (default: amx, avx512 and avx2; those present)."
)
@click.option("--only", default="", help="Only rows whose kernel or shape contains this.")
@click.option("--seconds", default=0.1, help="How long each row is repeated in a pass.")
@click.option("--passes", default=1, help="How often the table is gone through.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(isa: tuple[str, ...], only: str, seconds: float, passes: int, as_json: bool) -> None:
    found: dict[tuple[str, Case], list[Result]] = {}
    chosen = isa or tuple(n for n in ("amx", "avx512", "avx2") if runnable(level(n)))
    for _ in range(passes):
        for name in chosen:
            for case in cases(only, name):
                if row := measured(case, level(name), seconds):
                    found.setdefault((name, case), []).append(row)
    rows = {key: typical(each) for key, each in found.items()}
    if as_json:
        click.echo(json.dumps([asdict(r) for r in rows.values()], indent=1))
        return
    for name in chosen:
        screen().print(as_table([r for (isa, _), r in rows.items() if isa == name], name))


if __name__ == "__main__":
    main()
