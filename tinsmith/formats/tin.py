"""Graphs in Tinsmith's own file: text, and constants that are mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.formats.container import Container
from tinsmith.formats.mapped import check_unchanged
from tinsmith.graph import Graph, dtype_of
from tinsmith.graph.text import format_graph, graph_weights, parse_graph

ALIGNMENT = 64


def graph_sections(graph: Graph) -> dict[str, Any]:
    """The sections "graph" (text), "constants" (bytes) and "table" (JSON) of a graph.

    Raises ModelFileError for constants that are text, or whose own file is damaged or was changed.
    """
    weights = graph_weights(graph)
    check_unchanged(weights.values())
    table: dict[str, tuple[str, list[int], int]] = {}
    arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
    at = 0
    for name, array in weights.items():
        if array.dtype == object:
            raise ModelFileError(f"the constant {name!r} holds text, which a .tin file cannot keep")
        table[name] = (array.dtype.name, list(array.shape), at)
        arrays.append((at, array))
        at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    blob = np.zeros(at, np.uint8)
    for offset, array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        blob[offset : offset + flat.size] = flat
    head = {
        "table": table,
        "meta": {k: v for k, v in graph.meta.items() if isinstance(v, str | int)},
    }
    return {
        "constants": blob,
        "graph": format_graph(graph).encode(),
        "table": json.dumps(head).encode(),
    }


def read_graph(path: Path) -> Graph:
    """The graph of a .tin file; constants map the file. Raises ModelFileError, GraphSyntaxError."""
    found = Container(path)
    for name in ("graph", "table", "constants"):
        if name not in found:
            raise ModelFileError(f"{path} holds no graph (section {name!r} is missing)")
    head = found.json("table")
    data = found.array_checked_later("constants")
    try:
        constants = _constants(path, head["table"], data)
        meta = dict(head.get("meta", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path} has a corrupt table of constants: {error}") from error
    graph = parse_graph(found.text("graph"), constants)
    graph.meta.update(meta)
    graph.file, graph.files = path.name, found.files
    return graph


def _constants(
    path: Path, table: Mapping[str, Any], data: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for name, (dtype_name, dims, offset) in table.items():
        dtype = dtype_of(dtype_name)
        count = int(np.prod(dims, dtype=object)) if dims else 1
        end = offset + count * dtype.itemsize
        if min(dims, default=0) < 0 or offset < 0 or end > data.size:
            raise ModelFileError(f"{path} is corrupt: the constant {name!r} does not fit")
        arrays[name] = data[offset:end].view(dtype).reshape(dims)
    return arrays
