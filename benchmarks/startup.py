"""From a fresh process to the first result: `python -m benchmarks.startup`.

Each sample is a new process. `process` is from its start to the first result, the interpreter and
numpy included; `import`, `load` and `first run` are its parts. Engines that cache what they
compile are measured with a warm cache, by an extra process that is not counted.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine, report
from benchmarks.client import Client, EngineFailed
from benchmarks.models import PANEL
from benchmarks.panel import ENGINES, Names, engines_of, ensure_models, places_options
from benchmarks.places import Places

PARTS = ("import_ms", "load_ms", "first_ms")


def sample(engine: str, python: str | Path, base: Path, threads: int) -> dict[str, float]:
    """One fresh process. Raises EngineFailed."""
    start = time.perf_counter()
    client = Client(python)
    try:
        answer = client.ask("load", engine=engine, base=str(base), threads=threads, cpus=[])
        whole = (time.perf_counter() - start) * 1e3
    finally:
        client.close()
    ready = answer["load_ms"] + answer["first_ms"]
    return {part: answer[part] for part in PARTS} | {"ready_ms": ready, "process_ms": whole}


def samples(
    engine: str, python: str | Path, base: Path, threads: int, times: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"model": base.name, "engine": engine, "threads": threads}
    try:
        sample(engine, python, base, threads)
        taken = [sample(engine, python, base, threads) for _ in range(times)]
    except EngineFailed as error:
        return row | {"failed": str(error)}
    return row | {key: statistics.median(t[key] for t in taken) for key in taken[0]}


def as_table(rows: list[dict[str, Any]]) -> Table:
    columns = {
        "import": "import_ms",
        "load": "load_ms",
        "first run": "first_ms",
        "load + run": "ready_ms",
        "process": "process_ms",
    }
    out = Table(title="start-up, median ms", title_justify="left")
    out.add_column("model")
    out.add_column("engine")
    for name in columns:
        out.add_column(name, justify="right")
    for row in rows:
        cells = ["-" if "failed" in row else f"{row[key]:.1f}" for key in columns.values()]
        out.add_row(row["model"], row["engine"], *cells)
    return out


@click.command()
@click.option(
    "--models",
    type=Names(list(PANEL)),
    default="squeezenet1_1,mobilenet_v2,resnet50",
    show_default=True,
)
@click.option("--engines", type=Names(ENGINES), default=",".join(ENGINES), show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--times", default=5, show_default=True, help="Fresh processes per engine.")
@places_options
def main(
    models: list[str],
    engines: list[str],
    threads: int,
    times: int,
    models_dir: str | None,
    peers_python: str | None,
    export_python: str | None,
    out: Path | None,
) -> None:
    """Time from a fresh process to the first result, for every engine."""
    places = Places.find(models_dir, peers_python, export_python)
    ensure_models(models, places)
    pythons = engines_of(engines, places)
    rows: list[dict[str, Any]] = []
    with Console(stderr=True).status("starting") as status:
        for name in models:
            for engine, python in pythons.items():
                status.update(f"{name}: {engine}")
                rows.append(samples(engine, python, places.models.resolve() / name, threads, times))
    report.screen().print(as_table(rows))
    report.tell_failures(rows)
    if out:
        document = {"machine": machine.describe(), "times": times, "results": rows}
        out.write_text(json.dumps(document, indent=1) + "\n")
    if any("failed" in row and row["engine"] == "tinsmith" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
