"""Every engine on every model of the panel, side by side: `python -m benchmarks.panel`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import machine, report
from benchmarks.measure import OURS, Effort, Result, measure
from benchmarks.models import MODELS, OTHERS, PANEL, complete
from benchmarks.places import ROOT, Places

ENGINES = [OURS, "ncnn", "mnn", "onnxruntime", "openvino"]


class Names(click.ParamType):
    """A comma-separated list, each item one of the known names where they are given."""

    name = "LIST"

    def __init__(self, known: list[str]) -> None:
        self.known = known

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        items = value.split(",") if isinstance(value, str) else list(value)
        if unknown := [i for i in items if i not in self.known]:
            known = ", ".join(self.known)
            self.fail(f"no such name: {', '.join(unknown)}; known are {known}", param, ctx)
        return items


def ensure_models(names: list[str], places: Places) -> None:
    """Export what is missing, with the exporter's Python."""
    missing = [n for n in names if not complete(n, places.models)]
    if not missing:
        return
    require(places.export, "the exporter's Python")
    command = [str(places.export), "-m", "benchmarks.models", str(places.models.resolve())]
    subprocess.run([*command, *missing], cwd=ROOT, check=True, stdout=sys.stderr)


def require(python: Path, what: str) -> None:
    if not python.exists():
        raise click.ClickException(
            f"{what} is not at {python}; `python -m benchmarks.setup` makes it, or name another"
        )


def engines_of(names: list[str], places: Places) -> dict[str, str | Path]:
    """Engine -> the Python that runs it."""
    if any(n != OURS for n in names):
        require(places.peers, "the peers' Python")
    return {n: sys.executable if n == OURS else places.peers for n in names}


def places_options(command: Any) -> Any:
    """The options that both the panel and the start-up benchmark take."""
    for option in (
        click.option("--models-dir", envvar="TINSMITH_BENCH_MODELS", help="Where the models are."),
        click.option("--peers-python", envvar="TINSMITH_BENCH_PEERS", help="Runs the peers."),
        click.option("--export-python", envvar="TINSMITH_BENCH_EXPORT", help="Writes the models."),
        click.option("--json", "out", type=click.Path(path_type=Path), help="Write all data here."),
    ):
        command = option(command)
    return command


@click.command()
@click.option("--models", type=Names(list(MODELS)), help="The panel where nothing is named.")
@click.option("--others", is_flag=True, help="Architectures beyond the panel instead.")
@click.option("--threads", type=Names([str(i) for i in range(1, 257)]), default="1,2")
@click.option("--engines", type=Names(ENGINES), default=",".join(ENGINES), show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Turns of every engine.")
@click.option("--seconds", default=0.5, show_default=True, help="Length of one turn.")
@click.option("--tolerance", default=1e-3, show_default=True, help="max|error| / max|output|.")
@places_options
def main(
    models: list[str] | None,
    others: bool,
    threads: list[str],
    engines: list[str],
    rounds: int,
    seconds: float,
    tolerance: float,
    models_dir: str | None,
    peers_python: str | None,
    export_python: str | None,
    out: Path | None,
) -> None:
    """Median times of Tinsmith and its peers, in fp32 at batch 1, with every output checked.

    Exits with 1 where our own output is wrong or missing.
    """
    places = Places.find(models_dir, peers_python, export_python)
    models = models or list(OTHERS if others else PANEL)
    ensure_models(models, places)
    pythons, effort = engines_of(engines, places), Effort(rounds, seconds)
    described, started = machine.describe(), time.strftime("%Y-%m-%d %H:%M")
    console, progress = report.screen(), Console(stderr=True)
    results: list[Result] = []
    settings: dict[str, Any] = {"date": started, "rounds": rounds, "seconds": seconds}
    with progress.status("starting") as status:
        for count in map(int, threads):
            for name in models:
                base = places.models.resolve() / name
                row = measure(base, count, pythons, effort, tolerance, status.update)
                results += row
                _tell(row, progress)
                if out:
                    document = report.as_json(results, described, settings)
                    out.write_text(json.dumps(document, indent=1) + "\n")
    for count in map(int, threads):
        console.print(report.table(results, count))
    where = f"{described['cpu']}, {described['cores']} cores, "
    where += f"{described['peak_gflops']:.0f} GFLOP/s each"
    console.print(f"{where}; {_versions(results)}", soft_wrap=True)
    if any(r.engine == OURS and not r.counts for r in results):
        sys.exit(1)


def _tell(row: list[Result], console: Console) -> None:
    parts = []
    for r in row:
        if r.failed:
            parts.append(f"{r.engine} failed")
            console.print(f"  {r.model}: {r.engine}: {r.failed}", markup=False, style="dim")
        else:
            parts.append(f"{r.engine} {r.median:.2f}{' WRONG' * r.wrong}")
    console.print(f"{row[0].model} {row[0].threads}T: {', '.join(parts)}", markup=False)


def _versions(results: list[Result]) -> str:
    known = {r.engine: r.version for r in results if r.version}
    return ", ".join(f"{engine} {version}" for engine, version in known.items())


if __name__ == "__main__":
    main()
