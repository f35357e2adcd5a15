"""`tinsmith verify`: is what comes out right?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tinsmith.backends import backends_of, is_whole
from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, Build, Given, Number, build_options, input_options

DIFFERS = 3
"""Exit code where an output differs."""


@click.command(short_help="Compare with the reference, ONNX Runtime, or expected outputs.")
@click.argument("model", type=MODEL)
@input_options
@click.option(
    "--against",
    default="reference",
    show_default=True,
    metavar="WHAT",
    help="'reference' (numpy), 'onnxruntime', or an .npz of expected outputs by name.",
)
@click.option(
    "--tolerance",
    type=Number(1e6),
    default=1e-3,
    show_default=True,
    help="Greatest error, relative to the greatest element of the output.",
)
@click.option("--bisect/--no-bisect", default=True, help="On a difference, find where it begins.")
@click.option(
    "--save",
    type=click.Path(file_okay=False),
    default="verify",
    show_default=True,
    help="Folder for the node that differs and its inputs.",
)
@build_options
@_show.json_option
def command(
    model: str,
    given: Given,
    against: str,
    tolerance: float,
    bisect: bool,
    save: str,
    build: Build,
    json_: bool,
) -> None:
    """Run MODEL in generated code, and compare every output with what it should be.

    Where an output differs, the first node that does is looked for, with everything before it as
    it is in the whole model; that node and its inputs are saved, to be run again. INPUTS are given
    as for `run`; with an .npz that names inputs too, those are taken. The exit code is 0 where
    all outputs agree, 3 where one differs.

    \b
    Examples:
      tinsmith verify model.onnx
      tinsmith verify model.onnx cat.jpg --scale imagenet --against onnxruntime
      tinsmith verify model.onnx --against expected.npz --tolerance 1e-4
      tinsmith verify model.onnx --dim batch=4 --threads 2 --kernels Conv=conv_direct
    """
    import tinsmith as ts
    from tinsmith.compiler.verify import ONNXRUNTIME, REFERENCE, expected_of

    if is_whole(backends_of(build.backend)):
        raise click.BadParameter("only generated code is verified", param_hint="--backend")
    if against not in (REFERENCE, ONNXRUNTIME) and not Path(against).exists():
        raise click.BadParameter(
            f"{against!r} is no file; give '{REFERENCE}', '{ONNXRUNTIME}' or an .npz of outputs",
            param_hint="--against",
        )
    graph = ts.load(model)
    expected, _ = expected_of(against)
    types = {v.name: v.type for v in graph.inputs}
    held = {} if given.inputs else {n: a for n, a in expected.items() if n in types}
    arrays, _ = given.read(types, held, against)
    options = build.options()
    with _show.working(f"verifying {model}"):
        found = ts.verify(
            model,
            arrays,
            against=against,
            tolerance=tolerance,
            bisect=bisect,
            save=save,
            **options,
        )
    if json_:
        _show.as_json(found.to_json())
    else:
        click.echo(str(found))
    if not found.ok:
        sys.exit(DIFFERS)
