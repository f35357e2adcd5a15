"""Copies of graphs."""

from __future__ import annotations

import copy

import pytest

from tests.models import GRAPHS
from tinsmith.graph.text import format_graph


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
