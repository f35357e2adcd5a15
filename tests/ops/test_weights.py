"""What operators say of their weights: each output channel adds up what `by_outputs` gives it."""

import numpy as np
import pytest

from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.ops._weights import by_outputs, from_outputs, weights_of

CASES = [
    ("Conv", (2, 6, 5, 4), (4, 3, 2, 3), {"group": 2}),
    ("Conv", (1, 3, 7), (5, 3, 1), {}),
    ("ConvTranspose", (2, 6, 5, 4), (6, 2, 2, 3), {"group": 3}),
    ("ConvTranspose", (1, 4, 3), (4, 5, 2), {}),
    ("MatMul", (7, 4), (4, 5), {}),
    ("MatMul", (3, 7, 4), (3, 4, 5), {}),
]


@pytest.mark.parametrize(("op", "x", "w", "attrs"), CASES)
def test_rows_are_output_channels(op, x, w, attrs):
    rng, graph = np.random.default_rng(0), Graph("weights")
    data, array = rng.standard_normal(x), rng.standard_normal(w)
    operator = OPS[op]
    y = operator(graph.input("x", Type("float64", x)), array, **attrs)
    node = y.producer
    rows = by_outputs(node, array)
    axis = weights_of(node).channels
    assert len(rows) == y.shape[axis]
    np.testing.assert_array_equal(from_outputs(node, rows, array.shape), array)
    np.testing.assert_array_equal(from_outputs(node, rows.reshape(len(rows), -1), w), array)
    one = rows.copy()
    one[1:] = 0  # what the first output adds up, and nothing else
    got = operator(data, from_outputs(node, one, array.shape), **attrs)
    want = operator(data, array, **attrs)
    np.testing.assert_allclose(got.take(0, axis), want.take(0, axis))
    assert not got.take(range(1, got.shape[axis]), axis).any()


def test_declared_inputs_exist():
    for op in map(OPS.__getitem__, OPS):
        if op.weights is not None:
            named = (*op.weights.inputs, *op.weights.data, op.weights.bias or 0)
            assert max(named) < len(op.inputs)
    assert ops.Relu.weights is None


@pytest.mark.parametrize(("field", "combine"), [("signs", np.multiply), ("powers", np.power)])
def test_declared_arithmetic_is_what_operators_compute(field, combine):
    """The sum of inputs with their signs, or the product of inputs with their powers."""
    declared = [op for op in OPS.rows() if getattr(op, field) is not None]
    assert declared
    for op in declared:
        arrays = [np.array([3.0, -1.5]), np.array([2.0, 0.5])][: len(getattr(op, field))]
        each = [combine(a, float(n)) for a, n in zip(arrays, getattr(op, field), strict=True)]
        wanted = sum(each) if field == "signs" else np.prod(each, axis=0)
        assert np.array_equal(op(*arrays), wanted), op.name
