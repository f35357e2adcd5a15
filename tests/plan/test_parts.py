"""Parts that lie inside a whole: pads that cut may, pads that fill may not."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type

PADS = [(2, 0, 0, 0), (0, 0, 2, 0), (-2, 0, 2, 0), (2, 0, -3, 0), (-2, 0, -1, 0), (0, 1, 0, -1)]


@pytest.mark.parametrize("pads", PADS)
def test_pads_fill_what_lies_outside(pads: tuple[int, ...]) -> None:
    g = Graph("padded")
    x = g.input("x", Type("float32", (16, 50)))
    value = np.float32(-2.5)
    g.outputs = [ops.Pad(ops.Exp(x), np.array(pads), value, mode="constant")]
    given = np.random.default_rng(0).standard_normal((16, 50), np.float32)
    want = ts.compile(g, backend="numpy")(given)
    np.testing.assert_allclose(ts.compile(g, cache=False)(given), want, rtol=1e-5)
