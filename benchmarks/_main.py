"""What the commands share: options, the engines and models that they find, telling results."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

from benchmarks import machine, report
from benchmarks._arrays import beside
from benchmarks.client import Client, in_turns, medians
from benchmarks.measure import OURS
from benchmarks.models import PANEL, complete
from benchmarks.places import ROOT, Places

ENGINES = [OURS, "ncnn", "mnn", "onnxruntime", "openvino"]
COLD = f"{OURS} cold"
"""Not an engine of its own but a way to run ours: with no compiled program in the cache."""


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


json_option = click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Write all data here."
)


def models_option(default: str) -> Callable[[Any], Any]:
    """Models of the panel: some by default, by their names, or "all"."""
    names = ",".join(PANEL) if default == "all" else default
    shown = "all" if default == "all" else True
    return click.option("--models", type=Names(list(PANEL)), default=names, show_default=shown)


def engines_option(known: list[str]) -> Callable[[Any], Any]:
    return click.option("--engines", type=Names(known), default=",".join(known), show_default=True)


def places_options(command: Any) -> Any:
    """Gives the command `places`, by options and variables, and `out`, the file of --json."""

    @json_option
    @click.option("--export-python", envvar="TINSMITH_BENCH_EXPORT", help="Writes the models.")
    @click.option("--peers-python", envvar="TINSMITH_BENCH_PEERS", help="Runs the peers.")
    @click.option("--models-dir", envvar="TINSMITH_BENCH_MODELS", help="Where the models are.")
    @functools.wraps(command)
    def placed(
        models_dir: str | None, peers_python: str | None, export_python: str | None, **rest: Any
    ) -> None:
        command(places=Places.find(models_dir, peers_python, export_python), **rest)

    return placed


def require(python: Path, what: str) -> None:
    if not python.exists():
        raise click.ClickException(
            f"{what} is not at {python}; `python -m benchmarks.setup` makes it, or name another"
        )


def bases_of(names: list[str], places: Places) -> list[Path]:
    """The models' files without their suffixes; the exporter's Python writes what is missing."""
    if missing := [n for n in names if not complete(n, places.models)]:
        require(places.export, "the exporter's Python")
        command = [str(places.export), "-m", "benchmarks.models", str(places.models.resolve())]
        subprocess.run([*command, *missing], cwd=ROOT, check=True, stdout=sys.stderr)
    return [places.models.resolve() / n for n in names]


def quantised_bases(names: list[str], places: Places) -> list[Path]:
    """The files of quantised models, NAME.u8s8 or NAME.dyn: what of these there is."""
    found: list[Path] = []
    for name in names:
        bases = [places.models.resolve() / f"{name}.{kind}" for kind in ("u8s8", "dyn")]
        there = [b for b in bases if all(beside(b, s).exists() for s in (".onnx", ".npz"))]
        if not there:
            raise click.ClickException(
                f"there is neither {name}.u8s8.onnx nor {name}.dyn.onnx with its .npz in "
                f"{places.models}; quantise {name}.onnx to it"
            )
        found += there
    return found


def engines_of(names: list[str], places: Places) -> dict[str, str | Path]:
    """Engine, or way to run ours ("tinsmith cold") -> the Python that runs it."""
    ours = {n for n in names if n.split()[0] == OURS}
    if ours != set(names):
        require(places.peers, "the peers' Python")
    return {n: sys.executable if n in ours else places.peers for n in names}


@contextlib.contextmanager
def environment(way: str) -> Iterator[dict[str, str]]:
    """What a worker's environment gets: for COLD an empty cache."""
    if way != COLD:
        yield {}
        return
    with tempfile.TemporaryDirectory() as empty:
        yield {"TINSMITH_CACHE": empty}


def fresh(
    way: str, python: str | Path, base: Path, threads: int, **options: Any
) -> dict[str, float]:
    """What a worker that loads a model says in a new process, and `process_ms`, the time from its
    start to the first result. Raises EngineFailed."""
    with environment(way) as env:
        start = time.perf_counter()
        with contextlib.closing(Client(python, env=env)) as client:
            engine = way.split()[0]
            found = client.ask(
                "load", engine=engine, base=str(base), threads=threads, cpus=[], options=options
            )
            return found | {"process_ms": (time.perf_counter() - start) * 1e3}


Sample = Callable[[str, str | Path, Path, int], dict[str, float]]
"""What a fresh process measures: (engine or way, Python, base of the model's files, threads)."""


def sampled(
    sample: Sample, base: Path, pythons: Mapping[str, str | Path], times: int, threads: int,
    warm: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each engine (name -> Python) on a model: the medians of so many samples, taken in
    turns; with `warm`, after one of each that fills the caches."""

    def once(engine: str) -> dict[str, float]:
        return sample(engine, pythons[engine], base, threads)

    rows = in_turns(base, pythons, times, once, medians, unseen=int(warm))
    return [row | {"threads": threads} for row in rows]


def all_sampled(
    sample: Sample, models: list[str], engines: list[str], threads: int, times: int, places: Places
) -> list[dict[str, Any]]:
    """The rows of all models and engines, or ways to run ours, one after the other."""
    bases, pythons = bases_of(models, places), engines_of(engines, places)
    rows: list[dict[str, Any]] = []
    with progress() as status:
        for base, (way, python) in itertools.product(bases, pythons.items()):
            status.update(f"{base.name}: {way}")
            rows += sampled(sample, base, {way: python}, times, threads, warm=way != COLD)
    return rows


def progress() -> Status:
    """A line on standard error that says what is being measured."""
    return Console(stderr=True).status("starting")


def deliver(
    table: Table, rows: Sequence[dict[str, Any]], out: Path | None, **settings: Any
) -> None:
    """Print the table, say why rows failed, write all as JSON; exit with 1 where we failed."""
    report.screen().print(table)
    report.tell_failures(rows)
    if out:
        document = {"machine": machine.describe(), **settings, "results": rows}
        out.write_text(json.dumps(document, indent=1) + "\n")
    # An engine's name may be followed by how it is run, as in "tinsmith cold".
    if any("failed" in row and row["engine"].split()[0] == OURS for row in rows):
        sys.exit(1)
