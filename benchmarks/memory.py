"""The most memory that a process takes up to its first result: `python -m benchmarks.memory`.

Every sample is a new process that imports one engine, loads one model and runs it once.
`tinsmith` finds its compiled program in the cache, `tinsmith cold` compiles it, `tinsmith small`
is compiled with memory="small" and found in the cache. `bare` is Python with numpy and the input.
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

OURS: dict[str, dict[str, Any]] = {
    "tinsmith": {},
    "tinsmith small": {"memory": "small"},
    COLD: {},
}
WAYS = [*OURS, *(e for e in ENGINES if e != "tinsmith")]


def sample(way: str, python: str | Path, base: Path, threads: int) -> dict[str, float]:
    """Peak and bare MiB of one fresh process. Raises EngineFailed."""
    found = fresh(way, python, base, threads, **OURS.get(way, {}))
    return {"peak_mb": found["peak_mb"], "bare_mb": found["bare_mb"]}


def smallest_peer(rows: list[dict[str, Any]]) -> float | None:
    peers = [r["peak_mb"] for r in rows if r["engine"] not in OURS and "failed" not in r]
    return min(peers, default=None)


def as_table(rows: list[dict[str, Any]], ways: list[str]) -> Table:
    out = empty_table("peak resident MiB", ["model"], ("bare", *ways, "ratio"))
    for model in dict.fromkeys(r["model"] for r in rows):
        mine = {r["engine"]: r for r in rows if r["model"] == model}
        cells = ["-" if "failed" in mine[w] else f"{mine[w]['peak_mb']:.0f}" for w in ways]
        bare = [r["bare_mb"] for r in mine.values() if "bare_mb" in r]
        best, ours = smallest_peer(list(mine.values())), mine.get("tinsmith", {}).get("peak_mb")
        ratio = f"{ours / best:.2f}" if best and ours else ""
        out.add_row(model, f"{min(bare, default=0):.0f}", *cells, ratio)
    return out


@click.command()
@models_option("squeezenet1_1,mobilenet_v2,resnet50,vit_tiny")
@engines_option(WAYS)
@click.option("--threads", default=1, show_default=True)
@click.option("--times", default=3, show_default=True, help="Fresh processes per engine.")
@places_options
def main(engines: list[str], times: int, out: Path | None, **where: Any) -> None:
    """Peak memory of a fresh process of every engine, up to its first result."""
    rows = all_sampled(sample, engines=engines, times=times, **where)
    deliver(as_table(rows, engines), rows, out, times=times)


if __name__ == "__main__":
    main()
