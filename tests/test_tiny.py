"""The whole way in a few seconds: import, compile, run, compare. Run before each commit."""

from __future__ import annotations

import numpy as np

import tinsmith as ts
from tests.models import array, digits, residual
from tinsmith.ops.interpret import run_graph


def test_a_graph_runs_natively_and_right() -> None:
    graph = residual()
    x = array(1, 3, 12, 12)
    net = ts.compile(graph, cache=False)
    np.testing.assert_allclose(net(x), run_graph(graph, [x])[0], rtol=1e-4, atol=1e-6)
    assert all(s.kind != "reference" for s in net.program().plan.steps)


def test_the_example_runs_on_both_backends() -> None:
    x = array(2, 1, 8, 8)
    got = ts.compile(digits(), cache=False)(x)
    want = ts.compile(digits(), backend="numpy")(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
