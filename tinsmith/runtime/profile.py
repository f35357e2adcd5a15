"""Per-step times of a program, against the machine's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from tinsmith.codegen.target import level
from tinsmith.records import dataclass
from tinsmith.runtime.limits import limits
from tinsmith.runtime.program import Session


@dataclass(frozen=True)
class Row:
    """One step: median milliseconds, its share of the run, arithmetic and memory rates.

    `peak_share` is GFLOP/s over the peak of the threads used; None where a step has no arithmetic.
    """

    name: str
    op: str
    kernel: str
    kind: str
    ms: float
    share: float
    gflops: float
    peak_share: float | None
    mbytes: float
    gbytes_per_s: float
    origin: str


@dataclass(frozen=True)
class Profile:
    """Rows in order of execution; prints as a table."""

    model: str
    threads: int
    total_ms: float
    peak_gflops: float
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def reference_share(self) -> float:
        """The share of the time that steps run in numpy take."""
        return sum(r.share for r in self.rows if r.kind == "reference")

    def __str__(self) -> str:
        head = f"{'step':40} {'kernel':24} {'ms':>8} {'share':>6} "
        head += f"{'GFLOP/s':>8} {'of peak':>7} {'GB/s':>7}"
        lines = [
            f"{self.model}, {self.threads} thread(s): {self.total_ms:.3f} ms (median), "
            f"peak {self.peak_gflops:.0f} GFLOP/s",
            head,
        ]
        for r in self.rows:
            peak = "" if r.peak_share is None else f"{100 * r.peak_share:6.0f}%"
            rate = f"{r.gflops:8.1f}" if r.gflops else " " * 8
            lines.append(
                f"{r.name[:40]:40} {r.kernel[:24]:24} {r.ms:8.4f} {100 * r.share:5.1f}% {rate} "
                f"{peak:>7} {r.gbytes_per_s:7.1f}"
            )
        return "\n".join(lines)


def profile_session(
    session: Session, arrays: Sequence[np.ndarray[Any, Any]], repeat: int
) -> Profile:
    """Time every step with cycle counters, `repeat` times after one warm-up."""
    session.run(arrays)
    plan = session.program.plan
    totals, runs = [], []
    for _ in range(max(1, repeat)):
        cycles: dict[int, int] = {}
        start = perf_counter()
        session.run(arrays, cycles)
        totals.append(perf_counter() - start)
        runs.append(cycles)
    peak = limits(level(plan.isa)).peak * plan.threads
    seconds = step_seconds(totals, runs)
    whole = sum(seconds.values()) or 1.0
    rows = []
    for step in plan.steps:
        if id(step) not in seconds:
            continue
        s = max(seconds[id(step)], 1e-9)
        flops = step.flops / s
        row = Row(
            name=step.name,
            op=step.op,
            kernel=step.kernel,
            kind=step.kind,
            ms=s * 1e3,
            share=s / whole,
            gflops=flops / 1e9,
            peak_share=flops / peak if step.flops else None,
            mbytes=step.nbytes / 1e6,
            gbytes_per_s=step.nbytes / s / 1e9,
            origin=step.origin,
        )
        rows.append(row)
    return Profile(plan.model, plan.threads, median(totals) * 1e3, peak / 1e9, tuple(rows))


SEEN = 0.5  # of the rate of the counter


def step_seconds(totals: Sequence[float], runs: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """The median seconds of each step, from what runs took and the cycles (negative: nanoseconds)
    of their steps.

    The first thread counts. Where it was kept from a core until the others had done the work, it
    has seen next to nothing: the counter's rate in such a run is a fraction of that in others, and
    the run is left out.
    """
    rates = []
    for total, run in zip(totals, runs, strict=True):
        python = sum(-c * 1e-9 for c in run.values() if c < 0)
        rates.append(sum(c for c in run.values() if c > 0) / max(total - python, 1e-9))
    kept = [(run, r) for run, r in zip(runs, rates, strict=True) if r >= SEEN * max(rates)]
    rate = median(r for _, r in kept) or 1.0
    return {
        step: median(run[step] / rate if run[step] > 0 else -run[step] * 1e-9 for run, _ in kept)
        for step in runs[0]
    }
