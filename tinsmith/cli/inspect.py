"""`tinsmith inspect`: say what is in a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.cli._facts import Facts, facts_of
from tinsmith.cli._formulas import formulas, given_by, row_of, with_formulas
from tinsmith.cli._model import DIM, DIM_HELP, MODEL, Build, build_options
from tinsmith.cli._sizes import assumed, assuming, assumption, signature_of, sizes
from tinsmith.compiler.carried import Carries, carries
from tinsmith.compiler.hints import free_dimensions
from tinsmith.errors import ReferenceFailed, TypeRuleError, told, warn
from tinsmith.runtime.free import SizedProgram

STAGES = ("imported", "canonical", "placed", "plan")


@click.command(short_help="Say what is in a model: inputs, outputs, operators, parameters, work.")
@click.argument("model", type=MODEL)
@click.option(
    "--at",
    type=click.Choice(STAGES),
    help="Print the model as text at this stage: as imported, after the portable passes, after "
    "this machine's passes too (what may be one kernel is one node), or as a plan of kernels and "
    "addresses. All but the first are for the sizes of --dim.",
)
@click.option("--dim", "dims", multiple=True, metavar=DIM, help=DIM_HELP)
@click.option(
    "--memory/--no-memory",
    default=None,
    help="Say where its memory goes, step by step; or plan no memory at all.",
)
@click.option(
    "--measure", is_flag=True, help="With --memory: run it on random inputs, and measure as well."
)
@click.option(
    "--values",
    is_flag=True,
    help="Show every value that a node gives, its sizes as formulas of the free dimensions.",
)
@build_options
@_show.json_option
def command(
    model: str,
    at: str | None,
    dims: tuple[str, ...],
    memory: bool | None,
    measure: bool,
    values: bool,
    build: Build,
    json_: bool,
) -> None:
    """Say what is in MODEL: inputs, outputs, operators, parameters, arithmetic, memory.

    Free dimensions count as 1 unless --dim gives them a size; as unknown where 1 does not fit. The
    sizes of outputs, and with --values of all that nodes give, are formulas of free dimensions;
    with --shapes free the memory of the program for all sizes is one, too.

    \b
    Examples:
      tinsmith inspect model.onnx
      tinsmith inspect model.onnx --dim batch=8
      tinsmith inspect model.onnx --shapes free --values
      tinsmith inspect model.onnx --at canonical | less
      tinsmith inspect model.onnx --memory --measure
    """
    if (measure and memory is False) or (at is not None and (memory or measure)):
        raise click.UsageError("--memory and --measure go with neither --no-memory nor --at")
    if memory or measure:
        return say_memory(model, dims, build, measure, json_)
    if at is not None:
        text, unsaid = stage_text(model, at, build, dims)
        if json_:
            return _show.as_json({"model": model, "stage": at, "assumed": unsaid, "text": text})
        if unsaid:  # the text itself can be read back
            click.echo(f"assumed {assumption(unsaid)}", err=True)
        return click.echo(text)
    with _show.working(f"reading {model}"):
        graph = build.load(model)
    types = types_of(graph)
    chosen = sizes(dims, types)
    with assuming(types, chosen):
        facts = facts_of(graph, chosen)
    planned = None if memory is False else planned_memory(model, build, dims, types)
    shaped = with_formulas(graph, chosen)
    code = carries(Path(model))
    if json_:
        rows = [row_of(v) for v in given_by(shaped or graph)] if values else None
        more = {"formulas": formulas(shaped), "values": rows, "code": code and code._asdict()}
        return _show.as_json(document(model, graph, facts, planned) | more)
    print_ports(shaped or graph, graph)
    shown = summary(graph, facts, planned)
    _show.pairs("", shown if code is None else {**shown, "code": code_text(code, list(types))})
    print_ops(facts)
    if values:
        click.echo()
        shapes = [(v.name, str(v.type)) for v in given_by(shaped or graph)]
        _show.table("", ["value", "type"], shapes, left=["type"])
    return None


def say_memory(model: str, dims: tuple[str, ...], build: Build, measure: bool, json_: bool) -> None:
    """Print the report of --memory, for the sizes of --dim; with `measure`, of a run, too."""
    import numpy as np

    import tinsmith as ts
    from tinsmith.compiler.hints import sized
    from tinsmith.compiler.verify import draw

    net = build.compile(model, dims).net
    if not net.has_programs:
        raise click.BadParameter("only generated code has a plan", param_hint="--backend")
    chosen = sizes(dims, net.inputs)
    arrays = None
    if measure:
        random = np.random.default_rng(0)
        arrays = {n: draw(n, sized(t, chosen), random) for n, t in net.inputs.items()}
    with assuming(net.inputs, chosen), _show.working("measuring" if measure else "planning"):
        report = ts.memory_report(net, arrays)
    unsaid = assumed(net.inputs, chosen)
    if json_:
        return _show.as_json({**report.to_json(), "model": model, "assumed": unsaid})
    click.echo(str(report))
    if unsaid:
        click.echo(f"assumed {assumption(unsaid)}")
    return None


def stage_text(
    model: str, stage: str, build: Build, dims: tuple[str, ...]
) -> tuple[str, dict[str, int]]:
    """The model's text at a stage, and by name the sizes that it has for free dimensions to which
    the user gave none."""
    if stage in ("placed", "plan"):
        net = build.compile(model, dims).net
        sized = build.backend == "cpu"
        return net.graph(stage), assumed(net.inputs, sizes(dims, net.inputs)) if sized else {}
    graph = build.load(model)
    types = types_of(graph)
    chosen = sizes(dims, types)
    if stage == "imported":
        return str(graph), {}
    sized = all(t.shape is not None for t in types.values())
    text = canonical_text(graph, build, types, chosen)
    return text, assumed(types, chosen) if sized else {}


def canonical_text(graph: Any, build: Build, types: dict[str, Any], chosen: dict[str, int]) -> str:
    """The text of the canonical graph, for the chosen sizes (1 for others); sizes stay free if an
    input may have any rank."""
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.options import Options, machine_of

    options = Options(kernels=build.kernels, passes=build.passes or "")
    made = Compilation(graph, machine_of(build.target), options, not build.no_cache)
    if any(t.shape is None for t in types.values()):
        return str(made.canonical)
    with assuming(types, chosen):
        return str(made.canonical_for(signature_of(graph.name, types, chosen)))


def types_of(graph: Any) -> dict[str, Any]:
    return {v.name: v.type for v in graph.inputs}


def planned_memory(
    model: str, build: Build, dims: tuple[str, ...], types: dict[str, Any]
) -> dict[str, Any] | None:
    """The planned memory as plain data, in bytes, and its `formula` or None. None where there is no
    plan, or, with a warning, where the user chose no sizes and the model does not fit sizes of
    1."""
    try:
        net = build.compile(model, dims).net
        if not net.has_programs:
            return None
        found = net.memory
    except (TypeRuleError, ReferenceFailed) as error:
        if dims or not free_dimensions(types):
            raise
        warn(f"no memory is planned: {told(error)}")
        return None
    program = net.program()
    text = program.free.memory_at(program) if isinstance(program, SizedProgram) else None
    return {**{name: int(nbytes) for name, nbytes in found._asdict().items()}, "formula": text}


def print_ports(graph: Any, own: Any) -> None:
    """Print the inputs and outputs: outputs of `graph`, whose types may have formulas, inputs of
    `own`, the model as it is."""
    rows = [("input", v.name, str(v.type)) for v in own.inputs]
    rows += [("output", v.name, str(v.type)) for v in graph.outputs]
    _show.table("", ["", "name", "type"], rows, left=["name", "type"])


def summary(graph: Any, facts: Facts, planned: dict[str, Any] | None) -> dict[str, str]:
    """Titles and texts about nodes, parameters, arithmetic and memory."""
    kinds = ", ".join(f"{_show.count(n)} {name}" for name, n in facts.by_dtype.most_common())
    shown = {
        "graph": graph.name or "unnamed",
        "nodes": str(facts.nodes),
        "parameters": f"{kinds or 'none'} ({_show.size(facts.parameter_bytes)})",
        "arithmetic": f"{_show.count(facts.total_flops)} operations a run",
    }
    if facts.assumed:
        shown["assumed"] = assumption(facts.assumed)
    if facts.unsized:
        shown["arithmetic"] += f", without {facts.unsized} nodes of unknown shape"
    if planned:
        size = {name: _show.size(n) for name, n in planned.items() if name != "formula"}
        shown["memory"] = (
            f"{size['peak']} for activations (lower bound {size['lower_bound']}, without sharing "
            f"{size['naive']}), {size['weights']} for weights, {size['workspace']} of workspace, "
            f"{size['code']} of code"
        )
        if planned["formula"]:
            shown["at once"] = (
                f"{planned['formula']} bytes of activations, for all sizes near these"
            )
    return shown


def code_text(code: Carries, inputs: list[str]) -> str:
    """Describe the programs that a .tin file claims to carry. `inputs`: names of the inputs."""
    if not code.ours:
        return "of another version of Tinsmith"
    shapes = [
        ", ".join(f"{n} {'-' if d is None else list(d)}" for n, d in zip(inputs, s, strict=False))
        for s in code.signatures
    ]
    return f"for {code.target.rpartition('|')[2]}, {'; '.join([*shapes, *code.takes])}"


def print_ops(facts: Facts) -> None:
    total = facts.total_flops or 1
    rows = [
        (name, n, _show.count(facts.flops[name]), f"{facts.flops[name] / total:.1%}")
        for name, n in sorted(facts.ops.items(), key=lambda item: (-item[1], item[0]))
    ]
    click.echo()
    _show.table("", ["operator", "nodes", "operations", "share"], rows)


def document(
    model: str, graph: Any, facts: Facts, planned: dict[str, Any] | None
) -> dict[str, Any]:
    """What --json prints about a model, without formulas, values and code."""
    return {
        "model": model,
        "graph": graph.name,
        "inputs": list(map(row_of, graph.inputs)),
        "outputs": list(map(row_of, graph.outputs)),
        "assumed": facts.assumed,
        "nodes": facts.nodes,
        "ops": dict(facts.ops),
        "parameters": facts.parameters,
        "parameter_bytes": facts.parameter_bytes,
        "flops": facts.total_flops,
        "flops_by_op": dict(facts.flops),
        "nodes_of_unknown_shape": facts.unsized,
        "memory": planned,
    }
