"""Bounds before a quantisation are dropped where what they cut off saturates, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.passes.quantise_early import undo
from tinsmith.rewrite import rewrite

X = np.array(
    [-np.inf, -1e30, -6, -0.02, -1e-9, -0.0, 0.0, 1e-9, 0.011, 2.99, 3, 5.9, 6, 6.02, 1e30, np.inf],
    np.float32,
)
SIX = np.float32(6 / 255)


def relu(x):
    return ops.Relu(x)


def relu6(x):
    return ops.Clip(x, min=0.0, max=6.0)


def least(x):
    return ops.Clip(x, min=-3.0)


@pytest.mark.parametrize("act, scale, zero, dropped", [
    (relu, SIX, np.uint8(0), True),
    (relu, SIX, np.int8(-128), True),
    (relu, SIX, None, True),
    (relu, SIX, np.uint8(1), False),
    (relu, SIX, np.int8(0), False),
    (relu6, SIX, np.uint8(0), True),
    (relu6, SIX, np.int8(-128), True),
    (relu6, np.float32(6.1 / 255), np.uint8(0), False),
    (relu6, np.float32(5.9 / 255), np.uint8(0), True),
    (relu6, SIX, np.uint8(3), False),
    (least, SIX, np.uint8(129), False),
    (least, SIX, np.uint8(127), True),
    (relu, np.array([SIX, SIX * 2], np.float32), np.zeros(2, np.uint8), False),
    (relu, np.float32(-0.02), np.uint8(0), False),
    (relu, SIX, np.uint16(0), False),
])  # fmt: skip
def test_bounds_go_where_bytes_saturate(act, scale, zero, dropped):
    graph = Graph("g")
    x = graph.input("x", Type("float32", (2, X.size)))
    numbers = [
        graph.const(np.asarray(scale)),
        None if zero is None else graph.const(np.asarray(zero)),
    ]
    graph.outputs = [ops.QuantizeLinear(act(x), *numbers, axis=0)]
    feed = np.stack([X, X[::-1]])
    want = run_graph(graph, [feed])
    assert rewrite(graph, undo).counts["unbounded"] == dropped
    np.testing.assert_array_equal(run_graph(graph, [feed])[0], want[0])
