"""`write` and `optimize`: write a model in another file format; make its graph smaller before."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from tinsmith.backends.cpu import HOST
from tinsmith.compiler.compile import ModelLike, load
from tinsmith.compiler.options import check_flags, refuse_others
from tinsmith.errors import OptionError
from tinsmith.graph import Graph
from tinsmith.graph.copy import between
from tinsmith.passes import FILED, Report, run_passes
from tinsmith.passes.regions import keep, release
from tinsmith.passes.weights import parse, shrunk
from tinsmith.runtime.net import Net
from tinsmith.writers.registry import WRITERS, Writer, check_out, files_at, writer_of
from tinsmith.writers.registry import write as write_graph


@refuse_others
def write(
    model: ModelLike | Net,
    path: str | os.PathLike[str],
    *,
    canonical: bool = False,
    weights: str = "float32",
) -> None:
    """Write a model as a file of the format that the path's ending says: `.onnx`, `.tin`, `.param`
    (ncnn, with its `.bin`), `.pnnx.param` (PNNX, likewise).

    The graph is written as it was imported; with `canonical`, after the portable passes: constants
    folded, batch normalisations merged into weights. With `weights` of "float16", "bfloat16",
    "int8" or "int4" (docs/quantize.md) the file stores large weights in this type; whoever loads it
    dequantises them. Raises NotWritable, which names everything that the format cannot express,
    before anything is written; FileNameError, also where `path` is a file that `model`, a
    path, is read from; ModelFileError, and the errors of `load`.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"write writes to a path, not to {type(path).__name__}")
    check_flags(canonical=canonical)
    kind, block = parse(weights)
    writer = writer_of(Path(path))
    graph = graph_of(model)
    check_out(files_at(Path(path)), () if isinstance(model, Net | Graph) else graph.files)
    if canonical:
        graph = portable(graph, writer)
    if kind != "float32" and writer.small:
        graph, kind = shrunk(graph, kind, block), "float32"
    write_graph(graph, Path(path), kind)


@refuse_others
def optimize(
    model: ModelLike | Net,
    *,
    passes: str | None = None,
    outputs: Sequence[str] = (),
    cut: Sequence[tuple[str, str]] = (),
    format: str | None = None,
) -> Graph:
    """Return a smaller graph that computes the same in any engine: after the portable passes and
    those of the stage "files".

    passes   which passes run, as for `compile`
    outputs  names of values, or of nodes, that the graph is to compute instead of its outputs
    cut      pairs (start, end): keep the graph between two values. `start` becomes an input; other
             nodes that `end` needs stay
    format   the file format that the graph is for, such as "ncnn": nodes for which it has one layer
             are not decomposed. None: the format of the file from which the model was read

    Raises UnknownName, GraphError for a part that cannot be cut out, and the errors of `load`.
    """
    writer = None if format is None else WRITERS[format]
    return optimized(part_of(graph_of(model), outputs, cut), passes, writer)[0]


def graph_of(model: ModelLike | Net) -> Graph:
    return model.source() if isinstance(model, Net) else load(model)


def part_of(graph: Graph, outputs: Sequence[str], cut: Sequence[tuple[str, str]]) -> Graph:
    """Return the part of a graph that `optimize` is asked for (see there); without `outputs` and
    `cut`, the graph itself."""
    if isinstance(outputs, str) or not isinstance(outputs, Collection):
        raise OptionError(f"outputs is a list of names, not {outputs!r}")
    if not isinstance(cut, Collection) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in cut
    ):
        raise OptionError(f'cut is a list of pairs of names, [("start", "end")], not {cut!r}')
    if not outputs and not cut:
        return graph
    return between(graph, [start for start, _ in cut], [*outputs, *(end for _, end in cut)])


def portable(graph: Graph, writer: Writer) -> Graph:
    """Return a copy of a graph after the portable passes. Groups of nodes for which the format of
    `writer` has one layer stay as they are."""
    return _passed(graph, writer, ("portable",))[0]


def optimized(
    graph: Graph, passes: str | None = None, writer: Writer | None = None
) -> tuple[Graph, list[Report]]:
    """Return a copy of a graph after the stages FILED of passes, and the report of each stage.
    Groups of nodes for which the format of `writer` has one layer stay as they are (None: the
    format of the graph's own file)."""
    if writer is None:
        writer = WRITERS.get(graph.meta.get("format", ""))
    return _passed(graph, writer, FILED, passes)


def _passed(
    graph: Graph, writer: Writer | None, stages: Sequence[str], passes: str | None = None
) -> tuple[Graph, list[Report]]:
    copy, owner = graph.clone(), writer.title if writer else ""
    copy.sweep()
    keep(copy, writer.groups(copy) if writer else (), owner)
    reports = [run_passes(copy, stage, HOST.column, passes) for stage in stages]
    release(copy, owner)
    return copy, reports
