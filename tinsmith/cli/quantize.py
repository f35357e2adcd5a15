"""`tinsmith quantize`: a float model with whole numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tinsmith.cli import _show
from tinsmith.cli._model import MODEL, Number
from tinsmith.cli._picture import SCALES, SUFFIXES, Picture
from tinsmith.graph import Graph


@click.command(short_help="Quantise a model: 8-bit integers, chosen by data.")
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(dir_okay=False))
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True),
    help="What calibrates: an .npz of arrays by input name, or a folder of .npy, .npz or pictures.",
)
@click.option(
    "--method", default="minmax", show_default=True, help="How ranges are chosen; see below."
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
    "'labels' of the data, or else how often the greatest class changes.",
)
@click.option("--scale", type=click.Choice(SCALES), default="unit", help="What pixels become.")
@click.option("--threads", type=click.IntRange(1, 64), default=1, help="That calibrate.")
@_show.json_option
def command(
    model: str, out: str, data: str, per_tensor: bool, scale: str, json_: bool, **options: Any
) -> None:
    """Quantise MODEL by data, and write it to OUT: .onnx, .tin, or another format that can say it.

    Operators with weights compute with 8-bit whole numbers; --data tells which ranges the values
    between them have. The report says for each layer how many decibels its signal is above its
    noise, and how long it takes. Weights alone get fewer bits without data, by
    `tinsmith convert MODEL OUT --weights int8`, or int4.

    \b
    Methods: minmax, average, percentile, kl (ncnn's), tensorrt, aciq, mse, entropy.
    \b
    Examples:
      tinsmith quantize model.onnx small.onnx --data calibration.npz
      tinsmith quantize model.onnx small.tin --data pictures/ --scale imagenet --max-drop 0.5
      tinsmith quantize model.onnx small.onnx --data calibration.npz --weight-bits 4
    """
    import tinsmith as ts
    from tinsmith.writers.registry import writer_of

    writer_of(Path(out))
    graph = ts.load(model)
    with _show.working(f"quantising {model}"):
        found = ts.quantize(
            graph,
            _pictures(graph, Path(data), scale) or data,
            per_channel=not per_tensor,
            **options,
        )
        found.write(out)
    sizes = [Path(p).stat().st_size for p in (model, out)]
    if json_:
        return _show.as_json({"model": model, "written": out, "bytes": sizes[1], **found.to_json()})
    click.echo(str(found))
    return click.echo(f"{out}: {_show.size(sizes[1])}, {sizes[1] / sizes[0]:.2f} of {model}")


def _pictures(graph: Graph, folder: Path, scale: str) -> list[Any]:
    """Functions that read the pictures of a folder, each as the input of a model."""
    if not folder.is_dir() or len(graph.inputs) != 1:
        return []
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
    (image,) = graph.inputs

    def read(file: Path) -> dict[str, np.ndarray[Any, Any]]:
        return {image.name: Picture(scale).read(file, image.type, image.name)}

    return [partial(read, file) for file in files]
