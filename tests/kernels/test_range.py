"""Ranges whose bounds are sizes that only a call tells."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import levels
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS


def ranges() -> Graph:
    """From the size of the first input on, as many as the second has, by steps of either."""
    g = Graph("ranges")
    a, b = (g.input(n, Type("float32", (n.upper(),))) for n in "ab")
    first, count = (OPS["Squeeze"](OPS["Shape"](v), np.array([0])) for v in (a, b))
    one, zero, three = (np.array(n, np.int64) for n in (1, 0, -3))
    end, far = OPS["Add"](first, count), OPS["Mul"](count, three)
    g.outputs = [
        OPS["Range"](first, end, one, name="on"),
        OPS["Range"](zero, far, three, name="down"),
        OPS["Range"](zero, OPS["Mul"](first, count), first, name="wide"),
    ]
    return g


@pytest.mark.parametrize("level", levels())
def test_ranges_of_sizes(level):
    net = ts.compile(ranges(), target=level, cache=False, shapes="free")
    for a, b in [(2, 3), (5, 2), (7, 33), (300, 17), (3, 64), (4, 1000)]:
        got = net(np.zeros(a, np.float32), np.zeros(b, np.float32))
        np.testing.assert_array_equal(got["on"], np.arange(a, a + b))
        np.testing.assert_array_equal(got["down"], np.arange(0, -3 * b, -3))
        np.testing.assert_array_equal(got["wide"], np.arange(0, a * b, a))
        assert all(y.dtype == np.int64 for y in got.values())
    program = net.program()
    assert program.is_sized
    assert {(s.kind, s.kernel) for s in program.plan.steps} == {("native", "range_sized")}
