"""Every engine on every model of the panel, side by side: `python -m benchmarks.panel`."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import machine, report
from benchmarks._main import (
    ENGINES,
    Names,
    bases_of,
    engines_of,
    engines_option,
    places_options,
    quantised_bases,
)
from benchmarks.measure import FLOAT, HALVES, OURS, Effort, Result, measure
from benchmarks.models import MODELS, OTHERS, PANEL
from benchmarks.places import Places

QUANTISED = ("onnxruntime", "openvino")
"""The peers that are given quantised models."""
IN_BFLOAT16 = (HALVES, FLOAT, "openvino bfloat16")
"""The engines of --bfloat16."""


@click.command()
@click.option("--models", type=Names(list(MODELS)), help="The panel where nothing is named.")
@click.option("--others", is_flag=True, help="Architectures beyond the panel instead.")
@click.option("--threads", type=Names([str(i) for i in range(1, 257)]), default="1,2")
@engines_option(ENGINES)
@click.option("--rounds", default=5, show_default=True, help="Turns of every engine.")
@click.option("--seconds", default=0.5, show_default=True, help="Length of one turn.")
@click.option("--tolerance", type=float, help="max|error| / max|output|: 1e-3; any where rounded.")
@click.option("--int8", is_flag=True, help="The models as NAME.u8s8 or NAME.dyn, and in float32.")
@click.option("--bfloat16", is_flag=True, help="In bfloat16, and in float32; OpenVINO alike.")
@places_options
def main(
    models: list[str] | None,
    others: bool,
    threads: list[str],
    engines: list[str],
    rounds: int,
    seconds: float,
    tolerance: float | None,
    int8: bool,
    bfloat16: bool,
    places: Places,
    out: Path | None,
) -> None:
    """Median times of Tinsmith and its peers, in fp32 at batch 1, with every output checked.

    Quantised models are compared with ONNX Runtime and OpenVINO, and with our own time for their
    float models. Peers may saturate sums there: outputs are compared, but every time counts.

    Exits with 1 where our own output is wrong or missing.
    """
    models = models or list(OTHERS if others else PANEL)
    bases = quantised_bases(models, places) if int8 else bases_of(models, places)
    if int8:
        engines = [OURS, FLOAT, *(e for e in engines if e in QUANTISED)]
    if bfloat16:
        engines = list(IN_BFLOAT16)
    if tolerance is None:
        tolerance = math.inf if int8 or bfloat16 else 1e-3
    pythons, effort = engines_of(engines, places), Effort(rounds, seconds)
    described, started = machine.describe(), time.strftime("%Y-%m-%d %H:%M")
    console, progress = report.screen(), Console(stderr=True)
    results: list[Result] = []
    settings: dict[str, Any] = {"date": started, "rounds": rounds, "seconds": seconds}
    with progress.status("starting") as status:
        for count in map(int, threads):
            for base in bases:
                row = measure([base], count, pythons, effort, tolerance, status.update)
                results += row
                _tell(row, progress)
                if out:
                    document = report.as_json(results, described, settings)
                    out.write_text(json.dumps(document, indent=1) + "\n")
    for count in map(int, threads):
        console.print(report.table(results, count))
    where = f"{described['cpu']}, {described['cores']} cores, "
    where += f"{described['peak_gflops']:.0f} GFLOP/s each"
    if int8:
        where += f", {described['peak_bytes_gops']:.0f} Gop/s of bytes"
    console.print(f"{where}; {_versions(results)}", soft_wrap=True)
    if any(r.engine in (OURS, HALVES) and not r.counts for r in results):
        sys.exit(1)


def _tell(row: list[Result], console: Console) -> None:
    parts = []
    for r in row:
        if r.failed:
            parts.append(f"{r.engine} failed")
            console.print(f"  {r.model}: {r.engine}: {r.failed}", markup=False, style="dim")
        else:
            parts.append(f"{r.engine} {r.median:.2f}{' WRONG' * r.wrong}{_distance(r)}")
    console.print(f"{row[0].model} {row[0].threads}T: {', '.join(parts)}", markup=False)


def _distance(r: Result) -> str:
    """How far outputs are apart, where any tolerance is allowed."""
    return f" ({r.error:.1e} apart)" if math.isinf(r.tolerance) else ""


def _versions(results: list[Result]) -> str:
    known = {r.engine: r.version for r in results if r.version}
    return ", ".join(f"{engine} {version}" for engine, version in known.items())


if __name__ == "__main__":
    main()
