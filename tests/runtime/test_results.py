"""Memory of results is used again, and only when nothing refers to it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.runtime.results import KEPT, LEAST_BYTES, LINE, RunMemory

LARGE = LEAST_BYTES // 4


def kept(count: int = LARGE):
    """Memory, and what makes a result of so many elements there."""
    memory = RunMemory()
    return memory, memory.maker(0, (count,), np.dtype("float32"))


def place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_after_the_array_is_gone():
    memory, maker = kept()
    y = maker()
    at = place(y)
    assert at % LINE == 0 and y.shape == (LARGE,) and y.dtype == np.float32
    del y
    assert place(maker()) == at
    assert memory.kept_bytes == LARGE * 4


@pytest.mark.parametrize(
    "hold",
    [
        lambda y: y,
        lambda y: y[3:5],
        lambda y: y.reshape(2, -1).T,
        lambda y: y.view(np.uint8)[::2],
        lambda y: memoryview(y),
        lambda y: np.frombuffer(y, np.int32),
        lambda y: np.from_dlpack(y),
        lambda y: y.ctypes.data_as(ctypes.c_void_p),
        lambda y: [iter(y)],
    ],
)  # fmt: skip
def test_memory_that_is_referred_to_is_left_alone(hold):
    _, maker = kept()
    y = maker()
    at = place(y)
    held = hold(y)
    del y
    others = [maker() for _ in range(KEPT + 2)]
    places = {place(o) for o in others}
    assert at not in places and len(places) == len(others)
    del held
    assert place(maker()) == at


def test_what_is_kept_is_bounded():
    memory, maker = kept()
    held = [maker() for _ in range(KEPT + 5)]
    assert memory.kept_bytes == KEPT * LARGE * 4
    assert len({place(y) for y in held}) == len(held)


def test_small_results_are_not_kept():
    memory, maker = kept(LARGE - 1)
    assert maker().flags.owndata and memory.kept_bytes == 0


def test_a_net_never_writes_to_results_that_are_held():
    g = Graph("twice")
    x = g.input("x", Type("float32", (LARGE,)))
    g.outputs = [OPS["Add"](x, x)]
    net = ts.compile(g)
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(LARGE).astype(np.float32) for _ in range(6)]
    ys = [net(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(y, x + x)
    at = place(ys.pop())
    del y
    tail = net(xs[0])[-3:]
    again = net(xs[1])
    np.testing.assert_array_equal(tail, (xs[0] + xs[0])[-3:])
    np.testing.assert_array_equal(again, xs[1] + xs[1])
    assert at > 0
