"""Writes graphs as PNNX files, by the tables of the importer."""

from __future__ import annotations

import os
from pathlib import Path

from tinsmith.formats import pnnx as files
from tinsmith.graph import Graph
from tinsmith.writers.registry import WRITERS, Writer


def write(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write `path`, a `.param` file, and the `.bin` file beside it. Raises NotWritable, with all
    that PNNX cannot express, before anything is written; OSError."""
    from tinsmith.writers.pnnx.export import Export

    made = Export(graph)
    files.write(Path(path), made.operators, made.arrays)


WRITERS.register("pnnx", Writer("PNNX", (".pnnx.param",), write, form=""))
