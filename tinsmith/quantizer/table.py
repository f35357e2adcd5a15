"""ncnn's calibration tables: the scales of layers as text, written and read.

A line for each layer's weights, a number for each output, and one for its input; numbers times a
scale are whole:

    conv1_param_0 156.2 143.9
    conv1 151.0
"""

from __future__ import annotations

import math

import numpy as np

from tinsmith.compiler.compile import ModelLike, load
from tinsmith.errors import QuantizeError, counted
from tinsmith.graph import Graph, Node, Value
from tinsmith.ops._weights import is_matrix_product
from tinsmith.quantizer import places
from tinsmith.quantizer.forms import FORMS, WEIGHTS, by_title
from tinsmith.quantizer.quantize import canonical_of
from tinsmith.quantizer.rounding import nearest
from tinsmith.quantizer.scales import Array, Scale
from tinsmith.records import NamedTuple


class Row(NamedTuple):
    """The scales of a layer: one for each output of its weights, and that of its input."""

    weights: Array
    data: float


def rows_of(text: str, file: str = "the table") -> dict[str, Row]:
    """The layers of a table that have both lines; those of others, and lines after `#`, are left
    out. Raises QuantizeError for what is no table."""
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
    names = [name for name in found if name + WEIGHTS in found]
    if not names:
        raise QuantizeError(
            f"{file} has no layer with both lines, NAME{WEIGHTS} for its weights and NAME for its"
            " input: it is no calibration table of ncnn"
        )
    return {n: Row(np.array(found[n + WEIGHTS], np.float64), found[n][0]) for n in names}


def apply_table(model: ModelLike, table: str, file: str = "the table") -> Graph:
    """A float model with the layers of a calibration table in bytes, as ncnn computes them; all
    others stay in float32.

    table   the text of the table: its names are those of layers (of another format's file, of
            nodes)
    Raises QuantizeError for a table that does not fit the model, and what `load` raises.
    """
    graph = canonical_of(load(model))
    rows, form = rows_of(table, file), FORMS["ncnn"]
    nodes = by_title(places.targets(graph, (), form.takes, False))
    titles = {node: name for name, node in nodes.items()}
    if unknown := [name for name in rows if name not in nodes]:
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
            one = scales[x]  # readers of one value share what it is rounded to
        scales[x] = one

    def rounded(node: Node, place: int) -> tuple[Array, Scale]:
        w = node.inputs[place]
        assert w is not None and w.const is not None
        axis = w.const.ndim - 1 if is_matrix_product(node) else 0
        given, outputs = rows[titles[node]].weights, w.const.shape[axis]
        if given.size not in (1, outputs):
            raise QuantizeError(
                f"{file}: {titles[node]!r} has {counted(given.size, 'scale')} for {outputs} outputs"
            )
        scale = _scale(np.resize(given, outputs), axis, form.bits(node))
        return nearest(w.const, scale), scale

    form.insert(graph, [nodes[name] for name in rows], scales, rounded)
    return graph


def _scale(numbers: Array, axis: int = 0, bits: int = 8) -> Scale:
    """The scale of what is whole times `numbers`. ncnn gives weights that are all zero a scale of
    0; any other does as well."""
    with np.errstate(divide="ignore"):
        found = np.where(numbers == 0, 1.0, 1 / numbers)
    return Scale(found, np.zeros(found.shape, np.int8), axis, bits)
