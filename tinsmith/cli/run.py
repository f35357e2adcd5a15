"""`tinsmith run`: run a model once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np

from tinsmith.cli import _show
from tinsmith.cli._classes import best, read_labels, scores_of
from tinsmith.cli._facts import changes_of
from tinsmith.cli._model import MODEL, Build, Built, Fed, Given, build_options, input_options
from tinsmith.errors import FileNameError, InputShapeError, ModelFileError, counted
from tinsmith.formats.csv import is_csv, write_csv
from tinsmith.formats.npz import KEYS, npz_path, parts, write_npz
from tinsmith.graph import shown as kind
from tinsmith.runtime.memory import owned

TOP, ROWS = 5, 16
"""Classes of a row that are shown, and rows."""


@click.command(short_help="Run a model on arrays, pictures or random numbers.")
@click.argument("model", type=MODEL)
@input_options
@click.option(
    "--labels", type=click.Path(exists=True, dir_okay=False), help="Class names, one a line."
)
@click.option(
    "--top", type=click.IntRange(1), help=f"How many classes to show; {TOP}, where nothing is said."
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    help="Write the outputs to this .npz, or the only one to this .csv.",
)
@click.option("--save-inputs", is_flag=True, help="With --save: write the inputs there, too.")
@build_options
@_show.json_option
def command(
    model: str, given: Given, labels: str | None, top: int | None, save: str | None,
    save_inputs: bool, build: Build, json_: bool,
) -> None:  # fmt: skip
    """Run MODEL once and say what came out, how long it took, and what was done to the graph.

    \b
    INPUTS, in the order of the model's inputs or as name=...:
      x.npy, data.npz   arrays; those of an .npz go to the inputs of their names, a lone one
                        without a name ('arr_0') where x.npy would
      x.csv             rows of numbers, in row-major order in the shape of the input
      cat.jpg           decoded, resized, scaled as --scale says; several, and nothing else
                        in order, make up a batch
      word.wav          PCM, from -1 to 1; nothing is resampled
      16000, [1,2]      numbers
      random, zeros     generated; what is not given is random

    Outputs that hold arrays are saved as several: of a list s, s[0], s[1], ...; of maps m, the
    table m of their numbers, and m.keys.

    Outputs that look like class scores, or have one for each of --labels, show their best classes;
    scores that are no probabilities go through softmax for that, which the output's line says.

    \b
    Examples:
      tinsmith run model.onnx
      tinsmith run digits.onnx seven.png --labels labels.txt
      tinsmith run resnet50.onnx cat.jpg --scale imagenet --labels imagenet.txt --top 3
      tinsmith run bert.onnx input_ids=ids.npy attention_mask=mask.npy --save out.npz
    """
    names = read_labels(Path(labels)) if labels else None
    target = Path(save) if save and is_csv(save) else npz_path(save) if save else None
    if target is not None and not target.parent.is_dir():
        raise ModelFileError(f"{str(target)!r} cannot be written: there is no such folder")
    if save_inputs and target is None:
        raise click.UsageError("--save-inputs needs --save FILE")
    if save_inputs and target is not None and is_csv(target):
        raise click.UsageError("--save-inputs needs --save FILE.npz: a .csv holds one array")
    built, fed = build.compile_for(model, given)
    arrays, notes = fed.arrays, fed.notes
    with _show.working("running"), fed.blamed():
        outputs, first, again = run_twice(built.net, arrays)
    shown = {n: describe(a, names, top or TOP) for n, a in outputs.items()}
    if not any("classes" in row for row in shown.values()):
        check_unused(shown, labels, names, top)
    if json_:
        _show.as_json(document(built, build, arrays, notes, shown, first, again))
    else:
        print_all(built, build, fed, shown, times(built, first, again))
    if target is not None:
        write(target, {**(arrays if save_inputs else {}), **outputs})
        if not json_:
            click.echo(f"saved   {target}")


def write(target: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to an .npz or .csv file. Raises FileNameError for several arrays in a .csv."""
    if not is_csv(target):
        write_npz(target, arrays)
    elif len(arrays) == 1:
        write_csv(target, *next(iter(arrays.items())))
    else:
        raise FileNameError(
            f"a .csv holds one array, and the outputs are {', '.join(arrays)}; name the file "
            f"{str(target.with_suffix('.npz'))!r}"
        )


def print_all(built: Built, build: Build, fed: Fed, shown: dict[str, Any], spent: str) -> None:
    """Print a run as text: its inputs (`fed`), its outputs (`shown`: name -> what `describe`
    says), its times (`spent`, from `times`), the changes of the graph and the notes of the net."""
    for name, array in fed.arrays.items():
        click.echo(f"input   {name}: {value_text(array)} from {fed.notes[name]}")
    for name, row in shown.items():
        print_output(name, row)
    threads = build.threads_of(built.net)
    click.echo(f"time    {spent}, {counted(threads, 'thread')}")
    click.echo(f"graph   {changes(built)}")
    for note in built.net.notes:
        click.echo(f"note    {note}")


def run_twice(net: Any, arrays: dict[str, Any]) -> tuple[dict[str, Any], float, float]:
    """The outputs of a first call, and the milliseconds of it and of a second: the first also makes
    the session."""
    start = time.perf_counter()
    outputs = dict(zip(net.output_names, map(owned, net.run(arrays)), strict=True))
    first = time.perf_counter()
    net.run(arrays)
    return outputs, (first - start) * 1e3, (time.perf_counter() - first) * 1e3


def check_unused(
    shown: dict[str, dict[str, Any]], labels: str | None, names: list[str] | None, top: int | None
) -> None:
    """Called where no output has class scores: raise InputShapeError if --labels (`labels`; the
    file's lines are `names`) or --top is given. `shown`: name of an output -> what `describe`
    says."""
    shapes = ", ".join(f"{n} {row['shape']}" for n, row in shown.items())
    if names:
        rows = (row["shape"] for row in shown.values())
        most = next((f", {s[1]} classes" for s in rows if s[1:] and s[1] != len(names)), "")
        raise InputShapeError(
            f"{len(names)} labels{most}: no output has rows of a finite score for each name in "
            f"{labels}: {shapes}"
        )
    if top:
        raise InputShapeError(
            f"--top {top} is for class scores, and no output looks like them: {shapes}; "
            "--labels FILE says what the classes are"
        )


def describe(array: Any, labels: list[str] | None, top: int) -> dict[str, Any]:
    """An output as plain data: type, range, and its `top` best classes where it has class scores,
    with names from `labels` (None: numbers). A map is described as a row of numbers; without
    `labels`, its keys are these."""
    if not isinstance(array, np.ndarray):
        return describe_held(array, labels, top)
    row: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub":
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        row["not_finite"] = int(numbers.size - finite.size)
        if finite.size:
            row |= {"min": finite.min(), "mean": finite.mean(), "max": finite.max()}
    scores = scores_of(array, labels)
    if scores is not None:
        row["softmax"] = scores.softmax
        row["classes"] = [best(p, labels, top) for p in scores.probabilities]
    elif 0 < array.size <= 8:
        row["values"] = array
    return row


def describe_held(value: Any, labels: list[str] | None, top: int) -> dict[str, Any]:
    """As `describe`, for a sequence, a map, or an empty optional."""
    held = parts("", value)
    kind = "map" if isinstance(value, dict) else "optional" if value is None else "sequence"
    row = {"dtype": kind, "shape": [] if value is None else [len(value)], "type": value_text(value)}
    if "" in held:
        keys = list(map(str, held[KEYS].tolist()))
        table = describe(np.atleast_2d(held[""]), labels or keys, top)
        row |= {n: v for n, v in table.items() if n not in row}
    elif sum(a.size for a in held.values()) <= 8:
        row["values"] = value
    return row


def value_text(value: Any) -> str:
    """An array as "float32[1, 3]", other values as "sequence[2] of float32"."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else kind(value)


def print_output(name: str, row: dict[str, Any]) -> None:
    line = f"output  {name}: {row.get('type') or row['dtype'] + str(row['shape'])}"
    if "type" in row and "values" in row:
        line += f" = {row['values']}"
    elif "values" in row:
        line += f" = {np.array2string(np.asarray(row['values']), precision=6, separator=', ')}"
    elif "min" in row:
        line += f", min {row['min']:.6g}, mean {row['mean']:.6g}, max {row['max']:.6g}"
    click.echo(f"{line}; its softmax:" if row.get("softmax") else line)
    if row.get("not_finite"):
        click.secho(f"        {row['not_finite']} of its elements are NaN or infinite", fg="yellow")
    print_classes(row.get("classes", []))


def print_classes(rows: list[list[dict[str, Any]]]) -> None:
    for i, classes in enumerate(rows[:ROWS]):
        if len(rows) > 1:
            click.echo(f"        [{i}]")
        width = max(len(c["label"]) for c in classes)
        for c in classes:
            click.echo(f"        {c['label']:<{width}}  {c['probability']:7.2%}")
    if len(rows) > ROWS:
        click.echo(f"        and {len(rows) - ROWS} more rows, which --json has")


def times(built: Built, first: float, again: float) -> str:
    parts = {"compile": built.compile_ms, "first run": first, "run": again}
    return ", ".join(f"{name} {_show.ms(value)}" for name, value in parts.items())


def changes(built: Built) -> str:
    """A text about the graph, its steps, and how often each pass changed something: "17 nodes
    became 6 steps, 1 of them in numpy; fold-constants 4, fuse-elementwise 3". Of a program that an
    earlier run stored it tells only the steps, of a net without programs only the nodes."""
    from tinsmith.kernels.select import REFERENCE

    if not built.net.has_programs:
        nodes = len(built.net.source())
        return f"{counted(nodes, 'node')}, as they are: the reference of each, in numpy"
    program = built.net.program()
    steps = [s for s in program.plan.steps if s.kind != "view"]
    others = Counter(s.kernel for s in steps if s.kind == "reference")
    slow = others.pop(REFERENCE, 0)
    text = counted(len(steps), "step") + (f", {slow} of them in numpy" if slow else "")
    text += "".join(f", {n} by {backend}" for backend, n in others.items())
    if program.stored:
        return f"{text}; compiled by an earlier run"
    did = ", ".join(f"{name} {n}" for name, n in changes_of(built.net.report).items())
    text = f"{counted(len(built.net.source()), 'node')} became {text}"
    return f"{text}; {did}" if did else text


def document(
    built: Built, build: Build, arrays: dict[str, Any], notes: dict[str, str],
    outputs: dict[str, Any], first: float, again: float,
) -> dict[str, Any]:  # fmt: skip
    """What --json prints. `changes` is None if an earlier run compiled the program."""
    stored = built.net.has_programs and built.net.program().stored
    return {
        "model": built.path,
        "threads": build.threads_of(built.net),
        "backend": build.backend,
        "inputs": {
            n: {"dtype": row["dtype"], "shape": row["shape"], "source": notes[n]}
            for n, row in ((n, describe(a, None, 1)) for n, a in arrays.items())
        },
        "outputs": outputs,
        "compile_ms": built.compile_ms,
        "first_ms": first,
        "run_ms": again,
        "stored": stored,
        "changes": None if stored else changes_of(built.net.report),
        "notes": built.net.notes,
    }
