"""Measures the time of each step of a program, and compares it with the machine's peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from statistics import median
from textwrap import fill
from time import perf_counter
from typing import Any

import numpy as np

from tinsmith.codegen.target import level
from tinsmith.plan.plan import Step
from tinsmith.records import dataclass
from tinsmith.runtime.later import Cycles, LaterStep
from tinsmith.runtime.limits import peak
from tinsmith.runtime.program import FREE, Program
from tinsmith.runtime.session import Session


@dataclass(frozen=True)
class Row:
    """One step: median milliseconds `ms`, its `share` (0 to 1) of all steps' time, the rates of its
    arithmetic and memory traffic, and the megabytes that it reads and writes; the rest as in
    `plan.Step`. `gflops`: thousand millions of operations a second, also of integers; `peak_share`:
    over `Profile.peaks` of its `row`; None if the step has no arithmetic. Rates and bytes are None
    if a program for free sizes ran at others than its plan's.
    """

    name: str
    op: str
    kernel: str
    kind: str
    ms: float
    share: float
    gflops: float | None
    peak_share: float | None
    mbytes: float | None
    gbytes_per_s: float | None
    origin: str
    row: str = "float32"


@dataclass(frozen=True)
class Profile:
    """The result of `Net.profile`: a row for each step that took time, in order; `str` gives a
    table. `total_ms`: the median of whole runs, with Python's work around the steps; `peak_gflops`:
    of float32, of all threads together, and `peaks` likewise, by `Row.row`; `program`: see
    `Program.which`."""

    model: str
    threads: int
    total_ms: float
    peak_gflops: float
    rows: tuple[Row, ...]
    program: str = "fixed"
    peaks: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def steps_ms(self) -> float:
        """The sum of all rows' `ms`."""
        return sum(r.ms for r in self.rows)

    @property
    def reference_share(self) -> float:
        """The share, 0 to 1, of all steps' time that reference steps take."""
        return sum(r.share for r in self.rows if r.kernel == "reference")

    def __str__(self) -> str:
        return self.text(80)

    def text(self, width: int | None = None) -> str:
        """Return the table, at most `width` columns wide (None: no limit). Names that are too long
        lose their beginnings."""
        unit, numbers = self._numbers()
        kernels = max(len(name) for name in ("kernel", *(r.kernel for r in self.rows)))
        names = max(len(name) for name in ("step", *(r.name for r in self.rows)))
        if width is not None:
            room = width - NUMBERS_WIDTH
            kernels = min(kernels, room - min(names, room // 2))
            names = min(names, room - kernels)
        lines = [
            f"{_end(name, names):{names}} {_end(kernel, kernels):{kernels}} "
            f"{time:>8} {share:>6} {rate:>7} {peak:>7} {memory:>6}"
            for name, kernel, (time, share, rate, peak, memory) in (
                ("step", "kernel", (unit, *COLUMNS)),
                *((r.name, r.kernel, row) for r, row in zip(self.rows, numbers, strict=True)),
            )
        ]
        return "\n".join([self._head if width is None else fill(self._head, width), *lines])

    def _repr_html_(self) -> str:
        from tinsmith.html import table

        unit, numbers = self._numbers()
        rows = [(r.name, r.kernel, *row) for r, row in zip(self.rows, numbers, strict=True)]
        return table(self._head, ["step", "kernel", unit, *COLUMNS], rows, left=["kernel"])

    @property
    def _head(self) -> str:
        peaks = {"float32": self.peak_gflops} | self.peaks
        return (
            f"{self.model}, {self.threads} thread{'s' * (self.threads > 1)}"
            f"{', the program for free sizes' * (self.program == FREE)}: "
            f"{self.total_ms:.4f} ms a call, {self.steps_ms:.4f} ms in steps, "
            f"peak {', '.join(f'{most:.0f} ({row})' for row, most in peaks.items())} Gop/s"
        )

    def _numbers(self) -> tuple[str, list[tuple[str, str, str, str, str]]]:
        """Return the unit of times, "us" or "ms", and each row's time and COLUMNS as text."""
        unit, factor = ("us", 1e3) if all(r.ms < 0.1 for r in self.rows) else ("ms", 1)
        return unit, [
            (
                f"{r.ms * factor:.4f}"[:8],
                f"{100 * r.share:.1f}%",
                f"{r.gflops:.1f}" if r.gflops else "",
                "" if r.peak_share is None else f"{100 * r.peak_share:.0f}%",
                "" if r.gbytes_per_s is None else f"{r.gbytes_per_s:.1f}",
            )
            for r in self.rows
        ]


COLUMNS = ("share", "Gop/s", "of peak", "GB/s")
NUMBERS_WIDTH = 41  # characters of the columns after the names, with the space between them


def _end(name: str, width: int) -> str:
    """Return a name; of a longer one than `width` characters "…" and its end, which says more."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def profile_session(
    session: Session, arrays: Sequence[np.ndarray[Any, Any]], repeat: int
) -> Profile:
    """Time every step in `repeat` runs on `arrays` after a warm-up, or in more, until LONG seconds
    have passed: over all of them the rate of the cycle counter is measured."""
    warm = Cycles()
    session.run(arrays, warm)
    began = perf_counter()
    marks = [(warm.counter, began)]
    plan = session.program.plan
    totals: list[float] = []
    runs: list[Cycles] = []
    while len(runs) < max(1, repeat) or perf_counter() - began < LONG:
        cycles = Cycles()
        start = perf_counter()
        session.run_checked(arrays, cycles)
        end = perf_counter()
        totals.append(end - start)
        marks.append((cycles.counter, end))
        runs.append(cycles)
    rate = _rate(marks) or 1.0
    seconds = step_seconds(totals, runs, rate)
    whole = sum(seconds.values()) or 1.0
    steps = [(s, known) for s, known in _steps(session.program, runs[-1]) if id(s) in seconds]
    used = dict.fromkeys(["float32", *(s.row for s, _ in steps if s.flops)])
    peaks = {name: peak(level(plan.isa), plan.threads, name) / 1e9 for name in used}
    rows = []
    for step, is_counted in steps:
        s = max(seconds[id(step)], 1e-9)
        gflops = step.flops / s / 1e9
        row = Row(
            name=step.name,
            op=step.op,
            kernel=step.kernel,
            kind=step.kind,
            ms=s * 1e3,
            share=s / whole,
            gflops=gflops if is_counted else None,
            peak_share=gflops / peaks[step.row] if is_counted and step.flops else None,
            mbytes=step.nbytes / 1e6 if is_counted else None,
            gbytes_per_s=step.nbytes / s / 1e9 if is_counted else None,
            origin=step.origin,
            row=step.row,
        )
        rows.append(row)
    ms, which = median(totals) * 1e3, session.program.which
    return Profile(plan.model, plan.threads, ms, peaks["float32"], tuple(rows), which, peaks)


def _rate(marks: Sequence[tuple[int, float]]) -> float:
    """Return the counter's cycles per second, from pairs (counter, seconds) in order: the median of
    the slopes from each pair of the first half to one of the second. So a few pairs, between whose
    two readings the process lost its core, do not matter."""
    half = len(marks) // 2
    pairs = zip(marks[:half], marks[-half:], strict=True)
    return median([(c - counter) / max(t - at, 1e-9) for (counter, at), (c, t) in pairs])


def _steps(program: Program, seen: Cycles) -> Iterator[tuple[Step, bool]]:
    """Yield the steps of a program in order, each with whether its flops and bytes are those of the
    sizes that have run; after a `LaterStep` the steps of the program that it ran, as `seen` tells.
    """
    is_counted = program.is_planned
    for step in program.plan.steps:
        yield step, is_counted
        op = program.nodes[step.name][0] if step.kind == "reference" else None
        if isinstance(op, LaterStep) and op in seen.later:
            yield from _steps(seen.later[op], seen)


LONG = 5e-3
"""Seconds over which the counter's rate is measured at least. Estimated."""
SEEN, QUANTILE = 0.5, 0.75
"""A run counts, as not interrupted, if the share of its time that its steps take is at least SEEN
times that of the run at QUANTILE, in the order of shares. Estimated."""


def step_seconds(
    totals: Sequence[float], runs: Sequence[Mapping[int, int]], rate: float
) -> dict[int, float]:
    """Return id of a step -> the median of its seconds over the runs.

    totals  seconds of each whole run
    runs    for each run: id of a step -> cycles, or, if negative, nanoseconds (of references)
    rate    cycles per second of the counter

    The cycles of a run are those of the thread that was running for most of it. If all threads were
    descheduled for a part of a run, its cycles are too few for its time: that run is left out.
    """
    shares = []
    for total, run in zip(totals, runs, strict=True):
        python = sum(-c * 1e-9 for c in run.values() if c < 0)
        shares.append(sum(c for c in run.values() if c > 0) / rate / max(total - python, 1e-9))
    least = SEEN * sorted(shares)[int(QUANTILE * (len(shares) - 1))]
    kept = [run for run, share in zip(runs, shares, strict=True) if share >= least]
    return {
        step: median(
            run[step] / rate if run[step] > 0 else -run[step] * 1e-9 for run in kept if step in run
        )
        for step in dict.fromkeys(step for run in kept for step in run)
    }
