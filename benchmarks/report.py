"""Results as a table, and as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.measure import FLOAT, HALVES, OURS, Result


def screen() -> Console:
    """A console on standard output; where nobody watches, wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def empty_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table without rows: columns of texts, then of numbers, which are aligned to the right."""
    out = Table(*texts, title=title, title_justify="left")
    for name in numbers:
        out.add_column(name, justify="right")
    return out


def best_peer(row: Sequence[Result]) -> Result | None:
    peers = [r for r in row if not r.is_ours and r.counts]
    return min(peers, key=lambda r: r.median or math.inf, default=None)


def ratio(row: Sequence[Result]) -> float | None:
    """Our time over the best peer's: below 1 we are faster. None where either is missing."""
    return _over(_ours(row), best_peer(row))


def float_ratio(row: Sequence[Result]) -> float | None:
    """Our time for a quantised model, or in bfloat16, over that for the float model."""
    return _over(_ours(row), _of(row, FLOAT))


def _ours(row: Sequence[Result]) -> Result | None:
    return _of(row, OURS) or _of(row, HALVES)


def _of(row: Sequence[Result], engine: str) -> Result | None:
    return next((r for r in row if r.engine == engine and r.counts), None)


def _over(one: Result | None, other: Result | None) -> float | None:
    if one is None or other is None or one.median is None or other.median is None:
        return None
    return one.median / other.median


def geometric_mean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def rows_of(results: Sequence[Result]) -> list[list[Result]]:
    """Grouped by (threads, model), in order of first appearance."""
    groups: dict[tuple[int, str], list[Result]] = {}
    for r in results:
        groups.setdefault((r.threads, r.model), []).append(r)
    return list(groups.values())


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for threads in dict.fromkeys(r.threads for r in results):
        rows = [row for row in rows_of(results) if row[0].threads == threads]
        ratios = [r for r in map(ratio, rows) if r is not None]
        wins = sum(r < 1 for r in ratios)
        floats = [r for r in map(float_ratio, rows) if r is not None]
        mean = geometric_mean(ratios)
        out.append(
            {"threads": threads, "models": len(rows), "compared": len(ratios), "faster": wins}
            | {"geometric_mean_ratio": mean}
            | ({"over_float32": geometric_mean(floats)} if floats else {})
        )
    return out


def _cell(r: Result | None, best: bool) -> str:
    if r is None or r.failed:
        return "[dim]-[/dim]"
    if r.wrong:
        return f"[red]wrong {r.error:.0e}[/red]"
    text = f"{r.median:.2f}" if r.median is not None else "-"
    return f"[bold]{text}[/bold]" if best else text


def table(results: Sequence[Result], threads: int) -> Table:
    """Median ms by model and engine, the best in bold; `ratio` is ours over the best peer's."""
    rows = [row for row in rows_of(results) if row[0].threads == threads]
    engines = list(dict.fromkeys(r.engine for row in rows for r in row))
    own = FLOAT in engines
    numbers = [*engines, "ratio", *(["/ float32"] if own else [])]
    out = empty_table(f"median ms, {threads} thread{'s' * (threads > 1)}", ["model"], numbers)
    for row in rows:
        by_engine = {r.engine: r for r in row}
        fastest = min((r.median for r in row if r.counts and r.median), default=None)
        cells = [_cell(by_engine.get(e), by_engine[e].median == fastest) for e in engines]
        shown = [_shown(ratio(row)), *([_shown(float_ratio(row))] if own else [])]
        out.add_row(row[0].model, *cells, *shown)
    means = next(s for s in summary(results) if s["threads"] == threads)
    found = [means["geometric_mean_ratio"], *([means.get("over_float32")] if own else [])]
    if any(found):
        out.add_section()
        cells = ["" if mean is None else f"{mean:.3f}" for mean in found]
        out.add_row("geometric mean", *[""] * len(engines), *cells)
    return out


def _shown(value: float | None) -> str:
    colour = "green" if value is not None and value < 1 else "yellow"
    return "" if value is None else f"[{colour}]{value:.2f}[/{colour}]"


def tell_failures(rows: Sequence[dict[str, Any]]) -> None:
    """Say on standard error why rows have no numbers."""
    for row in rows:
        if "failed" in row:
            click.echo(f"{row['model']}: {row['engine']}: {row['failed']}", err=True)


def as_json(
    results: Sequence[Result], machine: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "machine": machine,
        "settings": settings,
        "summary": summary(results),
        "results": [r.to_json() for r in results],
    }
