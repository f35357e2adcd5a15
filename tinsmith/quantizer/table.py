"""Quantises models by ncnn's calibration tables: the scales of layers as text.

A layer has a line for its weights, with a number for each output, and a line for its input. integer
= round(real * number):

    conv1_param_0 156.2 143.9
    conv1 151.0
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tinsmith.compiler.compile import ModelLike, load
from tinsmith.compiler.write import write
from tinsmith.errors import QuantizeError, counted
from tinsmith.graph import Array, Graph, Node, Value
from tinsmith.ops._weights import is_matrix_product
from tinsmith.quantizer import places
from tinsmith.quantizer.forms import FORMS, WEIGHTS, by_title
from tinsmith.quantizer.quantize import canonical_of
from tinsmith.quantizer.scales import Scale
from tinsmith.records import NamedTuple
from tinsmith.writers.registry import check_out, files_at

PARAMETER = re.compile(r"_param_\d+$")
"""Suffix of the names of lines of weights; recurrent layers and attention have several."""


class Applied(NamedTuple):
    """A model quantised by a table: the graph, the names of its quantised layers, and of layers
    that stay in float32 since the table has no scales for them (`kept`)."""

    graph: Graph
    layers: tuple[str, ...]
    kept: tuple[str, ...]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the model in the format that the path's ending says. Raises FileNameError as
        `Quantized.write`."""
        check_out(files_at(Path(path)), self.graph.files)
        write(self.graph, path)

    def to_json(self) -> dict[str, object]:
        """The keys `layers` and `kept` of what `tinsmith quantize --table --json` prints
        (docs/json.md); the command adds those of the files."""
        return {"layers": [{"name": name} for name in self.layers], "kept": list(self.kept)}

    def __str__(self) -> str:
        told = f"{counted(len(self.layers), 'layer')} in bytes"
        return f"{told}; in float32: {', '.join(self.kept)}" if self.kept else told


class Row(NamedTuple):
    """ncnn's scales of a layer, 1 / `Scale.scale`: of its weights, for each output or one for all,
    and of its input."""

    weights: Array
    data: float


def rows_of(found: Mapping[str, list[float]], file: str = "the table") -> dict[str, Row]:
    """Return name -> scales for layers that have both lines among those `found` (`lines_of`);
    others are left out. Raises QuantizeError, which names `file`, if there are none."""
    names = [name for name in found if name + WEIGHTS in found]
    if not names:
        raise QuantizeError(
            f"{file} has no layer with both lines, NAME{WEIGHTS} for its weights and NAME for its"
            " input: it is no calibration table of ncnn"
        )
    return {n: Row(np.array(found[n + WEIGHTS], np.float64), found[n][0]) for n in names}


def lines_of(text: str, file: str = "the table") -> dict[str, list[float]]:
    """Parse the lines of a table, except those that begin with `#`: return first word -> numbers
    after it. Raises QuantizeError for a line without, or with negative ones."""
    found: dict[str, list[float]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, *rest = line.split() or [""]
        if not name or name.startswith("#"):
            continue
        try:
            values = [float(v) for v in rest]
        except ValueError:
            values = []
        if not values or not all(math.isfinite(v) and v >= 0 for v in values):
            raise QuantizeError(
                f"{file}, line {number}: {name!r} has no scales: they are numbers of 0 and more,"
                f" such as '{name} 151.0 143.9'"
            )
        found[name] = values
    return found


def apply_table(model: ModelLike, table: str, file: str = "the table") -> Applied:
    """Quantise the layers of a float model that a calibration table has, as ncnn computes them in
    int8; all others stay in float32.

    table   the text of the table, with the names of layers (for other formats: of nodes)
    file    its name, for errors
    Raises QuantizeError for a table that does not fit the model, and the errors of `load`.
    """
    graph = canonical_of(load(model))
    lines, form = lines_of(table, file), FORMS["ncnn"]
    rows = rows_of(lines, file)
    nodes = by_title(places.targets(graph, (), form.takes, False))
    titles = {node: name for name, node in nodes.items()}
    there = {n.origin.name for n in graph.nodes} | {n.name for n in graph.nodes}
    named = dict.fromkeys(PARAMETER.sub("", name) for name in lines)
    if unknown := [n for n in named if n not in nodes and (n in rows or n not in there)]:
        known = ", ".join(list(nodes)[:8])
        raise QuantizeError(
            f"{file} has {counted(len(unknown), 'layer')} that the model has not, or that ncnn does"
            f" not compute in bytes, such as {unknown[0]!r}; the model's are {known}"
            + ", ..."
            * (len(nodes) > 8)
        )
    scales: dict[Value, Scale] = {}
    for name, row in rows.items():
        (x,) = places.data_of(nodes[name])
        if not row.data:
            raise QuantizeError(f"{file}: the scale of the input of {name!r} is 0")
        one = _scale(np.array(row.data))
        if x in scales and (scales[x].scale != one.scale).any():
            one = scales[x]  # a value is quantised once, for all its readers
        scales[x] = one

    def rounded(node: Node, place: int) -> tuple[Array, Scale]:
        w = node.operand(place).array
        axis = w.ndim - 1 if is_matrix_product(node) else 0
        given, outputs = rows[titles[node]].weights, w.shape[axis]
        if given.size not in (1, outputs):
            raise QuantizeError(
                f"{file}: {titles[node]!r} has {counted(given.size, 'scale')} for {outputs} outputs"
            )
        scale = _scale(np.resize(given, outputs), axis, form.bits(node))
        return scale.quantised(w), scale

    kept = tuple(name for name in nodes if name not in rows)
    form.insert(graph, [nodes[name] for name in rows], scales, rounded)
    return Applied(graph, tuple(rows), kept)


def _scale(numbers: Array, axis: int = 0, bits: int = 8) -> Scale:
    """Return the scale 1 / `numbers`, ncnn's scales; 1 for 0, which ncnn writes for weights that
    are all zero."""
    with np.errstate(divide="ignore"):
        found = np.where(numbers == 0, 1.0, 1 / numbers)
    return Scale(found, np.zeros(found.shape, np.int8), axis, bits)
