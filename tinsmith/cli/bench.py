"""`tinsmith bench`: measure how fast a model is, as a whole and layer by layer."""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np

from tinsmith.cli import _show
from tinsmith.cli._facts import facts_of
from tinsmith.cli._model import MODEL, Build, Built, Given, Number, build_options, input_options
from tinsmith.errors import InputError, counted

MARKS = {50: "median_ms", 90: "p90_ms", 99: "p99_ms"}
"""Percentile -> its name in --json."""


@click.command(short_help="Measure a model: median, percentiles, and every layer.")
@click.argument("model", type=MODEL)
@input_options
@click.option(
    "--seconds",
    type=Number(1e6),
    default=2.0,
    show_default=True,
    help="How long to measure, at least.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Runs that do not count.",
)
@click.option("--repeat", type=click.IntRange(1), help="So many runs, rather than --seconds.")
@click.option("--layers/--no-layers", default=True, help="Measure every layer, too.")
@click.option("--runs", "every_run", is_flag=True, help="With --json: the time of every run, too.")
@build_options
@_show.json_option
def command(
    model: str,
    given: Given,
    seconds: float,
    warm_up: int,
    repeat: int | None,
    layers: bool,
    every_run: bool,
    build: Build,
    json_: bool,
) -> None:
    """Measure MODEL on random inputs (or INPUTS, as for `run`), warmed up.

    Of a layer, `share` is its part of the time, and `of peak` its part of the most operations that
    the threads which run could do in vectors, on elements of its types: of float32, or of bytes.
    For the whole model, each operation counts at its layer's peak. Operations are those of the
    direct algorithm: fast ones (Winograd's, Strassen's) do fewer, and matrix registers (AMX) more
    at once, so that a share may exceed 100%.

    \b
    Examples:
      tinsmith bench model.onnx
      tinsmith bench model.onnx --threads 2 --seconds 5 --no-layers
      tinsmith bench model.onnx --tune
      tinsmith bench model.onnx --dim batch=8 --json > result.json
    """
    try:
        built, fed = build.compile_for(model, given)
    except InputError as error:
        if every_run and given.inputs[:1] and given.inputs[0].isdecimal():
            n = given.inputs[0]
            error.add_note(
                f"--runs takes no number, so {n} is an input; --repeat {n} runs {n} times"
            )
        raise
    arrays = fed.arrays
    with _show.working("measuring"), fed.blamed():
        times = measure(built.net, arrays, seconds, warm_up, repeat)
    shapes = {
        n: list(a.shape) if isinstance(a, np.ndarray) else [len(a)] for n, a in arrays.items()
    }
    row = summary(built, build, times, arrays)
    profile = None
    if layers and built.net.has_programs:
        with _show.working("measuring the layers"):
            profile = built.net.profile(*arrays.values(), repeat=max(3, min(20, len(times))))
    if json_:
        document = {"model": model, "inputs": shapes} | row
        document["program"] = profile.program if profile else None
        document["layers"] = profile.to_json()["rows"] if profile else None
        return _show.as_json(document | ({"runs_ms": times} if every_run else {}))
    print_summary(row, shapes, built)
    if profile is not None:
        click.echo(f"\n{profile.text(_show.width())}")
    return None


def measure(
    net: Any, arrays: dict[str, Any], seconds: float, warm_up: int, repeat: int | None
) -> list[float]:
    """The milliseconds of each run: `repeat` runs, or (None) runs for `seconds`, at least three;
    after `warm_up` runs that do not count."""
    for _ in range(warm_up):
        net(**arrays)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < (repeat or 3) or (repeat is None and time.perf_counter() < end):
        start = time.perf_counter()
        net(**arrays)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def summary(
    built: Built, build: Build, times: list[float], arrays: dict[str, Any]
) -> dict[str, Any]:
    """The measurement, `times` in milliseconds, as plain data: entries of --json."""
    from tinsmith.compiler.options import machine_of
    from tinsmith.runtime.limits import peak
    from tinsmith.runtime.states import sizes_told

    marks = {name: float(np.percentile(times, p)) for p, name in MARKS.items()}
    graph = built.net.source()
    flops = facts_of(graph, sizes_told(built.net.inputs, arrays)).total_flops
    rate = flops / (marks["median_ms"] / 1e3)
    machine, threads = machine_of(build.target), build.threads_of(built.net)
    work = built.net.program_for(**arrays).plan.work if built.net.has_programs else {}
    work = work or {"float32": 1.0}
    peaks = {row: peak(machine, threads, row) for row in work}
    at_peak = sum(n / peaks[row] for row, n in work.items()) / sum(work.values())
    return {
        "threads": threads,
        "backend": build.backend,
        "target": str(machine),
        "runs": len(times),
        "min_ms": min(times),
        "mean_ms": float(np.mean(times)),
        **marks,
        "compile_ms": built.compile_ms,
        "flops": flops,
        "gflops": rate / 1e9,
        "memory": built.net.memory._asdict() if built.net.has_programs else None,
        "notes": built.net.notes,
        "peak_share": rate * at_peak,
        "peaks": {row: most / 1e9 for row, most in peaks.items()},
    }


def print_summary(row: dict[str, Any], shapes: dict[str, list[int]], built: Built) -> None:
    marks = f"p90 {_show.ms(row['p90_ms'])}, p99 {_show.ms(row['p99_ms'])}"
    shown = {
        "model": built.path,
        "inputs": ", ".join(f"{n} {s}" for n, s in shapes.items()),
        "machine": f"{row['target']}, {counted(row['threads'], 'thread')}",
        "median": _show.ms(row["median_ms"]),
        "spread": f"min {_show.ms(row['min_ms'])}, {marks}, {row['runs']} runs",
        "work": f"{_show.count(row['flops'])} operations, {row['gflops']:.1f} G a second, "
        f"{row['peak_share']:.0%} of the peak",
        "set up": f"compile {_show.ms(row['compile_ms'])}",
    }
    if built.net.has_programs:
        memory = built.net.memory
        shown["memory"] = f"{_show.size(memory.peak)} for activations, "
        shown["memory"] += f"{_show.size(memory.weights)} for weights, "
        shown["memory"] += f"{_show.size(memory.workspace)} of workspace, "
        shown["memory"] += f"{_show.size(memory.code)} of code"
    _show.pairs("", shown)
    for note in built.net.notes:
        click.echo(f"  note      {note}")
