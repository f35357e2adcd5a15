"""What a call costs besides the arithmetic: `python -m benchmarks.overhead`.

One Relu of sixteen numbers: the median time of a call from Python, and the time to import each
engine (numpy has been imported before).
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from benchmarks._main import deliver, engines_of, engines_option, places_options
from benchmarks.client import Client, EngineFailed
from benchmarks.machine import cores_for
from benchmarks.places import Places
from benchmarks.report import empty_table

ABLE = ["tinsmith", "mnn", "onnxruntime", "openvino"]
SIZE = 16


def write_model(folder: Path) -> Path:
    """The files of a model of one node; returns their common base."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIZE]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "relu.onnx")
    data = np.linspace(-1, 1, SIZE, dtype=np.float32)[None]
    np.savez(folder / "relu.npz", x=data, y=np.maximum(data, 0))
    return folder / "relu"


def measure(engine: str, python: str | Path, base: Path, times: int) -> dict[str, Any]:
    """One engine's row: microseconds of a call, ms of the import."""
    row: dict[str, Any] = {"model": "relu", "engine": engine}
    imports, calls = [], []
    try:
        for _ in range(times):
            with closing(Client(python)) as client:
                found = client.ask(
                    "load", engine=engine, base=str(base), threads=1, cpus=cores_for(1)
                )
                imports.append(found["import_ms"])
                calls += client.ask("run", seconds=0.2, least=100)["ms"]
    except EngineFailed as error:
        return row | {"failed": str(error)}
    found = {"call_us": statistics.median(calls) * 1e3, "least_us": min(calls) * 1e3}
    return row | found | {"import_ms": statistics.median(imports), "calls": len(calls)}


def as_table(rows: list[dict[str, Any]]) -> Table:
    out = empty_table("one node", ["engine"], ("call, us", "least, us", "import, ms"))
    for r in rows:
        keys = ("call_us", "least_us", "import_ms")
        out.add_row(r["engine"], *("-" if "failed" in r else f"{r[k]:.1f}" for k in keys))
    return out


@click.command()
@engines_option(ABLE)
@click.option("--times", default=5, show_default=True, help="Fresh processes per engine.")
@places_options
def main(
    engines: list[str],
    times: int,
    places: Places,
    out: Path | None,
) -> None:
    """The cost of a call of a model of one node, and of the import."""
    pythons = engines_of(engines, places)
    with tempfile.TemporaryDirectory() as folder:
        base = write_model(Path(folder))
        rows = [measure(e, python, base, times) for e, python in pythons.items()]
    deliver(as_table(rows), rows, out)


if __name__ == "__main__":
    main()
