"""ncnn's own files, in ncnn and in Tinsmith: `python -m benchmarks.ncnn_files FOLDER`.

FOLDER has `.param` files, such as those of ncnn's benchmark. Their weights are drawn at random, the
same for both. The outputs of the two are compared; a difference beyond the tolerance is shown as
wrong. The table of loading has what the engines take from the files to the first result, in a fresh
process each; Tinsmith's programs are in its store, as after a first start.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import machine, report
from benchmarks._arrays import beside
from benchmarks._main import Names, engines_of, places_options, progress
from benchmarks.measure import OURS, Effort, Result, measure
from benchmarks.places import Places

LOADS = 5
"""Fresh processes of which the median is shown, besides one that is not counted."""


def prepare(param: Path, folder: Path, without: Collection[str] = ()) -> Path:
    """NAME.param, NAME.bin with random weights, and NAME.npz with an input and Tinsmith's outputs,
    in `folder`, `without` layers of these types; their path without the suffix."""
    import tinsmith as ts
    from tinsmith.formats.ncnn.pair import read_pair
    from tinsmith.formats.ncnn.param import param_text
    from tinsmith.formats.ncnn.weights import write_weights

    _, layers, _ = read_pair(param, 0)
    left = [layer for layer in layers if layer.type not in without]
    base, layers = folder / (param.stem + "_cut" * (len(left) < len(layers))), left
    if beside(base, ".npz").exists():
        return base
    beside(base, ".param").write_text(param_text(layers))
    with beside(base, ".bin").open("wb") as file:
        file.writelines(write_weights(layers))
    net = ts.compile(str(beside(base, ".param")))
    rng = np.random.default_rng(0)
    x = [
        rng.standard_normal([n if isinstance(n, int) else 1 for n in t.shape or ()]) / 2
        for t in net.inputs.values()
    ]
    x = [one.astype(np.float32) for one in x]
    y = net.run(x)
    arrays = {f"x{i}": a for i, a in enumerate(x)} | {f"y{i}": a for i, a in enumerate(y)}
    np.savez(beside(base, ".npz"), **arrays)  # pyright: ignore[reportArgumentType]
    return base


def loading(
    bases: list[Path], pythons: dict[str, str | Path], say: Any, tolerance: float
) -> list[dict[str, Any]]:
    """Milliseconds from the files to a first result, without the import of the engine."""
    rows = []
    for base in bases:
        ms: dict[str, list[float]] = {engine: [] for engine in pythons}
        for turn in range(LOADS + 1):
            for engine in pythons:
                say(f"{base.name}: loading {engine}, {turn}/{LOADS}")
                none = Effort(rounds=0)
                (found,) = measure(
                    [base], 1, {engine: pythons[engine]}, none, tolerance, lambda _: None
                )
                if turn and not found.failed:
                    ms[engine].append(found.load_ms + found.first_ms)
        medians = {e: statistics.median(v) if v else None for e, v in ms.items()}
        rows.append({"model": base.name, **medians})
    return rows


@click.command()
@click.argument("files", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--models", help="Only these, separated by commas.")
@click.option(
    "--without",
    default="",
    help="Leave layers of these types out, in both: the boxes that random weights find are none.",
)
@click.option("--threads", type=Names(["1", "2", "4", "8", "16"]), default="1,2", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=0.4, show_default=True)
@click.option("--tolerance", default=1e-3, show_default=True, help="max|error| / max|output|.")
@click.option("--load/--no-load", default=True, show_default=True, help="Time loading, too.")
@places_options
def main(
    files: Path,
    models: str | None,
    without: str,
    threads: list[str],
    rounds: int,
    seconds: float,
    tolerance: float,
    load: bool,
    places: Places,
    out: Path | None,
) -> None:
    """Median times of Tinsmith and ncnn on the .param files of FILES, in fp32, side by side."""
    folder = places.models.resolve() / "ncnn"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if models is None else set(models.split(","))
    params = [p for p in sorted(files.glob("*.param")) if wanted is None or p.stem in wanted]
    pythons = engines_of([OURS, "ncnn"], places)
    settings: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "rounds": rounds}
    results: list[Result] = []
    loads: list[dict[str, Any]] = []
    with progress() as status:
        bases = [prepare(p, folder, without.split(",")) for p in params]
        for count in map(int, threads):
            for base in bases:
                effort = Effort(rounds, seconds)
                results += measure([base], count, pythons, effort, tolerance, status.update)
        if load:
            loads = loading(bases, pythons, status.update, tolerance)
    for count in map(int, threads):
        report.screen().print(report.table(results, count))
    for row in loads:
        shown = ", ".join(f"{e} {ms:.1f} ms" for e, ms in row.items() if isinstance(ms, float))
        click.echo(f"{row['model']}: from the files to a first result: {shown}")
    for r in results:
        if r.failed or r.wrong:
            click.echo(
                f"{r.model}: {r.engine}: {r.failed or f'differs by {r.error:.1e}'}", err=True
            )
    if out is not None:
        document = report.as_json(results, machine.describe(), settings) | {"loading": loads}
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
