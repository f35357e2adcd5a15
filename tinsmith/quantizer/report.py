"""The result of quantising, with its errors: layer by layer, and for the model's outputs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.compiler.compile import compile as compile_model
from tinsmith.compiler.loss import Noise, operators_alone, with_alone
from tinsmith.compiler.write import write
from tinsmith.errors import OptionError, TinsmithError, counted
from tinsmith.graph import Array, Graph
from tinsmith.quantizer.calibrate import Values
from tinsmith.quantizer.data import Samples
from tinsmith.quantizer.forms import table_of
from tinsmith.quantizer.scales import Scale
from tinsmith.quantizer.settings import Settings
from tinsmith.records import dataclass
from tinsmith.writers.registry import check_out, files_at

LOW = 10.0
"""Layers of fewer decibels are reported: their noise has more than a tenth of the signal's power.
Layers of 8 bits have 25 and more."""
RUNS = 5
"""Runs for the median times of layers. Estimated."""


@dataclass(frozen=True)
class Layer:
    """One operator in the report.

    decibels  signal-to-noise ratio of its result if its inputs are exact; NaN if `keep` names it
    float_ms, quantised_ms  milliseconds in the two models; None if it is no step of its own there
    kept      whether it stays in float32 because of `keep` or `max_drop`
    """

    name: str
    op: str
    decibels: float
    float_ms: float | None = None
    quantised_ms: float | None = None
    kept: bool = False

    @property
    def is_low(self) -> bool:
        return self.decibels < LOW and not self.kept


@dataclass(frozen=True)
class Judgement:
    """The comparison of a quantised model with the float one, over all data.

    outputs   output -> signal-to-noise ratio in decibels; NaN if it is no tensor of real numbers,
              or its shape differs between the models for some data
    accuracy  percentage of samples for which the first output's greatest class is the label's
    before    the same for the float model; like `accuracy` None without labels
    agreement percentage of samples for which both models have the same class; None without classes
    drop      percentage points lost: of accuracy, or of agreement without labels; without classes,
              the worst output's noise in percent of its signal; NaN if none is compared
    """

    outputs: Mapping[str, float]
    accuracy: float | None
    before: float | None
    agreement: float | None
    drop: float


@dataclass(frozen=True)
class Quantized:
    """A quantised model: `graph`, which `compile` and `write` take, and its errors. `exact` is the
    canonical float graph, with `equalised` pairs of layers equalised; `kept` names operators that
    stay in float32 because of `max_drop`; `notes` are remarks at the end of the report."""

    graph: Graph
    settings: Settings
    layers: tuple[Layer, ...]
    judgement: Judgement
    kept: tuple[str, ...]
    equalised: int
    notes: tuple[str, ...]
    exact: Graph
    scales: Mapping[str, tuple[Scale, Scale]]
    """Operator with one array of weights -> (scale of the weights, scale of its data)."""
    samples: int
    """How many were read, along the first axis."""

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the model in the format that the path's ending says; for `.table`, only the scales
        (`table`). Raises FileNameError for a file that the float model was read from."""
        check_out(files_at(Path(path)), self.exact.files)
        if Path(path).suffix == ".table":
            Path(path).write_text(self.table(), encoding="utf-8")
        else:
            write(self.graph, path)

    def table(self) -> str:
        """Return the scales as a calibration table of ncnn. Raises OptionError unless the model was
        quantised with form="ncnn" and equalise=False, so that the scales fit its own weights."""
        if self.settings.form != "ncnn" or self.settings.equalise:
            raise OptionError(
                "a calibration table has the scales of ncnn's layers with the weights that they"
                " have: quantise with form='ncnn' and equalise=False"
            )
        return table_of(self.scales)

    @property
    def low(self) -> tuple[Layer, ...]:
        """The layers of fewer than LOW decibels, without those `kept`."""
        return tuple(layer for layer in self.layers if layer.is_low)

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {
            "settings": asdict(self.settings),
            "layers": [asdict(layer) for layer in self.layers],
            **asdict(self.judgement),
            "kept": list(self.kept),
            "equalised": self.equalised,
            "low": [layer.name for layer in self.low],
            "notes": list(self.notes),
            "samples": self.samples,
        }

    def __str__(self) -> str:
        width = max([len("layer"), *(len(layer.name) for layer in self.layers)])
        lines = [f"{'layer':{width}} {'operator':12} {'dB':>6} {'float ms':>9} {'int ms':>9}"]
        for layer in self.layers:
            times = (layer.float_ms, layer.quantised_ms)
            shown = " ".join("        -" if t is None else f"{t:9.3f}" for t in times)
            what = "  stays float" * layer.kept or "  LOW" * layer.is_low
            ratio = f"{layer.decibels:6.1f}" if math.isfinite(layer.decibels) else "     -"
            lines.append(f"{layer.name:{width}} {layer.op:12} {ratio} {shown}{what}")
        lines.append(f"calibrated with {counted(self.samples, 'sample')}")
        found = self.judgement
        for name, ratio in found.outputs.items():
            other = "is not compared: no tensor of numbers, or of other sizes for some data"
            lines.append(
                f"output {name} {other}" if math.isnan(ratio) else f"output {name}: {ratio:.1f} dB"
            )
        if found.accuracy is not None:
            lines.append(f"accuracy {found.before:.2f} -> {found.accuracy:.2f} %")
        if found.agreement is not None:
            lines.append(f"the same class for {found.agreement:.2f} % of the samples")
        if self.low:
            lines.append(
                f"below {LOW:g} dB: {', '.join(layer.name for layer in self.low)}; keep them in "
                "float32, or give a budget (max_drop)"
            )
        return "\n".join([*lines, *self.notes])


def layers_of(exact: Graph, lossy: Graph, samples: Samples, threads: int) -> list[Layer]:
    """Measure every quantised operator of `lossy` (form "qdq") alone, on inputs from `exact`, over
    all samples; without times."""
    alone = operators_alone(exact, lossy)
    if not alone:
        return []
    graph = with_alone(exact, alone)
    net = compile_model(graph, threads=threads, progress=False)
    noise = [Noise() for _ in alone]
    for batch in samples.told("layers"):
        got = net.run({n: batch[n] for n in net.inputs})
        for j, one in enumerate(noise):
            one.add(got[2 * j], got[2 * j + 1])
    return [
        Layer(one.name, one.op, found.decibels) for one, found in zip(alone, noise, strict=True)
    ]


def judge(exact: Values, lossy: Values, samples: Samples, labels: Array | None) -> Judgement:
    """Compare the outputs of the quantised model (`lossy`) with the float model's, over all
    samples; with `labels`, one for each sample, also the accuracy of both."""
    names = exact.names
    noise = {n: Noise() for n in names}
    right = ideal = same = total = 0
    classes = False
    for batch in samples.told("outputs"):
        want, got = exact.of(batch), lossy.of(batch)
        for n, found in noise.items():
            if isinstance(want[n], np.ndarray) and want[n].dtype.kind not in "Oc":
                found.add(want[n], got[n])
            else:
                found.signal = math.nan
        first, lossy_first = want[names[0]], got[names[0]]
        classes = bool(classes_of(first) and classes_of(lossy_first))
        if not classes:
            continue
        a, b = (y.reshape(len(y), -1).argmax(axis=1) for y in (first, lossy_first))
        same += int((a == b).sum())
        if labels is not None:
            own = labels[total : total + len(b)]
            right += int((b == own).sum())
            ideal += int((a == own).sum())
        total += len(b)
    ratios = {n: f.decibels for n, f in noise.items()}
    if not classes or not total:
        worst = min((d for d in ratios.values() if not math.isnan(d)), default=math.nan)
        return Judgement(ratios, None, None, None, 100 * 10 ** (-worst / 20))
    if labels is None:
        return Judgement(ratios, None, None, 100 * same / total, 100 * (total - same) / total)
    accuracy, before, agreement = (100 * count / total for count in (right, ideal, same))
    return Judgement(ratios, accuracy, before, agreement, 100 * (ideal - right) / total)


def classes_of(y: Any) -> int:
    """Return the number of classes of an output that is scores, floats [N, classes], perhaps with
    further axes of size 1; 0 for others, such as sequences and maps."""
    if not isinstance(y, np.ndarray) or y.ndim < 2 or y.dtype.kind != "f" or not y.size:
        return 0
    most = max(y.shape[1:])
    return most if most > 1 and y.size == len(y) * most else 0


def timed(
    layers: Iterable[Layer], exact: Values, lossy: Values, samples: Samples, kept: Collection[str]
) -> tuple[Layer, ...]:
    """Return `layers` with the times of their steps in the float model (`exact`) and in the
    quantised one (`lossy`), on the first batch, and with `Layer.kept` set for the names `kept`."""
    batch = next(iter(samples))
    before, after = (_times(values, batch) for values in (exact, lossy))
    return tuple(
        replace(
            layer, float_ms=before.get(layer.name), quantised_ms=after.get(layer.name),
            kept=layer.name in kept,
        )
        for layer in layers
    )  # fmt: skip


def _times(values: Values, batch: Mapping[str, Array]) -> dict[str, float]:
    """Return name of a step or of its node in the model -> milliseconds; {} if the model cannot
    run, or computes nothing."""
    if values.net is None:
        return {}
    try:
        rows = values.net.profile(*[batch[n] for n in values.net.inputs], repeat=RUNS).rows
    except TinsmithError:  # a report without times is better than none
        return {}
    times = {row.name: row.ms for row in rows}
    for row in rows:  # an integer operator has another name; its origin names the model's node
        if named := re.search("'(.*?)'", row.origin):
            times.setdefault(named[1], row.ms)
    return times
