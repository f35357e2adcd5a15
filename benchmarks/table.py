"""Results as a table in a page: `python -m benchmarks.table panel.json docs/speed.md`.

Takes what panel, startup, memory, threads and batch wrote, and replaces what stands between the
page's two `<!-- panel -->`, `<!-- startup -->`, ... lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.measure import OURS

BY_ENGINE = {"startup": "process_ms", "memory": "peak_mb"}
"""Which of a row's numbers the table of a model for each engine shows."""
BY_NUMBER = {
    "threads": {
        "1 T": "one_ms", "2 T": "several_ms", "speed-up": "speedup",
        "by shortest": "by_shortest", "ns a line": "line_ns",
        "1 T beside a busy process": "beside_one_ms", "2 T beside it": "beside_several_ms",
    },
    "batch": {"batch 1": "one", "batch 8": "batched", "gain": "gain", "by shortest": "shortest"},
}  # fmt: skip
"""The columns of a table of our own numbers."""


def rows_of(data: dict[str, Any]) -> dict[str, dict[int, dict[str, float]]]:
    """model -> threads -> engine -> median ms, of what ran and was right."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for r in data["results"]:
        if not r["failed"] and not r["wrong"] and r["runs"]:
            times = found.setdefault(r["model"], {}).setdefault(r["threads"], {})
            times[r["engine"]] = r["median_ms"]
    return found


def cells(times: dict[str, float]) -> list[str]:
    """Our time, the best peer's with its name, and the ratio."""
    peers = {e: t for e, t in times.items() if e != OURS}
    best = min(peers, key=peers.__getitem__)
    return [
        f"{times[OURS]:.2f}",
        f"{peers[best]:.2f} {best}",
        f"**{times[OURS] / peers[best]:.2f}**",
    ]


def table(data: dict[str, Any]) -> str:
    """The Markdown table, with the machine and the geometric means."""
    found = rows_of(data)
    counts = sorted({t for by in found.values() for t in by})
    head = ["model"] + [f"{what}, {t} T" for t in counts for what in (OURS, "best peer", "ratio")]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for model, by in found.items():
        row = [model] + [c for t in counts for c in cells(by[t])]
        lines.append("| " + " | ".join(row) + " |")
    means = [s for t in counts for s in data["summary"] if s["threads"] == t]
    row = ["**geometric mean**"]
    for s in means:
        row += ["", "", f"**{s['geometric_mean_ratio']:.3f}**"]
    lines.append("| " + " | ".join(row) + " |")
    versions = {r["engine"]: r["version"] for r in data["results"] if r.get("version")}
    text = ", ".join(f"{e} {v}" for e, v in versions.items())
    lines += [
        "",
        f"Median milliseconds on {_machine(data)}; {text}; {data['settings']['date'][:10]}.",
    ]
    return "\n".join(lines)


def _machine(data: dict[str, Any]) -> str:
    machine = data["machine"]
    return (
        f"one machine ({machine['cpu']}, {machine['cores']} cores, measured peak "
        f"{machine['peak_gflops']:.0f} GFLOP/s a core)"
    )


def kind_of(data: dict[str, Any]) -> str:
    """Which benchmark wrote it."""
    keys = data["results"][0].keys() if data["results"] else set()
    for kind, key in BY_ENGINE.items():
        if key in keys:
            return kind
    for kind, columns in BY_NUMBER.items():
        if keys >= set(columns.values()):
            return kind
    return "panel"


def table_of(kind: str, data: dict[str, Any]) -> str:
    """The Markdown table of any benchmark."""
    if kind == "panel":
        return table(data)
    rows = [r for r in data["results"] if "failed" not in r]
    cells: dict[str, dict[str, float]] = {}
    for r in rows:
        found = cells.setdefault(r["model"], {})
        if kind in BY_ENGINE:
            found[r["engine"]] = r[BY_ENGINE[kind]]
        elif r.get("engine", OURS) == OURS:
            found.update((head, r[key]) for head, key in BY_NUMBER[kind].items())
    heads = list(dict.fromkeys(h for found in cells.values() for h in found))
    lines = ["| " + " | ".join(["model", *heads]) + " |", "|---" + "|--:" * len(heads) + "|"]
    for model, found in cells.items():
        shown = [_number(found[h]) if h in found else "-" for h in heads]
        lines.append("| " + " | ".join([model, *shown]) + " |")
    return "\n".join([*lines, "", f"On {_machine(data)}."])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.argument("page", type=click.Path(exists=True, dir_okay=False))
def main(data: str, page: str) -> None:
    """Put the table of DATA between the marks in PAGE."""
    path, results = Path(page), json.loads(Path(data).read_text())
    kind = kind_of(results)
    mark = f"<!-- {kind} -->"
    before, _, rest = path.read_text().partition(mark)
    _, found, after = rest.partition(mark)
    if not found:
        raise click.ClickException(f"{page} has no two lines {mark!r}")
    path.write_text(f"{before}{mark}\n{table_of(kind, results)}\n{mark}{after}")


if __name__ == "__main__":
    main()
