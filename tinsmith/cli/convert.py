"""`tinsmith convert`: write a model in another format."""

from __future__ import annotations

import click

from tinsmith.cli import _show
from tinsmith.cli._files import Writing, print_files, writing_options
from tinsmith.errors import NotWritable
from tinsmith.graph import Graph


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

    def say(files: dict[str, int]) -> None:
        print_files(files)
        if passed and not canonical:
            click.echo("after the passes that are the same for every machine")

    writing.finish(graph, {"canonical": passed}, say, json_)


def as_it_is(writing: Writing, graph: Graph) -> bool:
    """Write the graph as it was imported. Return whether the format can express it."""
    try:
        writing.write(graph)
    except NotWritable:
        return False
    return True
