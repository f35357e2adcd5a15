"""Operators whose inputs do not fit each other: one size of one input is another than in a sample.

Every size of every input has a name of its own, so that no type says that they are equal: whatever
an operator needs of them, its rule must ask. Memory has guard pages.

python -m tests.fuzz.unequal 123      one sample, by its number
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import numpy as np

import tinsmith as ts
from tests.free import RANDOM, drawn
from tests.fuzz.base import Array
from tests.fuzz.judge import differ, outputs_of
from tests.guard import guarded
from tests.ops.samples import Sample, load_samples
from tinsmith.errors import TinsmithError, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

OPEN = [np.dtype(n) for n in ("float32", "int64", "int32", "uint8", "int8", "bool")]
MEGABYTES = 1024  # for `cage`


def samples() -> list[Sample]:
    """Those with two inputs or more, one for each operator, dtypes and ranks."""
    found: dict[tuple[object, ...], Sample] = {}
    for sample in load_samples():
        kinds = tuple(None if a is None else (a.dtype, a.ndim) for a in sample.inputs)
        if sum(map(_is_open, sample.inputs)) > 1 and sample.op not in RANDOM:
            found.setdefault((sample.op, kinds, str(sorted(sample.attrs))), sample)
    return list(found.values())


def _is_open(array: Array | None) -> bool:
    return array is not None and array.dtype in OPEN and array.ndim > 0


def model(sample: Sample) -> Graph:
    graph, values = Graph("unequal"), []
    for i, array in enumerate(sample.inputs):
        if array is None:
            values.append(None)
        elif _is_open(array):
            dims = tuple(f"d{i}_{a}" for a in range(array.ndim))
            values.append(graph.input(f"x{i}", Type(array.dtype, dims)))
        else:
            values.append(graph.const(array, f"c{i}"))
    graph.outputs = list(graph.add(OPS[sample.op], *values, **sample.attrs).outputs)
    return graph


def calls(sample: Sample) -> Iterator[dict[str, Array]]:
    """The sample's own arrays, then some with one size more, less, or of 1."""
    own = {f"x{i}": a for i, a in enumerate(sample.inputs) if _is_open(a)}
    yield own
    rng = np.random.default_rng(len(own))
    for name, array in own.items():
        for axis, size in enumerate(array.shape):
            for other in sorted({size + 1, max(size - 1, 0), 1} - {size}):
                shape = (*array.shape[:axis], other, *array.shape[axis + 1 :])
                yield {**own, name: drawn(rng, array, shape)}


def check(seed: int) -> str:
    found = samples()
    if seed >= len(found):
        return ""
    sample = found[seed]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            graph = model(sample)
        except TypeRuleError:  # it needs numbers
            return ""
        try:
            reference = ts.compile(graph, backend="numpy")
            with guarded("after"):
                net = ts.compile(graph, cache=False, shapes="free")
                for feeds in calls(sample):
                    wrong = judge(reference, net, feeds)
                    if wrong:
                        shapes = " ".join(f"{n}{list(a.shape)}" for n, a in feeds.items())
                        return f"{sample} at {shapes}: {wrong}"
        except TinsmithError as error:
            return f"{sample}: {type(error).__name__}: {error}"
    return ""


def judge(reference: ts.Net, net: ts.Net, feeds: dict[str, Array]) -> str:
    """What is wrong with a call, or "": what numpy refuses is refused, and nothing else computed.
    Type rules may refuse what numpy takes."""
    try:
        want = outputs_of(reference, feeds)
    except TinsmithError as error:
        try:
            outputs_of(net, feeds)
        except TinsmithError:
            return ""
        return f"not refused, but: {error}"
    try:
        got = outputs_of(net, feeds)
    except TinsmithError:
        return ""
    return next(filter(None, (differ(got[n], want[n]) for n in want)), "")


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(number, samples()[number], check(number) or "right")
