"""Code is generated while nodes are placed, but not before its layouts are final."""

from __future__ import annotations

import pytest

from tests.models import agree, array, conv
from tinsmith import ops
from tinsmith.backends.cpu import compile_placed
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.plan import place, planner
from tinsmith.plan.planner import make_plan

TARGET = level("avx2")
CHAIN = 6


def chain(late: str = "") -> Graph:
    """Pointwise convolutions, each of which reads the one before; then a `late` second reader of
    the first."""
    g = Graph("chain")
    first = y = conv(g, g.input("x", Type("float32", (1, 16, 9, 9))), 16, 1)
    for i in range(1, CHAIN):
        y = conv(g, y, 16, 1, seed=i)
    if late == "window":
        y = ops.Add(y, conv(g, first, 16, 3, seed=CHAIN))
    elif late == "concat":
        y = ops.Concat(first, y, axis=1)
    g.outputs = [y]
    return g


def course(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> list[str]:
    """Nodes by name as they are placed, and "code of" steps as it is generated."""
    found: list[str] = []
    node_placed, generate = place.place_node, planner._generate

    def placed(placement, node, results):
        found.append(node.name)
        node_placed(placement, node, results)

    def generated(step, state):
        found.append(f"code of {step.name}")
        generate(step, state)

    monkeypatch.setattr(place, "place_node", placed)
    monkeypatch.setattr(planner, "_generate", generated)
    make_plan(graph, TARGET)
    return found


def test_code_is_generated_before_all_nodes_are_placed(monkeypatch):
    graph = chain()
    found = course(monkeypatch, graph)
    first, *_, last = [n.name for n in graph.nodes]
    assert found.index(f"code of {first}") < found.index(last)


@pytest.mark.parametrize("late", ["window", "concat"])
def test_code_waits_for_the_last_reader_of_what_it_writes(monkeypatch, late):
    graph = chain(late)
    found = course(monkeypatch, graph)
    first = graph.nodes[0]
    reader = first.output.uses[-1].name
    assert found.index(f"code of {first.name}") > found.index(reader)


@pytest.mark.parametrize("late", ["window", "concat"])
def test_early_code_computes_the_same(late):
    graph = chain(late)
    x = array(*graph.inputs[0].dims, seed=7)
    program = compile_placed(graph, level("host"), cache=False).program
    agree(program.session().run([x])[0], run_graph(graph, [x])[0], 1e-4)
