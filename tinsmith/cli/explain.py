"""`tinsmith explain`: why a model is computed as it is."""

from __future__ import annotations

import click

from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, Build, assumed, assumption, build_options, sizes


@click.command(short_help="Say what was fused and why not, and which kernel won at what cost.")
@click.argument("model", type=MODEL)
@click.argument("node", required=False)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a free dimension.")
@build_options
@_show.json_option
def command(model: str, node: str | None, dims: tuple[str, ...], build: Build, json_: bool) -> None:
    """Say how MODEL is computed: passes, fusions, kernels; or all about one NODE.

    Free dimensions count as 1 unless --dim gives them a size. Nodes have the names that they have
    in the model; `tinsmith inspect MODEL --at placed` lists them.

    \b
    Examples:
      tinsmith explain model.onnx
      tinsmith explain model.onnx layer3.0.conv2
    """
    net = build.compile(model, dims).net
    unsaid = assumed(net.inputs, sizes(dims, net.inputs)) if build.backend == "cpu" else {}
    if json_:
        steps = [one.to_json() for one in net.explanations(node)]
        document = {"model": model, "node": node, "assumed": unsaid, "notes": net.notes}
        return _show.as_json(document | {"steps": steps})
    text = net.explain(node)
    return click.echo(f"assumed {assumption(unsaid)}\n\n{text}" if unsaid else text)
