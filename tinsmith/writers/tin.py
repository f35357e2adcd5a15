"""Writes a graph as Tinsmith's own file, without programs."""

from __future__ import annotations

from pathlib import Path

from tinsmith.formats.container import write_container
from tinsmith.formats.tin import graph_sections
from tinsmith.graph import Graph
from tinsmith.writers.registry import WRITERS, Writer


def write(graph: Graph, path: Path) -> None:
    write_container(path, graph_sections(graph))


WRITERS.register("tin", Writer("Tinsmith", (".tin",), write, small=True))
