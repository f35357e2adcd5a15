"""Operands of an element type that an operator does not take are refused by its type rule, never
inside a pass or a kernel that reads them as something else."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tinsmith as ts
from tests.ops.samples import Sample, load_samples
from tinsmith.errors import DataError, ReferenceFailed, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

CASES = {
    (s.op, len(s.inputs)): s
    for s in reversed(load_samples())
    if len(s.inputs) > 1 and not any(a is not None and a.dtype == object for a in s.inputs)
}


def graph_of(sample: Sample, at: int, dtype: str, constant: bool) -> tuple[Graph, list[np.ndarray]]:
    """The sample as a graph, its operand number `at` of another type. Raises TypeRuleError."""
    graph, feeds = Graph("g"), []
    inputs = []
    for i, array in enumerate(sample.inputs):
        a = array.astype(dtype) if i == at else array
        if a is None or (constant and i):
            inputs.append(None if a is None else graph.const(a, f"c{i}"))
        else:
            inputs.append(graph.input(f"x{i}", Type(a.dtype, a.shape)))
            feeds.append(a)
    graph.outputs = list(graph.add(OPS[sample.op], *inputs, **sample.attrs).outputs)
    return graph, feeds


@pytest.mark.parametrize("sample", CASES.values(), ids=str)
def test_operands_of_other_types_are_refused_or_computed(sample: Sample) -> None:
    places = [i for i, a in enumerate(sample.inputs) if a is not None]
    for at, dtype, constant in product(places, ("int64", "float16", "bool"), (False, True)):
        if sample.inputs[at].dtype == dtype:
            continue
        try:
            graph, feeds = graph_of(sample, at, dtype, constant)
            ts.compile(graph, cache=False)(*feeds)
        except (TypeRuleError, DataError, ReferenceFailed) as error:
            assert str(error)
