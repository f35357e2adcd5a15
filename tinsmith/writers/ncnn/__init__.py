"""Writes graphs as ncnn's files: `writer` a whole graph, the other modules each operator."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tinsmith.graph import Graph
from tinsmith.writers.ncnn.writer import groups_of
from tinsmith.writers.ncnn.writer import write as write
from tinsmith.writers.registry import WRITERS, Writer


def _write(graph: Graph, path: Path, halves: bool = False) -> None:
    """Write `path`, text or binary by its name, and the `.bin` file of weights beside it."""
    write(graph, path, halves=halves, binary=path.name.endswith(".bin"))


WRITERS.register(
    "ncnn",
    Writer(
        "ncnn", (".param", ".param.bin"), _write, partial(_write, halves=True), form="ncnn",
        groups=groups_of,
    ),
)  # fmt: skip
