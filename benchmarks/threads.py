"""What threads bring: `python -m benchmarks.threads`.

scaling     our time with one thread over that with several
line        nanoseconds that a cache line takes from core to core, before and after: the longer
neighbour   our time beside a process that keeps one of the cores busy, over the time alone; with
            several threads, and with one thread on a core of its own choice
callers     runs a second of one program of one thread, called by so many threads at once
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks import report
from benchmarks._main import bases_of, deliver, models_option, places_options, progress
from benchmarks.apart import line_ns
from benchmarks.client import Client
from benchmarks.machine import cores_for
from benchmarks.measure import OURS
from benchmarks.places import Places

BUSY = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
CALLERS = (1, 2, 4, 8)


@contextmanager
def neighbour(core: int) -> Iterator[None]:
    """A process that computes on one core."""
    process = subprocess.Popen([sys.executable, "-c", BUSY % core])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def workers(base: Path, counts: list[int], cores: list[int]) -> Iterator[dict[int, Client]]:
    """A worker of ours for each number of threads, all of them on the same cores."""
    clients: dict[int, Client] = {}
    try:
        for count in counts:
            clients[count] = Client(sys.executable)
            clients[count].ask("load", engine=OURS, base=str(base), threads=count, cpus=cores)
        yield clients
    finally:
        for client in clients.values():
            client.close()


def in_turns(clients: dict[int, Client], rounds: int, seconds: float) -> dict[int, list[float]]:
    """The ms of every run, for each number of threads."""
    times: dict[int, list[float]] = {count: [] for count in clients}
    for _ in range(rounds):
        for count, client in clients.items():
            times[count] += client.ask("run", seconds=seconds, least=3)["ms"]
    return times


def measure(base: Path, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One model's row."""
    cores = cores_for(threads)
    with workers(base, [1, threads], cores) as clients:
        lines = [line_ns(cores)]
        runs = in_turns(clients, rounds, seconds)
        lines.append(line_ns(cores))
        with neighbour(cores[0]):
            runs_beside = in_turns(clients, rounds, seconds)
        served = {
            n: clients[1].ask("serve", callers=n, seconds=seconds)["per_second"] for n in CALLERS
        }
    alone, beside = (
        {count: statistics.median(ms) for count, ms in r.items()} for r in (runs, runs_beside)
    )
    return {
        "model": base.name,
        "threads": threads,
        "one_ms": alone[1],
        "several_ms": alone[threads],
        "speedup": alone[1] / alone[threads],
        "by_shortest": min(runs[1]) / min(runs[threads]),
        "line_ns": max(lines),
        "beside_one_ms": beside[1],
        "beside_several_ms": beside[threads],
        "slowdown": beside[threads] / alone[threads],
        "runs_per_second": {str(n): rate for n, rate in served.items()},
    }


def as_table(rows: list[dict[str, Any]], threads: int) -> Table:
    numbers = [
        *("1T", f"{threads}T", "speed-up", "shortest", "line ns", "1T beside"),
        *(f"{threads}T beside", "slow-down", *(f"{n} callers" for n in CALLERS)),
    ]
    title = f"threads: 1 and {threads}; ms, and runs a second"
    out = report.empty_table(title, ["model"], numbers)
    for r in rows:
        ms = [r[k] for k in ("one_ms", "several_ms")]
        beside = [r[k] for k in ("beside_one_ms", "beside_several_ms")]
        out.add_row(
            r["model"],
            *(f"{v:.2f}" for v in ms),
            *(f"{r[k]:.2f}" for k in ("speedup", "by_shortest", "line_ns")),
            *(f"{v:.2f}" for v in beside),
            f"{r['slowdown']:.2f}",
            *(f"{v:.0f}" for v in r["runs_per_second"].values()),
        )
    return out


@click.command()
@models_option("all")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=0.5, show_default=True, help="Length of one turn.")
@places_options
def main(
    models: list[str],
    threads: int,
    rounds: int,
    seconds: float,
    places: Places,
    out: Path | None,
) -> None:
    """How our times change with threads, with a busy neighbour, and with many callers."""
    bases, rows = bases_of(models, places), []
    with progress() as status:
        for base in bases:
            status.update(base.name)
            rows.append(measure(base, threads, rounds, seconds))
    deliver(as_table(rows, threads), rows, out, rounds=rounds)
    means = [report.geometric_mean([r[k] for r in rows]) for k in ("speedup", "by_shortest")]
    click.echo("geometric mean of the speed-up: {:.2f}, by shortest {:.2f}".format(*means))


if __name__ == "__main__":
    main()
