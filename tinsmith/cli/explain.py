"""`tinsmith explain`: say why a model is computed as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, Build, Given, build_options, input_options
from tinsmith.cli._sizes import assumed, assumption, sizes


@click.command(short_help="Say what was fused and why not, and which kernel won at what cost.")
@click.argument("model", type=MODEL)
@click.argument("node", required=False)
@input_options
@build_options
@_show.json_option
def command(model: str, node: str | None, given: Given, build: Build, json_: bool) -> None:
    """Say how MODEL is computed: passes, fusions, kernels; or all about one NODE.

    It is for the shapes of INPUTS, which are given as for `run`; without, free dimensions count as
    1 unless --dim gives them a size. Nodes have the names that they have in the model; `tinsmith
    inspect MODEL --at placed` lists them. What is a file, or name=..., is an input.

    \b
    Examples:
      tinsmith explain model.onnx
      tinsmith explain model.onnx layer3.0.conv2
      tinsmith explain model.onnx layer3.0.conv2 cat.jpg
    """
    if node is not None and ("=" in node or Path(node).exists()):
        node, given = None, replace(given, inputs=(node, *given.inputs))
    unsaid: dict[str, int] = {}
    if given.inputs:
        net = build.compile_for(model, given)[0].net
    else:
        net = build.compile(model, given.dims).net
        if build.backend == "cpu":
            unsaid = assumed(net.inputs, sizes(given.dims, net.inputs))
    if json_:
        steps = [one.to_json() for one in net.explanations(node)]
        program = net.program() if net.has_programs else None
        document = {
            "model": model,
            "node": node,
            "assumed": unsaid,
            "program": program.which if program else None,
            "takes": (program.takes or None) if program else None,
            "notes": net.notes,
        }
        return _show.as_json(document | {"steps": steps})
    text = net.explain(node)
    return click.echo(f"assumed {assumption(unsaid)}\n\n{text}" if unsaid else text)
