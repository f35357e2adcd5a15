"""`tinsmith convert`: a model in another format."""

from __future__ import annotations

import sys

import click

from tinsmith.cli import _show
from tinsmith.cli._files import DIFFERS, Writing, print_differences, rows_of, writing_options
from tinsmith.errors import NotWritable


@click.command(short_help="Write a model in another format.")
@writing_options
@click.option(
    "--canonical",
    is_flag=True,
    help="Write it after the passes that are the same for every machine: constants folded, batch "
    "normalisations in weights.",
)
@_show.json_option
def command(writing: Writing, canonical: bool, json_: bool) -> None:
    """Write MODEL to OUT, whose ending says the format: .onnx, .tin, .param (ncnn), .pnnx.param.

    The graph is written as it was imported where the format can say that, else after the passes
    that are the same for every machine. What it cannot say even then is an error that names all of
    it, and nothing is written. `tinsmith optimize` writes a smaller one.

    \b
    Examples:
      tinsmith convert model.tin model.onnx
      tinsmith convert model.onnx model.param --weights fp16 --verify
      tinsmith convert model.onnx head.onnx --cut features scores
      tinsmith convert in.param out.param --random-weights 0
    """
    with _show.working(f"writing {writing.out}"):
        graph = writing.load()
        passed = canonical or not as_it_is(writing, graph)
        if passed:
            from tinsmith.compiler.write import portable

            writing.write(portable(graph, writing.writer))
    files, found = writing.written(), writing.compared(graph)
    if json_:
        _show.as_json(
            {
                "model": writing.model,
                "written": writing.out,
                "bytes": sum(files.values()),
                "canonical": passed,
                "differences": rows_of(found),
            }
        )
    else:
        for name, nbytes in files.items():
            click.echo(f"{name}: {_show.size(nbytes)}")
        if passed and not canonical:
            click.echo("after the passes that are the same for every machine")
        print_differences(writing, found)
    if not all(d.ok for d in found):
        sys.exit(DIFFERS)


def as_it_is(writing: Writing, graph: object) -> bool:
    """Write the graph as it was imported; whether the format can say it."""
    try:
        writing.write(graph)  # type: ignore[arg-type]
    except NotWritable:
        return False
    return True
