"""Repeats one prepared kernel from machine code, so that a row of a few microseconds shows the
kernel and not the call into it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from tests.kernels.harness import Bench
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import Target

SHORTEST = 100e-6  # seconds between two looks at the clock, where one run takes less


def least(bench: Bench, target: Target, seconds: float) -> float:
    """The least processor time of one run, in seconds, of batches over `seconds`."""
    run = repeated(bench, target)
    run(1)
    times = max(1, int(SHORTEST / max(1e-9, _timed(run, 1))))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, _timed(run, times) or best)  # the clock of a thread may stand still
    return best


def _timed(run: Callable[[int], None], times: int) -> float:
    """Processor time of one of `times` runs, without what another process takes of the core."""
    start = time.thread_time()
    run(times)
    return (time.thread_time() - start) / times


def repeated(bench: Bench, target: Target) -> Callable[[int], None]:
    """A function that runs all phases of the kernel n times."""
    loaded = load_library({"repeated": _text(bench)}, target)
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(loaded.address("repeated"))
    return lambda n, keep=(loaded, bench): call(n)  # type: ignore[misc]


def _text(bench: Bench) -> str:
    """Nested loops over runs and steps, with the addresses of this bench as constants."""
    lines = ["define void @repeated(i64 %n) {", "start:", "  br label %run", "run:"]
    lines.append("  %i = phi i64 [ 0, %start ], [ %next, %done ]")
    lines.append("  br label %phase0")
    phases = list(zip(bench.functions, bench.choice.phases, strict=True))
    before = "run"
    for k, ((function, pointers, tiles), phase) in enumerate(phases):
        address = ctypes.cast(function, ctypes.c_void_p).value
        arguments = [f"ptr inttoptr (i64 {p} to ptr)" for p in pointers]
        arguments += ["i64 0", f"i64 {tiles}"] + ([f"i64 %s{k}"] if phase.repeat > 1 else [])
        lines += [
            f"phase{k}:",
            f"  %s{k} = phi i64 [ 0, %{before} ], [ %t{k}, %phase{k} ]",
            f"  call void inttoptr (i64 {address} to ptr)({', '.join(arguments)})",
            f"  %t{k} = add i64 %s{k}, 1",
            f"  %c{k} = icmp slt i64 %t{k}, {phase.repeat}",
            f"  br i1 %c{k}, label %phase{k}, label %{_after(k, len(phases))}",
        ]
        before = f"phase{k}"
    lines += ["done:", "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %n"]
    lines += ["  br i1 %more, label %run, label %end", "end:", "  ret void", "}"]
    return "\n".join(lines) + "\n"


def _after(k: int, phases: int) -> str:
    return f"phase{k + 1}" if k + 1 < phases else "done"
