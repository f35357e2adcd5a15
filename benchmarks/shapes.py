"""What a new shape of a model costs: `python -m benchmarks.shapes`.

A transformer of free batch and sequence is called with shapes that its Net has not met: where no
kernel has been compiled for them; where all have, by a Net of the same graph, which plans anew; and
where a program of the shape has been stored, by another Net of the same file. Medians over the
shapes; the run itself, some tenths of a millisecond, is part.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import deliver, json_option
from benchmarks.report import empty_table
from tests.transformer import feeds, transformer

COLUMNS = {
    "layers": "layers",
    "width": "width",
    "stored_ms": "stored",
    "most_stored_ms": "most",
    "kernels_exist_ms": "kernels exist",
    "most_ms": "most",
    "no_kernel_exists_ms": "no kernel exists",
}
SHAPES = [(1 + i % 4, 1 + (7 * i) % 23) for i in range(12)]


def calls(model: Any, given: list[dict[str, Any]]) -> list[float]:
    """Milliseconds of the first call of each shape, by a Net that has met none."""
    import tinsmith as ts

    net, spent = ts.compile(model), []
    for arrays in given:
        start = time.perf_counter()
        net(**arrays)
        spent.append((time.perf_counter() - start) * 1e3)
    return spent


def measure(layers: int, width: int, times: int, folder: Path) -> dict[str, Any]:
    """The row of a transformer of so many layers."""
    import onnx

    import tinsmith as ts

    file = folder / f"{layers}.onnx"
    onnx.save(transformer(d=width, layers=layers), file)
    graph, given = ts.load(file), [feeds(*shape) for shape in SHAPES]
    compiled = calls(graph, given)
    planned = medians(graph, given, times)
    calls(file, given)
    stored = medians(file, given, times)
    return {
        "layers": layers,
        "width": width,
        "stored_ms": statistics.median(stored),
        "most_stored_ms": max(stored),
        "kernels_exist_ms": statistics.median(planned),
        "most_ms": max(planned),
        "no_kernel_exists_ms": statistics.median(compiled),
    }


def medians(model: Any, given: list[dict[str, Any]], times: int) -> list[float]:
    """The milliseconds of each shape, over so many Nets."""
    rows = zip(*(calls(model, given) for _ in range(times)), strict=True)
    return [statistics.median(row) for row in rows]


def as_table(rows: list[dict[str, Any]]) -> Table:
    out = empty_table("a new shape, median ms", (), list(COLUMNS.values()))
    for r in rows:
        out.add_row(*(f"{r[k]:.1f}" if k.endswith("_ms") else str(r[k]) for k in COLUMNS))
    return out


@click.command()
@click.option("--times", default=5, show_default=True, help="Nets that find what exists.")
@json_option
def main(times: int, out: Path | None) -> None:
    """The cost of a shape that a model has not been called with, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TINSMITH_CACHE"] = folder
        models = ((2, 32), (12, 128))
        rows = [measure(layers, width, times, Path(folder)) for layers, width in models]
    deliver(as_table(rows), rows, out)


if __name__ == "__main__":
    main()
