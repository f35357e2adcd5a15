"""`tinsmith verify`: compare a model's outputs with what they should be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from tinsmith.backends import backends_of, is_whole
from tinsmith.cli import _show
from tinsmith.cli._files import DIFFERS
from tinsmith.cli._model import MODEL, Build, Given, Number, build_options, input_options
from tinsmith.cli._sizes import exact


@click.command(short_help="Compare with the reference, ONNX Runtime, or expected outputs.")
@click.argument("model", type=MODEL)
@input_options
@click.option(
    "--against",
    multiple=True,
    default=["reference"],
    metavar="WHAT",
    help="'reference' (numpy, the default), 'onnxruntime', an .npz of expected outputs by name, a "
    ".npy or .csv of the only one, or NAME=FILE, several times for several.",
)
@click.option(
    "--tolerance",
    type=Number(1e6),
    default=1e-3,
    show_default=True,
    help="Greatest error, relative to the greatest element of the output, or of each part of one "
    "that holds several arrays. Integers and text must be equal.",
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
    against: tuple[str, ...],
    tolerance: float,
    bisect: bool,
    save: str,
    build: Build,
    json_: bool,
) -> None:
    """Run MODEL in generated code, and compare every output with what it should be.

    Where an output differs, the first node that does is looked for, with everything before it as
    it is in the whole model; that node and its inputs are saved, to be run again. INPUTS are given
    as for `run`; with an .npz that names inputs too, those are taken: `run --save-inputs` writes
    such files. The exit code is 0 where all outputs agree, 3 where one differs.

    With --shapes free, and neither INPUTS nor sizes, the program for free sizes is compared at
    several: typical ones, 1, odd ones, and both ends of ranges.

    \b
    Examples:
      tinsmith verify model.onnx
      tinsmith verify model.onnx cat.jpg --scale imagenet --against onnxruntime
      tinsmith verify model.onnx --against expected.npz --tolerance 1e-4
      tinsmith verify model.onnx x.csv --against y.csv
      tinsmith verify model.onnx x.csv --against 'y[0,5]=channel5.csv'
      tinsmith verify model.onnx --shapes free --dim seq=1..2048
      tinsmith verify model.onnx --dim batch=4 --threads 2 --kernels Conv=conv_direct
    """
    import tinsmith as ts
    from tinsmith.compiler.expected import REFERENCE, expected_of, is_path
    from tinsmith.compiler.verify import were_random
    from tinsmith.formats.npz import whole

    if is_whole(backends_of(build.backend)):
        raise click.BadParameter("only generated code is verified", param_hint="--backend")
    what = compared_with(against)
    expected, source = expected_of(what)
    arrays = {n: v for n, v in expected.items() if not is_path(v)}
    types = {v.name: v.type for v in build.load(model).inputs}
    inputs = {n: value for n in types if (value := whole(n, arrays)) is not None}
    fed = given.read(types, {} if given.inputs else inputs, source)
    options = build.hinted(given.dims).options()
    sized = given.inputs or expected or exact(given.dims, types)
    several = build.shapes == "free" and what == REFERENCE and not sized
    with _show.working(f"verifying {model}"), fed.blamed():
        found = ts.verify(
            model,
            None if several else fed.arrays,
            against=what,
            tolerance=tolerance,
            bisect=bisect,
            save=save,
            seed=given.seed,
            **options,
        )
    if expected and fed.random and not found.ok:
        why = f"{were_random(fed.random)}: are the expected outputs those of other inputs?"
        found = replace(found, note=why)
    if json_:
        _show.as_json(found.to_json())
    else:
        click.echo(str(found))
    if not found.ok:
        sys.exit(DIFFERS)


def compared_with(against: tuple[str, ...]) -> str | dict[str, str]:
    """Parse --against: return the one word or file; for NAME=FILE, name of an output -> file."""
    from tinsmith.compiler.expected import ONNXRUNTIME, REFERENCE, meant

    alone = against[-1] in (REFERENCE, ONNXRUNTIME) or Path(against[-1]).exists()
    if len(against) == 1 and alone:
        return against[0]
    named: dict[str, str] = {}
    for text in against:
        name, equals, file = text.partition("=")
        path = file if equals else text
        if not Path(path).exists():
            raise click.BadParameter(
                f"{path!r} is no file; give '{REFERENCE}', '{ONNXRUNTIME}', an .npz of outputs, a "
                f".npy or .csv of one, or NAME=FILE.{meant(path)}",
                param_hint="--against",
            )
        if not equals or name in named:
            raise click.BadParameter(
                f"of several, each is NAME=FILE, and of another output than {text!r}",
                param_hint="--against",
            )
        named[name] = file
    return named
