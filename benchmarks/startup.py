"""From a fresh process to the first result: `python -m benchmarks.startup`.

Each sample is a new process. `process` is from its start to the first result, the interpreter and
numpy included; `import`, `load` and `first run` are its parts. Engines that cache what they
compile are measured with a warm cache, by an extra process that is not counted; `tinsmith cold`
finds nothing in its cache, and compiles on all cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import (
    COLD,
    ENGINES,
    all_sampled,
    deliver,
    engines_option,
    fresh,
    models_option,
    places_options,
)
from benchmarks.report import empty_table

WAYS = [ENGINES[0], COLD, *ENGINES[1:]]
PARTS = ("import_ms", "load_ms", "first_ms", "process_ms")


def sample(way: str, python: str | Path, base: Path, threads: int) -> dict[str, float]:
    """One fresh process. Raises EngineFailed."""
    found = fresh(way, python, base, threads)
    ready = found["load_ms"] + found["first_ms"]
    return {part: found[part] for part in PARTS} | {"ready_ms": ready}


def as_table(rows: list[dict[str, Any]]) -> Table:
    columns = {
        "import": "import_ms",
        "load": "load_ms",
        "first run": "first_ms",
        "load + run": "ready_ms",
        "process": "process_ms",
    }
    out = empty_table("start-up, median ms", ("model", "engine"), list(columns))
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
def main(times: int, out: Path | None, **where: Any) -> None:
    """Time from a fresh process to the first result, for every engine."""
    rows = all_sampled(sample, times=times, **where)
    deliver(as_table(rows), rows, out, times=times)


if __name__ == "__main__":
    main()
