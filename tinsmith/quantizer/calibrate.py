"""Runs a graph on calibration data in generated code, and collects statistics of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tinsmith.compiler.compile import compile as compile_model
from tinsmith.graph import Array, Graph, Type
from tinsmith.graph.copy import with_outputs
from tinsmith.quantizer.data import Batch, Samples
from tinsmith.quantizer.statistics import Statistics

ROOM = 1 << 27
"""Bytes of all observed values of one batch, at most, unless one sample takes more. Estimated."""
BATCH = 32
"""Samples of a batch at most. Estimated: more is not faster."""


class Values:
    """Computes the values `names` of a graph batch by batch, on `threads` threads. `net` computes
    those that are no inputs of the graph (`inner`); None if there are none."""

    def __init__(self, graph: Graph, names: Sequence[str], threads: int) -> None:
        self.names = list(dict.fromkeys(names))
        given = {v.name for v in graph.inputs}
        self.inner = [n for n in self.names if n not in given]
        self.net = None
        if self.inner:
            own = with_outputs(graph, self.inner)
            own.sweep()
            self.net = compile_model(own, threads=threads, progress=False)

    def of(self, batch: Batch) -> dict[str, Array]:
        """Return name -> array of the values for one batch."""
        found: dict[str, Any] = {n: batch[n] for n in self.names if n in batch}
        if self.net is not None:
            arrays = {n: a for n, a in batch.items() if n in self.net.inputs}
            found |= dict(zip(self.inner, self.net.run(arrays), strict=True))
        return found


def observe(
    graph: Graph, axes: Mapping[str, int], samples: Samples, counts: bool, threads: int
) -> dict[str, Statistics]:
    """Return name -> statistics of a value over all samples. `axes`: name -> axis of its channels;
    `counts`: whether histograms are needed, which take a second pass. Raises CalibrationError
    if a value has NaN or infinity."""
    values = Values(graph, list(axes), threads)
    found = {name: Statistics(name, axis) for name, axis in axes.items()}
    steps: list[tuple[str, Callable[[Statistics, Array], None]]] = [("ranges", Statistics.look)]
    if counts:
        steps.append(("histograms", Statistics.count))
    for what, step in steps:
        for batch in samples.told(what):
            for name, x in values.of(batch).items():
                step(found[name], np.asarray(x))
    return found


def batch_for(graph: Graph, names: Iterable[str]) -> int:
    """Return the number of samples (1 to BATCH) with which the values `names` of one batch together
    take at most ROOM bytes."""
    wanted = set(names)
    each = sum(_bytes(v.type) for v in graph.values() if v.name in wanted)
    return int(np.clip(ROOM // max(each, 1), 1, BATCH))


def _bytes(type_: Type) -> int:
    """Return the bytes of a value as float32; unknown dims, as that of the batch, count as 1."""
    dims = [d if isinstance(d, int) else 1 for d in type_.shape or ()]
    return int(np.prod(dims, dtype=np.int64)) * 4
