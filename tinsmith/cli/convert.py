"""`tinsmith convert`: a model in another format."""

from __future__ import annotations

from pathlib import Path

import click

from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, as_batch


@click.command(short_help="Write a model in another format.")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option(
    "--canonical",
    is_flag=True,
    help="Write it after the passes that are the same for every machine: constants folded, batch "
    "normalisations in weights.",
)
@click.option(
    "--random-weights",
    type=click.IntRange(0),
    metavar="SEED",
    help="Draw the weights at random, of a format that has them in a file of their own.",
)
@click.option("--batch", metavar="[free|NAME|SIZE|none]", help="The batch, as for `tinsmith run`.")
@_show.json_option
def command(
    model: str,
    out: str,
    canonical: bool,
    random_weights: int | None,
    batch: str | None,
    json_: bool,
) -> None:
    """Write MODEL to OUT, whose ending says the format: .onnx, .tin, .param (ncnn), .pnnx.param.

    What the format cannot say is an error that names all of it, and nothing is written.

    \b
    Examples:
      tinsmith convert model.tin model.onnx
      tinsmith convert model.onnx smaller.onnx --canonical
      tinsmith convert in.param out.param --random-weights 0
    """
    import tinsmith as ts

    with _show.working(f"writing {out}"):
        graph = ts.load(model, random_weights=random_weights, batch=as_batch(batch))
        ts.write(graph, out, canonical=canonical)
    size = Path(out).stat().st_size
    if json_:
        return _show.as_json({"model": model, "written": out, "bytes": size})
    return click.echo(f"{out}: {size / 2**20:.1f} MiB")
