"""Images a second at a larger batch: `python -m benchmarks.batch`.

The exporter writes each model at both batches, so every engine plans for them; the two take turns.
`gain` is the throughput at the larger batch over that at batch 1, by medians; `shortest` is the
same by the shortest runs, which other processes disturb least. ncnn runs no batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import (
    ENGINES,
    bases_of,
    deliver,
    engines_of,
    engines_option,
    models_option,
    places_options,
    progress,
)
from benchmarks.measure import Effort, Result, measure
from benchmarks.places import Places
from benchmarks.report import empty_table

ABLE = [e for e in ENGINES if e != "ncnn"]


def gains(one: list[Result], many: list[Result], batch: int) -> list[dict[str, Any]]:
    """Rows by engine: images a second at batch 1 and `batch`, and their ratios."""
    rows = []
    for a, b in zip(one, many, strict=True):
        row: dict[str, Any] = {"model": a.model, "engine": a.engine, "threads": a.threads}
        if not (a.counts and b.counts) or a.median is None or b.median is None:
            rows.append(row | {"failed": a.failed or b.failed or "wrong"})
            continue
        single, batched = 1e3 / a.median, 1e3 * batch / b.median
        shortest = batch * min(a.runs) / min(b.runs)
        rows.append(
            row
            | {"one": single, "batched": batched, "gain": batched / single, "shortest": shortest}
        )
    return rows


def as_table(rows: list[dict[str, Any]], batch: int) -> Table:
    columns = ("threads", "batch 1", f"batch {batch}", "gain", "shortest")
    title = f"images a second at batch 1 and {batch}"
    out = empty_table(title, ("model", "engine"), columns)
    for r in rows:
        numbers = ["-"] * 4
        if "failed" not in r:
            numbers = [f"{r[k]:.1f}" for k in ("one", "batched")]
            numbers += [f"{r[k]:.2f}" for k in ("gain", "shortest")]
        out.add_row(r["model"], r["engine"], str(r["threads"]), *numbers)
    return out


@click.command()
@models_option("squeezenet1_1,mobilenet_v2,resnet50,vit_tiny")
@engines_option(ABLE)
@click.option("--batch", default=8, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=0.5, show_default=True, help="Length of one turn.")
@click.option("--tolerance", default=1e-3, show_default=True, help="max|error| / max|output|.")
@places_options
def main(
    models: list[str],
    engines: list[str],
    batch: int,
    threads: int,
    rounds: int,
    seconds: float,
    tolerance: float,
    places: Places,
    out: Path | None,
) -> None:
    """Throughput at a larger batch against that at batch 1."""
    singles = bases_of(models, places)
    batches = bases_of([f"{m}_b{batch}" for m in models], places)
    pythons, effort = engines_of(engines, places), Effort(rounds, seconds)
    rows: list[dict[str, Any]] = []
    with progress() as status:
        for pair in zip(singles, batches, strict=True):
            results = measure(pair, threads, pythons, effort, tolerance, status.update)
            rows += gains(results[: len(pythons)], results[len(pythons) :], batch)
    deliver(as_table(rows, batch), rows, out, batch=batch)


if __name__ == "__main__":
    main()
