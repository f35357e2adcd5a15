"""A whole ncnn model -> Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinsmith.errors import GraphError, OptionError
from tinsmith.formats.mapped import Files
from tinsmith.formats.ncnn.pair import read_pair
from tinsmith.formats.ncnn.param import Layer
from tinsmith.frontends.importing import Import
from tinsmith.frontends.ncnn.inputs import free_sizes
from tinsmith.frontends.ncnn.node import LETTERS, Node, layer
from tinsmith.frontends.nodes import Scope
from tinsmith.graph import Graph, Type, Value, dtype_of

FLOAT = dtype_of("float32")


def load(
    source: Any, random_weights: int | None = None, batch: str | int | None = "N",
    input_shapes: Mapping[str, Any] | None = None,
) -> Graph:  # fmt: skip
    """The graph of a model: for `source` see `read_pair`, for the options `frontends.load`. `batch`
    is the symbol ("free": "N") or the size of the first axis of all inputs; with None or "none",
    inputs and outputs have no such axis, as in ncnn. `input_shapes` replace shapes of the file."""
    batch = {"none": None, "free": "N"}.get(str(batch), batch)
    if batch is not None and not (isinstance(batch, str) or (type(batch) is int and batch > 0)):
        raise OptionError(f"batch is a name, a positive number, or None, not {batch!r}")
    return graph_of(*read_pair(source, random_weights), batch, input_shapes)


def graph_of(
    file: str, layers: Sequence[Layer], files: Files, batch: str | int | None = "N",
    shapes: Mapping[str, Any] | None = None,
) -> Graph:  # fmt: skip
    """The graph of `layers`, which have their weights already. `file` is the name of their file,
    `shapes` is `input_shapes` of `load`; `batch` is as there, without the words "free" and "none".
    Raises ImportFailed; GraphError without an Input layer, or where one has a negative size."""
    shared = Import(layer, file, files, shapes)
    name = Path(file).name
    for suffix in (".bin", ".param", ".zip"):
        name = name.removesuffix(suffix)
    graph = Graph(name or "ncnn", file)
    graph.meta["format"] = "ncnn"
    scope = Scope(shared, graph)
    scope.kinds = Value
    readers: dict[str, Layer] = {}
    for row in layers:
        for blob in row.inputs:
            readers.setdefault(blob, row)
    for row in layers:
        if _is_input(row):
            _input(scope, row, readers, batch)
    rest = [row for row in layers if not _is_input(row)]
    outputs = [b for row in rest for b in row.outputs if b not in readers]
    if not graph.inputs:
        raise GraphError(f"{shared.name} has no Input layer")
    scope.run(rest, lambda row: Node(scope, row), outputs)
    scope.set_outputs(outputs)
    if batch is None and not shared.problems:
        graph.outputs = [_renamed(graph, v) for v in graph.outputs]
    return shared.finish(graph)


def _is_input(row: Layer) -> bool:
    """Whether the outputs of a layer are inputs of the model: Input, or a Noop without inputs."""
    return row.type == "Input" or (row.type == "Noop" and not row.inputs)


def _input(scope: Scope, row: Layer, readers: dict[str, Layer], batch: Any) -> None:
    """Add an input of the graph for each output of the Input layer `row`: of the shape that its
    parameters give, else its hint, else as told by `free_sizes`, else of three axes. `batch`: the
    dim of an axis in front of that; None: the input has no such axis, and layers read it with an
    axis of 1 added. Raises GraphError for a negative size."""
    values = row.schema.values(row.given)
    for i, blob in enumerate(row.outputs):
        sizes = [values[n] for n in "cdhw" if values.get(n)]
        dims: tuple[int | str, ...] = tuple(sizes) or _hint(row, i) or free_sizes(blob, readers)
        if not dims and blob not in scope.shared.shapes:
            scope.shared.hints.append(
                f"The file does not tell the axes of the input {blob!r}, taken to be c, h and w. "
                f"If it has others, give its shape: input_shapes={{{blob!r}: (SIZE, ...)}}, in "
                f"commands --input-shape {blob}=SIZE,..."
            )
        dims = dims or tuple(f"{blob}_{letter}" for letter in LETTERS[3])
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise GraphError(f"the input {blob!r} of {scope.shared.name} has the size {dims}")
        all_dims = dims if batch is None else (batch, *dims)
        type = scope.shared.typed(blob, Type(FLOAT, all_dims), firm=False)
        if batch is not None:
            scope.add_input(blob, type)
            continue
        value = scope.graph.input(blob, type)
        scope.named.add(value)
        node = Node(scope, row)
        scope.bind(blob, node.emit("Unsqueeze", value, node.ints(0)))


def _hint(row: Layer, index: int) -> tuple[int, ...]:
    """The shape of output number `index` that the file notes beside the layer; () for none."""
    noted: Sequence[int] = row.given.get("shapes", ())
    step = len(noted) // max(len(row.outputs), 1)
    if step not in (4, 5):
        return ()
    rank, *sizes = noted[index * step : (index + 1) * step]
    w, h, d, c = (*sizes[:2], 1, sizes[2]) if step == 4 else sizes
    found = {1: (w,), 2: (h, w), 3: (c, h, w), 4: (c, d, h, w)}.get(rank, ())
    return found if all(n > 0 for n in found) else ()


def _renamed(graph: Graph, value: Value) -> Value:
    """An output of the graph without the axis of the batch; it takes over the name of `value`."""
    from tinsmith.ops import OPS

    name = value.name
    value.name = graph.unique(f"{name}/batch")
    plain = graph.add(OPS["Squeeze"], value, graph.const(0, f"{name}/axis")).output
    plain.name = name
    return plain
