"""What a new shape of a model costs: `python -m benchmarks.shapes`.

A transformer of free batch and sequence is called with shapes that its Net has not met: first where
no kernel has been compiled for them, then by another Net of the same model, which plans anew, but
finds every kernel. Medians over the shapes; the run itself, some tenths of a millisecond, is part.
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
from tests.transformer import feeds, transformer

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


def measure(layers: int, width: int, times: int) -> dict[str, Any]:
    """The row of a transformer of so many layers."""
    import tinsmith as ts

    model = ts.load(transformer(d=width, layers=layers))
    given = [feeds(*shape) for shape in SHAPES]
    compiled = calls(model, given)
    found = zip(*(calls(model, given) for _ in range(times)), strict=True)
    planned = [statistics.median(row) for row in found]
    return {
        "layers": layers,
        "width": width,
        "kernels_exist_ms": statistics.median(planned),
        "most_ms": max(planned),
        "no_kernel_exists_ms": statistics.median(compiled),
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    out = Table(title="a new shape, median ms", title_justify="left")
    for name in ("layers", "width", "kernels exist", "most", "no kernel exists"):
        out.add_column(name, justify="right")
    for r in rows:
        keys = ("kernels_exist_ms", "most_ms", "no_kernel_exists_ms")
        out.add_row(str(r["layers"]), str(r["width"]), *(f"{r[k]:.1f}" for k in keys))
    return out


@click.command()
@click.option("--times", default=5, show_default=True, help="Nets that find all kernels.")
@json_option
def main(times: int, out: Path | None) -> None:
    """The cost of a shape that a model has not been called with, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TINSMITH_CACHE"] = folder
        rows = [measure(layers, width, times) for layers, width in ((2, 32), (12, 128))]
    deliver(as_table(rows), rows, out)


if __name__ == "__main__":
    main()
