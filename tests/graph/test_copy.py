"""Copies of graphs."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from tests.models import GRAPHS
from tinsmith.graph import Graph, Type
from tinsmith.graph.text import format_graph, graph_weights
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


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_pickled_as_text_and_weights(name: str) -> None:
    graph = GRAPHS[name]()
    graph.meta["notes"] = ("one",)
    made = pickle.loads(pickle.dumps(graph))
    assert format_graph(made) == format_graph(graph) and made.meta == graph.meta
    weights = graph_weights(made)
    for key, array in graph_weights(graph).items():
        np.testing.assert_array_equal(weights[key], array)


def test_a_deep_copy_has_its_own_graphs_also_in_tuples() -> None:
    graph = Graph()
    node = graph.add(OPS["Relu"], graph.input("x", Type("float32", (3,))))
    node.attrs["bodies"] = (Graph("inner"), 1)
    inner, one = copy.deepcopy(graph).nodes[0].attrs["bodies"]
    assert one == 1 and inner.name == "inner" and inner is not node.attrs["bodies"][0]
