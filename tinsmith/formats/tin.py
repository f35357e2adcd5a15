"""Graphs in Tinsmith's own file format (`container.py`): their text, and constants to be mapped."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from tinsmith.errors import ModelFileError
from tinsmith.formats.container import Container
from tinsmith.formats.mapped import check_unchanged
from tinsmith.formats.nibbles import BITS, packed, packed_size, unpacked
from tinsmith.graph import Graph
from tinsmith.graph.text import format_graph, graph_weights, parse_graph
from tinsmith.graph.types import dtype_named

ALIGNMENT = 64
PACKED = ":packed"
"""Suffix of the name of an element type of 4 or 2 bits, of which several lie in a byte
(`nibbles`)."""
Table = dict[str, tuple[str, tuple[int, ...], int]]
"""Name of a constant -> element type, shape, and offset in bytes in the section "constants"."""


class Head(TypedDict):
    """The JSON of the section "table": the constants, and `Graph.meta`."""

    table: Table
    meta: dict[str, str | int]


def graph_sections(graph: Graph) -> dict[str, Any]:
    """The sections of a .tin file for a graph: "graph" (its text), "constants" (bytes of those that
    the text lacks) and "table" (a `Head`). Raises ModelFileError for constants that are text, or
    map a file that is damaged or was changed."""
    weights = graph_weights(graph)
    check_unchanged(weights.values())
    table: dict[str, tuple[str, list[int], int]] = {}
    arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
    at = 0
    for name, array in weights.items():
        if array.dtype == object:
            raise ModelFileError(f"the constant {name!r} holds text, which a .tin file cannot keep")
        kind = array.dtype.name
        table[name] = (f"{kind}{PACKED}" if kind in BITS else kind, list(array.shape), at)
        arrays.append((at, packed(array)))
        at += -(-arrays[-1][1].size // ALIGNMENT) * ALIGNMENT
    blob = np.zeros(at, np.uint8)
    for offset, flat in arrays:
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
    """Read the graph of a .tin file; its constants are views of the mapped file. Raises
    ModelFileError if the file is damaged or holds no graph, GraphSyntaxError for its text."""
    found = Container(path)
    for name in ("graph", "table", "constants"):
        if name not in found:
            raise ModelFileError(f"{path} holds no graph (section {name!r} is missing)")
    head = found.data("table", Head)
    constants = _constants(path, head["table"], found.array_checked_later("constants"))
    graph = parse_graph(found.text("graph"), constants)
    graph.meta.update(head["meta"])
    graph.file, graph.files = path.name, found.files
    return graph


def _constants(
    path: Path, table: Table, data: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """The constants of a .tin file by name, as views of the section's bytes, `data`; packed ones
    are unpacked. Raises ModelFileError if one does not fit."""
    arrays = {}
    for name, (dtype_name, dims, offset) in table.items():
        try:
            kind = dtype_name.removesuffix(PACKED)
            dtype, is_packed = dtype_named(kind), kind != dtype_name
            if is_packed and kind not in BITS:
                raise ValueError(f"elements of {kind} are not packed")
            count = prod(dims)
            end = offset + (packed_size(dtype, count) if is_packed else count * dtype.itemsize)
            if min(*dims, offset, 0) < 0 or end > data.size or dtype.hasobject:
                raise ValueError("it does not fit")
            part = data[offset:end]
            flat = unpacked(part, dtype, count) if is_packed else part.view(dtype)
            arrays[name] = flat.reshape(dims)
        except ValueError as error:  # numpy has a greatest rank, and greatest extents
            raise ModelFileError(f"{path} is corrupt: the constant {name!r}: {error}") from error
    return arrays
