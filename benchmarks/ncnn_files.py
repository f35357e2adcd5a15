"""ncnn's own files, in ncnn and in Tinsmith: `python -m benchmarks.ncnn_files FOLDER`.

FOLDER has `.param` files, such as those of ncnn's benchmark. Their weights are those of the `.bin`
files beside them, else drawn at random, the same for both. The outputs of the two are compared; a
difference beyond the tolerance is shown as wrong. `benchmarks.ncnn_loading` times the loading of
them.
"""

from __future__ import annotations

import json
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


def prepare(param: Path, folder: Path, without: Collection[str] = ()) -> Path:
    """NAME.param, NAME.bin with the weights, and NAME.npz with an input and Tinsmith's outputs,
    in `folder`, `without` layers of these types; their path without the suffix."""
    import tinsmith as ts
    from tinsmith.formats.ncnn.pair import read_pair
    from tinsmith.formats.ncnn.param import param_text
    from tinsmith.formats.ncnn.weights import write_weights

    _, layers, _ = read_pair(param, None if param.with_suffix(".bin").exists() else 0)
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


def params_of(files: Path, models: str | None) -> list[Path]:
    """The .param files of a folder, or those of these names."""
    wanted = None if models is None else set(models.split(","))
    return [p for p in sorted(files.glob("*.param")) if wanted is None or p.stem in wanted]


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
@places_options
def main(
    files: Path,
    models: str | None,
    without: str,
    threads: list[str],
    rounds: int,
    seconds: float,
    tolerance: float,
    places: Places,
    out: Path | None,
) -> None:
    """Median times of Tinsmith and ncnn on the .param files of FILES, in fp32, side by side."""
    folder = places.models.resolve() / "ncnn"
    folder.mkdir(parents=True, exist_ok=True)
    params = params_of(files, models)
    pythons = engines_of([OURS, "ncnn"], places)
    settings: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "rounds": rounds}
    results: list[Result] = []
    with progress() as status:
        bases = [prepare(p, folder, without.split(",")) for p in params]
        for count in map(int, threads):
            for base in bases:
                effort = Effort(rounds, seconds)
                results += measure([base], count, pythons, effort, tolerance, status.update)
    for count in map(int, threads):
        report.screen().print(report.table(results, count))
    for r in results:
        if r.failed or r.wrong:
            click.echo(
                f"{r.model}: {r.engine}: {r.failed or f'differs by {r.error:.1e}'}", err=True
            )
    if out is not None:
        document = report.as_json(results, machine.describe(), settings)
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
