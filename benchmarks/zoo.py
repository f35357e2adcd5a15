"""Many architectures with random weights against torch: `python -m benchmarks.zoo`.

Each model is compiled and run in a process of its own, with a time limit, and then timed in turns
with ONNX Runtime, one thread each. Results are merged into docs/zoo.json, and docs/zoo.md is made
of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from benchmarks._main import engines_of, require
from benchmarks._zoo_check import TOLERANCE
from benchmarks.client import Client, EngineFailed
from benchmarks.measure import OURS, Effort
from benchmarks.measure import measure as in_turns
from benchmarks.places import ROOT, Places
from benchmarks.zoo_models import Entry, entries
from benchmarks.zoo_table import markdown

EXPORT_LIMIT = 240.0
"""Seconds that the export of one model may take."""
PEER = "onnxruntime"
EFFORT = Effort(rounds=4, seconds=0.1)


class Exporter:
    """The exporting process; it is started again after a model that killed or stalled it."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self.client: Client | None = None

    def export(self, entry: Entry, base: Path) -> dict[str, Any]:
        if self.client is None:
            self.client = Client(self.python, EXPORT_LIMIT, module="benchmarks._zoo_export")
        try:
            return self.client.ask("export", key=entry.key, base=str(base))
        except EngineFailed as error:
            if self.client.ended:
                self.stop()
            return {"failed": str(error)}

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None


def child(base: Path, seconds: float) -> dict[str, Any]:
    """What `_zoo_check` says; a crash or a time-out is a result too."""
    command = [sys.executable, "-m", "benchmarks._zoo_check", str(base)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"status": "too slow", "reason": f"not done after {seconds:.0f} s"}
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        status = "crashed" if done.returncode < 0 else "failed"
        return {"status": status, "reason": f"exit code {done.returncode}: {last[:300]}"}


def times(base: Path, places: Places) -> dict[str, Any]:
    """Median times of ours and of ONNX Runtime, in turns, on one thread; or why there is none."""
    engines = engines_of([OURS, PEER], places)
    ours, peer = in_turns([base], 1, engines, EFFORT, TOLERANCE, lambda _: None)
    if ours.failed:
        return {"status": "failed", "reason": ours.failed}
    row = {"ms": ours.median, "ort_ms": peer.median, "ort_error": peer.error}
    return row | ({"ort_failed": peer.failed} if peer.failed else {})


def measure(
    entry: Entry,
    exporter: Exporter,
    places: Places,
    folder: Path,
    limit: float,
    timed: bool,
    before: dict[str, Any],
) -> dict[str, Any]:
    """One row of the table; what a kept export told is in the row `before`."""
    base = folder / entry.key.replace("/", "-")
    row: dict[str, Any] = {"name": entry.name, "family": entry.family, "source": entry.source}
    row["shape"] = entry.shapes[0]
    kept = all(base.with_suffix(s).exists() for s in (".onnx", ".npz"))
    exported = before if kept and "exporter" in before else exporter.export(entry, base)
    if "failed" in exported:
        return row | {"status": "not exported", "reason": exported["failed"]}
    row |= {"exporter": exported["exporter"], "parameters": exported["parameters"]}
    row |= child(base, limit)
    if timed and row["status"] in ("agrees", "differs"):
        row |= times(base, places)
    return row


def incomplete(row: dict[str, Any], timed: bool) -> bool:
    return row.get("status") != "agrees" or (timed and "ort_ms" not in row)


def chosen(patterns: tuple[str, ...]) -> list[Entry]:
    found = [
        e
        for e in entries()
        if not patterns or any(fnmatch(e.key, p) or e.family == p for p in patterns)
    ]
    if not found:
        raise click.ClickException(f"no model or family matches {' '.join(patterns)}")
    return found


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--list", "listing", is_flag=True, help="Print the models and do nothing.")
@click.option(
    "--missing", is_flag=True, help="Only models that do not agree yet, or are new or not timed."
)
@click.option("--limit", default=180.0, show_default=True, help="Seconds for one model.")
@click.option("--times/--no-times", "timed", default=True, help="Ours and ONNX Runtime's.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep exported models here, and use them again."
)
@click.option("--peers-python", envvar="TINSMITH_BENCH_PEERS", help="Has onnxruntime.")
@click.option("--export-python", envvar="TINSMITH_BENCH_EXPORT", help="Has torch, timm, ...")
@click.option(
    "--results", type=click.Path(path_type=Path), default=ROOT / "docs" / "zoo.json",
    help="Where rows are merged; the table lies beside it.",
)  # fmt: skip
def main(
    patterns: tuple[str, ...],
    listing: bool,
    missing: bool,
    limit: float,
    timed: bool,
    keep: Path | None,
    peers_python: str | None,
    export_python: str | None,
    results: Path,
) -> None:
    """Export, compile and compare the models that match a PATTERN ("timm/resnet*", a family)."""
    picked = chosen(patterns)
    rows: dict[str, Any] = {}
    if results.exists():
        rows = {f"{r['source']}/{r['name']}": r for r in json.loads(results.read_text())["rows"]}
    if missing:
        picked = [e for e in picked if incomplete(rows.get(e.key, {}), timed)]
    if listing:
        for e in picked:
            click.echo(f"{e.family:16} {e.key:48} {rows.get(e.key, {}).get('status', '')}")
        return
    places = Places.find(None, peers_python, export_python)
    require(places.export, "the exporter's Python")
    if timed:
        require(places.peers, "the peers' Python")
    exporter = Exporter(places.export)
    try:
        with tempfile.TemporaryDirectory(prefix="zoo-") as scratch:
            for i, entry in enumerate(picked):
                start = time.perf_counter()
                before = rows.get(entry.key, {})
                row = measure(entry, exporter, places, keep or Path(scratch), limit, timed, before)
                rows[entry.key] = row
                _save(results, rows)
                if keep is None:
                    for file in Path(scratch).iterdir():
                        file.unlink()
                seconds = time.perf_counter() - start
                shown = row.get("reason") or f"error {row.get('error', 0):.1e}"
                done = f"[{i + 1}/{len(picked)}] {entry.key}: {row['status']}"
                click.echo(f"{done}, {shown[:160]} ({seconds:.0f} s)")
    finally:
        exporter.stop()


def _save(results: Path, rows: dict[str, Any]) -> None:
    order = {e.key: i for i, e in enumerate(entries())}
    kept = sorted(rows.items(), key=lambda r: order.get(r[0], len(order)))
    text = json.dumps({"rows": [r for _, r in kept]}, indent=1)
    part = results.with_suffix(f".{os.getpid()}")
    part.write_text(text + "\n")
    part.replace(results)
    results.with_suffix(".md").write_text(markdown([r for _, r in kept]))


if __name__ == "__main__":
    main()
