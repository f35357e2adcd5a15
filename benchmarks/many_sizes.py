"""Many sizes in a row: `python -m benchmarks.many_sizes`.

Each model, its height and width (of the encoder batch and length, of the step of a decoder batch
and tokens before) free, is called with random sizes, most of which come once or twice. Every engine
has made a first call, at the model's own sizes; whatever else a new size costs counts. Processes
take turns, round by round, each new.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from benchmarks._main import (
    OURS,
    Names,
    deliver,
    engines_of,
    engines_option,
    places_options,
    progress,
)
from benchmarks.client import Client, in_turns
from benchmarks.machine import cores_for
from benchmarks.places import Places
from benchmarks.report import empty_table

ABLE = [OURS, "onnxruntime", "openvino"]
SIDES = {"resnet18": (64, 160, 16), "unet": (64, 160, 16), "mobilenet_v3_large": (96, 256, 32)}
"""The least and the largest height and width, and what they are multiples of."""
ENCODER, LAYERS = "encoder", 12
STEP, HEADS, MOST = "decoder step", 4, 1024
WIDTH = 128
SEED = 5

Shapes = dict[str, tuple[int, ...]]
"""The shapes of one call, by input."""


def write_picture(model: str, models: Path, folder: Path, calls: int) -> tuple[Path, list[Shapes]]:
    """A model of the panel with free height and width; the base of its files, and the calls."""
    import onnx

    made = onnx.load(models / f"{model}.onnx")
    (given,) = made.graph.input
    channels = given.type.tensor_type.shape.dim[1].dim_value
    for axis, name in ((2, "h"), (3, "w")):
        given.type.tensor_type.shape.dim[axis].dim_param = name
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    del made.graph.value_info[:]
    onnx.save(made, folder / f"{model}.onnx")
    (folder / f"{model}.npz").write_bytes((models / f"{model}.npz").read_bytes())
    low, high, step = SIDES[model]
    random = np.random.default_rng(SEED)
    sides = random.integers(low // step, high // step + 1, (calls, 2)) * step
    return folder / model, [{given.name: (1, channels, int(h), int(w))} for h, w in sides]


def write_encoder(folder: Path, calls: int) -> tuple[Path, list[Shapes]]:
    """A transformer of free batch and length; the base of its files, and the calls."""
    from tests.transformer import feeds, transformer

    made = transformer(d=WIDTH, layers=LAYERS)
    base, names = _write(ENCODER, folder, made, feeds(2, 64))
    random = np.random.default_rng(SEED)
    sizes = [(int(random.integers(1, 5)), int(random.integers(4, 129))) for _ in range(calls)]
    return base, [{n: size for n in names.values()} for size in sizes]


def write_step(folder: Path, calls: int) -> tuple[Path, list[Shapes]]:
    """A step of a decoder of 2 layers: a token more, after so many before; the base of its files,
    and the calls."""
    from tests.decoder import decoder, empty

    random = np.random.default_rng(SEED)
    given = {"ids": np.array([[1], [2]]), **empty(2, WIDTH, HEADS)}
    for name in list(given)[1:]:
        given[name] = random.standard_normal((2, HEADS, 64, WIDTH // HEADS), np.float32)
    base, names = _write(STEP, folder, decoder(WIDTH, HEADS, most=MOST), given)
    drawn = [(int(random.integers(1, 5)), int(random.integers(1, MOST))) for _ in range(calls)]
    return base, [
        {x: (n, 1) if name == "ids" else (n, HEADS, past, WIDTH // HEADS)
         for name, x in names.items()} for n, past in drawn
    ]  # fmt: skip


def _write(
    name: str, folder: Path, made: Any, feeds: dict[str, Any]
) -> tuple[Path, dict[str, str]]:
    """Write a model and what it gives for `feeds`; the base of its files, and what its inputs are
    called there: x0, x1, ..."""
    import onnx

    import tinsmith as ts

    names = {v.name: f"x{k}" for k, v in enumerate(made.graph.input)}
    for node in made.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
    for value in made.graph.input:
        value.name = names[value.name]
    base = folder / name.replace(" ", "_")
    onnx.save(made, f"{base}.onnx")
    given: dict[str, Any] = {names[n]: a for n, a in feeds.items()}
    results = ts.compile(f"{base}.onnx", backend="numpy").run(given)
    given |= {f"y{k}": a for k, a in enumerate(results)}
    np.savez(f"{base}.npz", **given)
    return base, names


WRITERS = {ENCODER: write_encoder, STEP: write_step}
"""By the names of models that are not pictures'."""


def measure(
    base: Path, calls: Sequence[Shapes], pythons: dict[str, str | Path], rounds: int
) -> list[dict[str, Any]]:
    """A row for each engine: milliseconds of all calls together, and of the slowest, medians over
    the rounds."""

    def summary(times: list[list[float]]) -> dict[str, Any]:
        whole, most = (statistics.median(f(one) for one in times) for f in (sum, max))
        return {"calls": len(calls), "all_ms": whole, "most_ms": most}

    once = partial(_calls, pythons=pythons, base=base, calls=calls)
    return in_turns(base, pythons, rounds, once, summary)


def _calls(
    engine: str, pythons: dict[str, str | Path], base: Path, calls: Sequence[Shapes]
) -> list[float]:
    options = {"options": {"shapes": "free"}} if engine == OURS else {}
    with closing(Client(pythons[engine])) as client:
        client.ask("load", engine=engine, base=str(base), threads=1, cpus=cores_for(1), **options)
        return list(client.ask("vary", calls=calls)["ms"])


def as_table(rows: list[dict[str, Any]]) -> Table:
    columns = ("all, s", "slowest, ms", "ours / it")
    out = empty_table("many sizes in a row", ("model", "engine"), columns)
    ours = {r["model"]: r["all_ms"] for r in rows if r["engine"] == OURS and "all_ms" in r}
    for r in [r for r in rows if "all_ms" in r]:
        share = ours.get(r["model"], float("nan")) / r["all_ms"]
        numbers = f"{r['all_ms'] / 1e3:.2f}", f"{r['most_ms']:.1f}", f"{share:.2f}"
        out.add_row(r["model"], r["engine"], *numbers)
    return out


@click.command()
@click.option("--models", type=Names([*SIDES, *WRITERS]), default=",".join([*SIDES, *WRITERS]))
@engines_option(ABLE)
@click.option("--calls", default=200, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@places_options
def main(
    models: list[str], engines: list[str], calls: int, rounds: int, places: Places,
    out: Path | None,
) -> None:  # fmt: skip
    """Random sizes in a row, on one thread."""
    pythons = engines_of(engines, places)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, progress() as status:
        for model in models:
            status.update(model)
            base, given = (
                WRITERS[model](Path(folder), calls)
                if model in WRITERS
                else write_picture(model, places.models, Path(folder), calls)
            )
            rows += measure(base, given, pythons, rounds)
    deliver(as_table(rows), rows, out)


if __name__ == "__main__":
    main()
