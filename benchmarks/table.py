"""Results as a table in a page: `python -m benchmarks.table panel.json README.md`.

Replaces what stands between the page's two `<!-- panel -->` lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.measure import OURS

MARK = "<!-- panel -->"


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
    machine = data["machine"]
    versions = {r["engine"]: r["version"] for r in data["results"] if r.get("version")}
    text = ", ".join(f"{e} {v}" for e, v in versions.items())
    lines += [
        "",
        f"Median milliseconds on one machine ({machine['cpu']}, {machine['cores']} cores, measured "
        f"peak {machine['peak_gflops']:.0f} GFLOP/s a core); {text}; "
        f"{data['settings']['date'][:10]}.",
    ]
    return "\n".join(lines)


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.argument("page", type=click.Path(exists=True, dir_okay=False))
def main(data: str, page: str) -> None:
    """Put the table of DATA between the marks in PAGE."""
    path = Path(page)
    before, _, rest = path.read_text().partition(MARK)
    _, found, after = rest.partition(MARK)
    if not found:
        raise click.ClickException(f"{page} has no two lines {MARK!r}")
    text = table(json.loads(Path(data).read_text()))
    path.write_text(f"{before}{MARK}\n{text}\n{MARK}{after}")


if __name__ == "__main__":
    main()
