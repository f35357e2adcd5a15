"""`tinsmith explain`: why a model is computed as it is."""

from __future__ import annotations

import click

from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, Build, build_options


@click.command(short_help="Say what was fused and why not, and which kernel won at what cost.")
@click.argument("model", type=MODEL)
@click.argument("node", required=False)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a free dimension.")
@build_options
@_show.json_option
def command(model: str, node: str | None, dims: tuple[str, ...], build: Build, json_: bool) -> None:
    """Say how MODEL is computed: passes, fusions, kernels; or all about one NODE.

    Nodes have the names that they have in the model; `tinsmith inspect MODEL --at placed` lists
    them.

    \b
    Examples:
      tinsmith explain model.onnx
      tinsmith explain model.onnx layer3.0.conv2
    """
    text = build.compile(model, dims).net.explain(node)
    if json_:
        return _show.as_json({"model": model, "node": node, "text": text})
    return click.echo(text)
