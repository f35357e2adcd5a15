"""`tinsmith ncnnoptimize`: ncnn's own command of that name, with its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.cli._files import layers_in
from tinsmith.cli._model import MODEL
from tinsmith.cli.optimize import Changed, print_changes

SEED = 7767517
"""The seed of random weights, which is ncnn's."""
HALVES = ("1", "65536")
"""Values of FLAG that write weights as float16; all others write float32."""
RANDOM = "null"
"""The value of INBIN for random weights."""


@click.command(short_help="ncnn's own command: the same arguments, more rewrites, more guards.")
@click.argument("inparam", type=MODEL)
@click.argument("inbin")
@click.argument("outparam", type=click.Path(dir_okay=False))
@click.argument("outbin", type=click.Path(dir_okay=False))
@click.argument("flag", default="0")
@click.argument("cutstart", required=False)
@click.argument("cutend", required=False)
@_show.json_option
def command(
    inparam: str, inbin: str, outparam: str, outbin: str, flag: str, cutstart: str | None,
    cutend: str | None, json_: bool,
) -> None:  # fmt: skip
    """Write an ncnn model as `ncnnoptimize` does, for scripts that call it.

    \b
    INBIN               the weights, or 'null': they are drawn at random
    FLAG                1 or 65536 writes weights as float16, anything else (0) as float32
    CUTSTART, CUTEND    names of layers: only these two and what lies between in the file is
                        written; what it reads from outside becomes an input

    \b
    Examples:
      tinsmith ncnnoptimize in.param in.bin out.param out.bin 65536
      tinsmith ncnnoptimize in.param null out.param out.bin 0
      tinsmith ncnnoptimize in.param in.bin head.param head.bin 0 conv5 prob
    """
    from tinsmith.compiler.write import optimized
    from tinsmith.formats.ncnn.pair import read_pair
    from tinsmith.frontends.ncnn.model import graph_of
    from tinsmith.writers.ncnn import write
    from tinsmith.writers.registry import check_out

    source: Any = inparam if inbin == RANDOM else (inparam, inbin)
    with _show.working(f"optimizing {inparam}"):
        file, layers, files = read_pair(source, SEED if inbin == RANDOM else None)
        check_out((Path(outparam), Path(outbin)), files)
        graph = graph_of(file, layers, files)
        if cutstart or cutend:
            graph = graph_of(file, between(graph, layers, cutstart, cutend), files)
        whole = layers_in(inparam)
        smaller, reports = optimized(graph)
        write(smaller, outparam, halves=flag in HALVES, weights=outbin)
    changed = Changed(graph, smaller, reports)
    changed.add_layers(whole, layers_in(outparam))
    written = {name: Path(name).stat().st_size for name in (outparam, outbin)}
    if json_:
        head = {"model": inparam, "written": outparam, "bytes": sum(written.values())}
        return _show.as_json({**head, **changed.row()})
    return print_changes(changed, written)


def between(graph: Any, layers: list[Any], start: str | None, end: str | None) -> list[Any]:
    """The layers of a file from that named `start` to `end`, preceded by an Input layer for each
    value that they read and do not compute; its shape is that in `graph`, if known. Raises
    UnknownName, UsageError."""
    from tinsmith.errors import UnknownName
    from tinsmith.formats.ncnn.param import Layer
    from tinsmith.frontends.ncnn.node import LETTERS

    names = [layer.name for layer in layers]
    for name in (start, end):
        if name and name not in names:
            raise UnknownName("layer", name, names)
    first = names.index(start) if start else 0
    last = names.index(end) if end else len(names) - 1
    if first > last:
        raise click.UsageError(f"the layer {start!r} comes behind {end!r}")
    kept = layers[first : last + 1]
    made = {blob for layer in kept for blob in layer.outputs}
    values = {v.name: v for v in graph.values()}
    opened: list[Any] = []
    for blob in dict.fromkeys(b for layer in kept for b in layer.inputs if b not in made):
        known = values.get(blob)
        dims = () if known is None else (known.shape or ())[1:]
        told = all(isinstance(d, int) for d in dims) and 0 < len(dims) < 5
        given = dict(zip(LETTERS[len(dims)], dims, strict=True)) if told else {}
        opened.append(Layer("Input", f"{blob}_input", [], [blob], given, {}))
    return [*opened, *kept]
