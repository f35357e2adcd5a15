"""From a fresh process to the first result: `python -m benchmarks.startup`.

Each sample is a new process. `process` is from its start to the first result, the interpreter and
numpy included; `import`, `load` and `first run` are its parts. Engines that cache what they
compile are measured with a warm cache, by an extra process that is not counted; `tinsmith cold`
finds nothing in its cache, and compiles on all cores.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import (
    COLD,
    ENGINES,
    bases_of,
    deliver,
    engines_of,
    engines_option,
    environment,
    models_option,
    places_options,
    progress,
)
from benchmarks.client import Client, medians
from benchmarks.places import Places

WAYS = [ENGINES[0], COLD, *ENGINES[1:]]
PARTS = ("import_ms", "load_ms", "first_ms")


def sample(way: str, python: str | Path, base: Path, threads: int) -> dict[str, float]:
    """One fresh process. Raises EngineFailed."""
    engine = way.split()[0]
    with environment(way) as env:
        start = time.perf_counter()
        client = Client(python, env=env)
        try:
            answer = client.ask("load", engine=engine, base=str(base), threads=threads, cpus=[])
            whole = (time.perf_counter() - start) * 1e3
        finally:
            client.close()
    ready = answer["load_ms"] + answer["first_ms"]
    return {part: answer[part] for part in PARTS} | {"ready_ms": ready, "process_ms": whole}


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
@models_option("squeezenet1_1,mobilenet_v2,resnet50")
@engines_option(WAYS)
@click.option("--threads", default=1, show_default=True)
@click.option("--times", default=5, show_default=True, help="Fresh processes per engine.")
@places_options
def main(
    models: list[str],
    engines: list[str],
    threads: int,
    times: int,
    places: Places,
    out: Path | None,
) -> None:
    """Time from a fresh process to the first result, for every engine."""
    bases, pythons = bases_of(models, places), engines_of(engines, places)
    rows: list[dict[str, Any]] = []
    with progress() as status:
        for base in bases:
            for engine, python in pythons.items():
                status.update(f"{base.name}: {engine}")
                row = {"model": base.name, "engine": engine, "threads": threads}
                once = partial(sample, engine, python, base, threads)
                rows.append(row | medians(once, times, warm=engine != COLD))
    deliver(as_table(rows), rows, out, times=times)


if __name__ == "__main__":
    main()
