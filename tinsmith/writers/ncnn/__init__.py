"""Graph -> ncnn's files. `writer` has whole graphs, the other modules each operator."""

from __future__ import annotations

from pathlib import Path

from tinsmith.graph import Graph
from tinsmith.writers.ncnn.writer import groups_of
from tinsmith.writers.ncnn.writer import write as write
from tinsmith.writers.registry import WRITERS, Writer


def _write(graph: Graph, path: Path) -> None:
    """Write `path`, text or binary by its name, and the `.bin` file beside it."""
    write(graph, path, binary=path.name.endswith(".bin"))


def _write_halves(graph: Graph, path: Path) -> None:
    write(graph, path, halves=True, binary=path.name.endswith(".bin"))


WRITERS.register(
    "ncnn",
    Writer(
        "ncnn", (".param", ".param.bin"), _write, _write_halves, form="ncnn", groups=groups_of
    ),
)  # fmt: skip
