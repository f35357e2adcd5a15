"""Copies of graphs."""

from __future__ import annotations

import copy

import pytest

from tests.models import GRAPHS
from tinsmith.graph import Graph, Type
from tinsmith.graph.text import format_graph
from tinsmith.ops import OPS


@pytest.mark.parametrize("name", GRAPHS)
def test_a_deep_copy_is_a_graph_of_its_own(name: str) -> None:
    graph = GRAPHS[name]()
    text = format_graph(graph)
    made = copy.deepcopy(graph)
    assert format_graph(made) == text
    assert not set(made.nodes) & set(graph.nodes) and all(n.graph is made for n in made.nodes)
    made.outputs = []
    made.sweep()
    assert not made.nodes and format_graph(graph) == text


def test_a_deep_copy_has_its_own_graphs_also_in_tuples() -> None:
    graph = Graph()
    node = graph.add(OPS["Relu"], graph.input("x", Type("float32", (3,))))
    node.attrs["bodies"] = (Graph("inner"), 1)
    inner, one = copy.deepcopy(graph).nodes[0].attrs["bodies"]
    assert one == 1 and inner.name == "inner" and inner is not node.attrs["bodies"][0]
