"""`write`, `optimize`: a model as a file of another format, and as a smaller graph for that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tinsmith.backends.cpu import HOST
from tinsmith.compiler.compile import ModelLike, load
from tinsmith.compiler.options import check_flags
from tinsmith.errors import OptionError
from tinsmith.graph import Graph
from tinsmith.graph.copy import between
from tinsmith.passes import FILED, Report, run_passes
from tinsmith.passes.regions import keep, release
from tinsmith.passes.weights import parse, shrunk
from tinsmith.runtime.net import Net
from tinsmith.writers.registry import WRITERS, Writer, writer_of
from tinsmith.writers.registry import write as write_graph


def write(
    model: ModelLike | Net,
    path: str | os.PathLike[str],
    *,
    canonical: bool = False,
    weights: str = "float32",
) -> None:
    """Write a model as a file of the format that the path's ending says: `.onnx`, `.tin`,
    `.param` (ncnn, with its `.bin`), `.pnnx.param` (PNNX, likewise).

    The graph is written as it was imported; `canonical` writes it after the portable passes, which
    are the same for every machine: constants folded, batch normalisations in weights. With
    `weights` of "float16", "bfloat16", "int8" or "int4" (docs/quantize.md) the file keeps large
    weights so; they are dequantised when they are read.
    Raises NotWritable, which names everything that the format cannot say, before anything is
    written; FileNameError, ModelFileError, and what `load` raises.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"write writes to a path, not to {type(path).__name__}")
    check_flags(canonical=canonical)
    kind, block = parse(weights)
    writer = writer_of(Path(path))
    graph = graph_of(model)
    if canonical:
        graph = portable(graph, writer)
    if kind != "float32" and writer.small:
        graph, kind = shrunk(graph, kind, block), "float32"
    write_graph(graph, Path(path), kind)


def optimize(
    model: ModelLike | Net,
    *,
    passes: str | None = None,
    outputs: Sequence[str] = (),
    cut: Sequence[tuple[str, str]] = (),
    format: str | None = None,
) -> Graph:
    """The graph of a model as small as it is known to be for all engines: after the portable passes
    and those of the stage "files". `write` writes it.

    passes   which passes run, as for `compile`
    outputs  names of the values that it computes, or of their nodes, instead of its own outputs
    cut      pairs (start, end): the graph from one value to another. What the ends need besides is
             computed as it was
    format   of the file that it is for, as "ncnn": what that has one layer for stays as it is.
             None: that of the file it comes from

    Raises UnknownName, GraphError for what cannot be cut, and what `load` raises.
    """
    writer = None if format is None else WRITERS[format]
    return optimized(part_of(graph_of(model), outputs, cut), passes, writer)[0]


def graph_of(model: ModelLike | Net) -> Graph:
    return model.source() if isinstance(model, Net) else load(model)


def part_of(graph: Graph, outputs: Sequence[str], cut: Sequence[tuple[str, str]]) -> Graph:
    """The part of a graph that is wanted; the graph itself if that is all of it."""
    if isinstance(outputs, str):
        raise OptionError(f"outputs is a list of names, not {outputs!r}")
    if not outputs and not cut:
        return graph
    return between(graph, [start for start, _ in cut], [*outputs, *(end for _, end in cut)])


def portable(graph: Graph, writer: Writer) -> Graph:
    """A copy of a graph after the passes that are the same for every machine, but for what the
    format of `writer` has layers for."""
    return _passed(graph, writer, ("portable",))[0]


def optimized(
    graph: Graph, passes: str | None = None, writer: Writer | None = None
) -> tuple[Graph, list[Report]]:
    """A copy of a graph after the passes for files, but for what the format of `writer` (None: that
    of the graph's own file) has layers for; and what each stage did."""
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
