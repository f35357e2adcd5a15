"""Pads that repeat elements of the input, blocked and plain."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.compiler.sections import laters_of
from tinsmith.graph import Graph, Type

rng = np.random.default_rng(0)
MODES = ("reflect", "edge", "wrap")


def r(*dims: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(dims) * 100).astype(dtype)


PADS = {
    "image": ((2, 19, 5, 7), (0, 0, 1, 2, 0, 0, 3, 1)),
    "wide": ((1, 3, 4, 5), (0, 0, 3, 4, 0, 0, 3, 4)),
    "cut": ((1, 17, 6, 6), (0, 0, -1, 2, 0, 0, 2, -3)),
    "height": ((1, 16, 6, 40), (0, 0, 2, 0, 0, 0, 0, 0)),
    "line": ((2, 5, 9), (0, 0, 4, 0, 0, 2)),
    "long rows": ((2, 3, 5, 40), (0, 0, 1, 9, 0, 0, 2, 35)),
    "volume": ((1, 6, 3, 2, 4), (0, 0, 1, 1, 2, 0, 0, 2, 0, 1)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PADS)
def test_images(name, mode, target):
    shape, pads = PADS[name]
    for pick in (0, 1):
        check(
            "Pad", (r(*shape), np.array(pads)), {"mode": mode}, kernel="pad_indexed", consts=(1,),
            pick=pick, target=target, extra_halo=pick, rtol=0,
        )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "float32"])
def test_channels_and_named_axes(dtype, mode):
    for length in (5, 70):
        arrays = (r(3, 4, length, dtype=dtype), np.array([1, 2, 2, 1]), None, np.array([-1, 0]))
        check("Pad", arrays, {"mode": mode}, kernel="pad_indexed", consts=(1, 3), rtol=0)


@pytest.mark.parametrize("first", [(18, 19, 0, 7), (30, 40, 2, 24)])
@pytest.mark.parametrize("second", [(30, 40, 2, 24), (9, 22, 1, 1)])
def test_amounts_that_a_call_tells_take_two_programs(first, second):
    """One for amounts of 0 where the first call has these, and one for all others, 0 included."""
    graph, rng = Graph("g"), np.random.default_rng(6)
    x, amounts = (
        graph.input("x", Type("float32", ("n", 3, "h", "w"))),
        graph.input("p", Type("int64", (8,))),
    )
    w = graph.const(rng.standard_normal((16, 3, 3, 3)).astype(np.float32))
    graph.outputs = [ops.Conv(ops.Pad(x, amounts), w, pad=(1, 1, 1, 1), stride=(2, 2))]
    net = ts.compile(graph.clone(), cache=False, shapes="free")
    reference = ts.compile(graph, backend="numpy")
    for h, w, below, right in (first, second, (31, 50, 0, 3), (20, 20, 0, 0),
                               (9, 22, 1, 1), (20, 23, 5, 0), (33, 21, 3, 1)):  # fmt: skip
        feed = {"x": rng.standard_normal((2, 3, h, w)).astype(np.float32),
                "p": np.array([0, 0, 0, 0, 0, 0, below, right])}  # fmt: skip
        np.testing.assert_allclose(net(**feed), reference(**feed), rtol=0, atol=1e-5)
    (part,) = laters_of(net.program())
    assert len(part.free.found) == 1 + (0 in first[2:])
