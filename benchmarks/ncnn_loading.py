"""ncnn's files, from a fresh process to the first result: `benchmarks.ncnn_loading FILES`.

Each sample is a new process, and the engines take turns. `load` of ncnn is load_param and
load_model; of Tinsmith the compilation, for which a process before has filled the store, as a first
start does: its program is mapped in the first run, so `load + run` is what compares. Weights are
drawn at random, the same for both.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import deliver, engines_of, places_options, progress, sampled
from benchmarks.measure import OURS
from benchmarks.ncnn_files import params_of, prepare
from benchmarks.places import Places
from benchmarks.startup import as_table, sample

ENGINES = [OURS, "ncnn"]


def with_shares(table: Table, rows: list[dict[str, Any]]) -> Table:
    """The table, with what ours takes from the files to the first result as a part of ncnn's."""
    ready = {(r["model"], r["engine"]): r["ready_ms"] for r in rows if "failed" not in r}
    shares = [
        ours / ready[model, "ncnn"]
        for (model, engine), ours in ready.items()
        if engine == OURS and (model, "ncnn") in ready
    ]
    if shares:
        mean = statistics.geometric_mean(shares)
        table.caption = f"load + run, ours / ncnn: mean {mean:.2f}, most {max(shares):.2f}"
    return table


@click.command()
@click.argument("files", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--models", help="Only these, separated by commas.")
@click.option("--threads", default=1, show_default=True)
@click.option("--times", default=5, show_default=True, help="Fresh processes per engine.")
@places_options
def main(
    files: Path, models: str | None, threads: int, times: int, places: Places, out: Path | None
) -> None:
    """Time from a fresh process to the first result, of Tinsmith and ncnn, for the .param files of
    FILES."""
    folder = places.models.resolve() / "ncnn"
    folder.mkdir(parents=True, exist_ok=True)
    pythons = engines_of(ENGINES, places)
    rows: list[dict[str, Any]] = []
    with progress() as status:
        for param in params_of(files, models):
            status.update(param.stem)
            rows += sampled(sample, prepare(param, folder), pythons, times, threads)
    deliver(with_shares(as_table(rows), rows), rows, out, times=times)


if __name__ == "__main__":
    main()
