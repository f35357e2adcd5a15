"""`memory="small"`, and what stays in memory while a model is compiled and after."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.models import GRAPHS, conv, feeds
from tinsmith import ops
from tinsmith.backends.cpu import Heap
from tinsmith.compiler import build
from tinsmith.errors import UnknownName
from tinsmith.graph import Array, Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.plan.pick import ALLOWANCE, GROWTH


def layers(channels: int = 128, depth: int = 2) -> Graph:
    """3x3 convolutions that Winograd's algorithm computes fastest, of several times the weights."""
    g = Graph("layers")
    y = g.input("x", Type("float32", (1, channels, 28, 28)))
    for i in range(depth):
        y = ops.Relu(conv(g, y, channels, 3, seed=2 * i))
    g.outputs = [y]
    return g


def own(graph: Graph) -> int:
    return sum(v.const.nbytes for v in graph.constants() if v.const is not None)


def test_small_weights_do_not_outgrow_the_model() -> None:
    graph = layers()
    fast, small = ts.compile(graph, cache=False), ts.compile(graph, cache=False, memory="small")
    assert fast.memory.weights > 1.5 * own(graph)
    assert small.memory.weights <= GROWTH * own(graph) + 2 * ALLOWANCE
    given = feeds(graph)
    (want,) = run_graph(graph, given)
    np.testing.assert_allclose(small(given["x"]), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
def test_small_programs_compute_the_same(name: str) -> None:
    graph = GRAPHS[name]()
    given = list(feeds(graph).values())
    net = ts.compile(graph, cache=False, memory="small")
    for got, want in zip(net.run(given), run_graph(graph, feeds(graph)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_memory_has_two_values() -> None:
    with pytest.raises(UnknownName, match="small"):
        ts.compile(layers(16, 1), memory="smal")


def test_weights_of_the_model_leave_before_those_of_the_program_come(monkeypatch) -> None:
    events: list[str] = []
    finish = Heap.finish

    def finished(room: Heap, nbytes: int) -> Array:
        events.append("come")
        return finish(room, nbytes)

    monkeypatch.setattr(build, "release", lambda weights: events.append("leave"))
    monkeypatch.setattr(Heap, "finish", finished)
    ts.compile(layers(16, 1), cache=False)
    assert events == ["leave", "come"]
