"""Gathers of neighbouring constant places become slices."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops


@pytest.mark.parametrize(
    "shape, axis, places, sliced",
    [
        ((3, 4, 5), 0, 1, True),
        ((1, 3, 4), 1, -1, True),
        ((3, 4), 0, [1, 2], True),
        ((3, 4), -2, [-2, -1], True),
        ((3, 4), 0, [2], True),
        ((3, 4), 0, [2, 1], False),
        ((3, 4), 0, [0, 2], False),
        ((3, 4), 0, [2, 0], False),
        ((3, 4), 1, 1, False),
        ((3, 4), 0, [[0, 1]], False),
        (("N", 4), 0, 0, False),
    ],
)
def test_places(shape, axis, places, sliced):
    b = Builder()
    x = b.x(*shape)
    g = b.out(ops.Tanh(ops.Gather(x, b.graph.const(np.array(places)), axis=axis)))
    check(g, "machine", spec="-fuse-elementwise")
    assert ("Gather" not in ops_of(g)) == sliced
