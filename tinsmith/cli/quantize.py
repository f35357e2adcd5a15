"""`tinsmith quantize`: quantise a float model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tinsmith.cli import _show
from tinsmith.cli._files import files_of, print_files
from tinsmith.cli._model import INPUT_SHAPE, MODEL, RANDOM_WEIGHTS, Number
from tinsmith.cli._picture import PICTURES, SUFFIXES, Picture
from tinsmith.errors import CalibrationError, FileNameError
from tinsmith.graph import Graph

if TYPE_CHECKING:
    from tinsmith.quantizer.report import Quantized
    from tinsmith.quantizer.table import Applied

FILES = ("model", "out", "table", "random_weights", "input_shapes", "json_")
"""The parameters that may be given with --table."""


@click.command(short_help="Quantise a model: 8-bit integers, chosen by data.")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option(
    "--data",
    type=click.Path(exists=True),
    help="What calibrates: an .npz of arrays by input name, or a folder of .npy, .npz or pictures.",
)
@click.option(
    "--table",
    type=click.Path(exists=True, dir_okay=False),
    help="ncnn's calibration table, in the place of data: its layers compute in bytes as in ncnn.",
)
@click.option(
    "--method", default="minmax", show_default=True, help="How ranges are chosen: a method above."
)
@click.option("--per-tensor", is_flag=True, help="One scale for all weights of a layer.")
@click.option("--symmetric", is_flag=True, help="Activations without zero points, int8.")
@click.option(
    "--weight-bits", type=int, default=8, show_default=True, help="Bits of weights: 8, 7 or 4."
)
@click.option("--equalise/--no-equalise", default=True, help="Make ranges of channels equal first.")
@click.option("--correct/--no-correct", default=True, help="Let biases make up for shifted means.")
@click.option("--rounding", help="'nearest' or 'compensated'; 4 bits: the latter, by itself.")
@click.option("--products", is_flag=True, help="Quantise products of two computed matrices too.")
@click.option("--keep", multiple=True, metavar="NODE", help="A node that stays in float32.")
@click.option(
    "--max-drop",
    type=Number(100),
    metavar="POINTS",
    help="Points of accuracy that may be lost: what loses most stays in float32. Counts an array "
    "'labels' of the data, or else how often the greatest class changes; without classes, noise in "
    "percent of the signal.",
)
@PICTURES[0]
@PICTURES[1]
@RANDOM_WEIGHTS
@INPUT_SHAPE
@click.option("--threads", type=click.IntRange(1, 64), default=1, help="That calibrate.")
@_show.json_option
@click.pass_context
def command(
    context: click.Context, model: str, out: str, data: str | None, table: str | None,
    json_: bool, random_weights: int | None, input_shapes: dict[str, Any] | None, **options: Any,
) -> None:  # fmt: skip
    """Quantise MODEL by data, and write it to OUT: .onnx, .tin, or another format that can say it.

    Operators with weights compute with 8-bit whole numbers; --data tells which ranges the values
    between them have. The report says for each layer how many decibels its signal is above its
    noise, and how long it takes. Weights alone get fewer bits without data, by
    `tinsmith convert MODEL OUT --weights int8`, or int4.

    An OUT of ncnn (.param) computes as ncnn does in bytes; OUT.table has the scales alone, as
    ncnn's tool ncnn2table writes them. --table reads such a file in the place of data.

    \b
    Methods: minmax, average, percentile, kl (ncnn's), tensorrt, aciq, mse, entropy.
    \b
    Examples:
      tinsmith quantize model.onnx small.onnx --data calibration.npz
      tinsmith quantize model.onnx small.tin --data pictures/ --scale imagenet --max-drop 0.5
      tinsmith quantize model.onnx small.onnx --data calibration.npz --weight-bits 4
      tinsmith quantize model.param model.table --data pictures/ --method kl
      tinsmith quantize model.param small.param --table model.table
    """
    import tinsmith as ts
    from tinsmith.writers.registry import check_out, files_at, writer_of

    form = "ncnn" if _is_table(out) else writer_of(Path(out)).form
    if not form:
        raise FileNameError(
            f"the format of {out} has no quantised layers: .onnx, .tin, .param have"
        )
    if (data is None) == (table is None):
        raise click.UsageError("Give --data, or --table: one of the two.")
    graph = ts.load(model, random_weights=random_weights, input_shapes=input_shapes)
    check_out(files_at(Path(out)), graph.files)
    with _show.working(f"quantising {model}"):
        if table is not None:
            found = _by_table(context, graph, out, table)
        else:
            assert data is not None
            if not _is_table(out):
                _check_holds(graph, Path(out))
            found = _by_data(graph, data, form, _is_table(out), options)
        found.write(out)
    before, after = (sum(files_of(p).values()) for p in (model, out))
    if json_:
        told = found.to_json()
        return _show.as_json({"model": model, "written": out, "bytes": after, **told})
    click.echo(str(found))
    print_files(files_of(out))
    if not _is_table(out):
        click.echo(f"{after / before:.2f} of {model}")
    return None


def _check_holds(graph: Graph, out: Path) -> None:
    """Write the float model beside `out`, and delete it: raises NotWritable before the work."""
    from tempfile import TemporaryDirectory

    from tinsmith.quantizer.quantize import canonical_of
    from tinsmith.writers.registry import write

    with TemporaryDirectory(prefix=".", dir=out.parent) as folder:
        write(canonical_of(graph), Path(folder) / out.name)


def _is_table(out: str) -> bool:
    return Path(out).suffix == ".table"


def _by_data(
    graph: Graph, data: str, form: str, unchanged: bool, options: dict[str, Any]
) -> Quantized:
    """Quantise a model by data, for the file format `form`; `unchanged`: do not equalise
    weights."""
    import tinsmith as ts

    per_channel = not options.pop("per_tensor")
    picture = Picture(options.pop("scale"), options.pop("fit"))
    if unchanged:
        options["equalise"] = False
    samples, notes = _pictures(graph, Path(data), picture)
    found = ts.quantize(graph, samples or data, per_channel=per_channel, form=form, **options)
    return replace(found, notes=(*notes, *found.notes))


def _by_table(context: click.Context, graph: Graph, out: str, table: str) -> Applied:
    """Quantise a model by a calibration table. Raises click errors for options about data."""
    from tinsmith.quantizer.table import apply_table

    given = [
        p.opts[0]
        for p in context.command.params
        if p.name is not None and p.name not in FILES
        and context.get_parameter_source(p.name) is click.core.ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if given:
        raise click.UsageError(f"A table says all there is to say: leave {', '.join(given)} out.")
    if _is_table(out):
        raise click.UsageError("A table is no data that another could be made from.")
    return apply_table(graph, Path(table).read_text("utf-8", "replace"), table)


def _pictures(graph: Graph, data: Path, picture: Picture) -> tuple[list[Any], list[str]]:
    """The data for calibration from a picture or a folder: for each picture a function that reads
    it as the model's input, and the paths of .npy and .npz files; and notes on files that are not
    read. Nothing where there is no picture, or the model has several inputs. Raises
    CalibrationError for a folder of neither."""
    from tinsmith.quantizer.data import FILES, left_out

    files = sorted(data.iterdir()) if data.is_dir() else [data]
    shown = [f for f in files if f.suffix.lower() in SUFFIXES]
    arrays, single = [f for f in files if f.suffix in FILES], len(graph.inputs) == 1
    if data.is_dir() and not (arrays or (shown and single)):
        wanted = ".npy, .npz or pictures" if single else ".npz with an array for each input"
        raise CalibrationError(f"{data} holds no file that calibrates; what is read is {wanted}")
    if not shown or not single:
        return [], []
    (image,) = graph.inputs

    def read(file: Path) -> dict[str, np.ndarray[Any, Any]]:
        return {image.name: picture.read(file, image.type, image.name)}

    used = sorted(shown + arrays)
    notes = left_out(data, set(files).difference(used))
    return [partial(read, f) if f in shown else f for f in used], notes
