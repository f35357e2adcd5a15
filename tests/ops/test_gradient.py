"""The derivative of every operator that has a rule, against differences of its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS
from tinsmith.ops.gradient import derivatives

RULED = sorted(name for name in OPS if OPS[name].derivatives is not None)
SHAPES = {1: [((2, 3),)], 2: [((2, 3), (2, 3)), ((2, 3), (3,)), ((1, 3), (2, 1))]}
PRODUCTS = [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (1, 3, 4))]
CASES = [
    (name, shapes)
    for name in RULED
    for shapes in (PRODUCTS if name == "MatMul" else SHAPES[len(OPS[name].inputs)])
]


def graph_of(name: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[Graph, Value]:
    graph = Graph(name)
    inputs = [graph.input(f"x{i}", Type("float64", s)) for i, s in enumerate(shapes)]
    y = graph.add(OPS[name], *inputs, name="y").output
    return graph, y


def with_derivatives(graph: Graph, y: Value) -> Graph:
    def emit(op: str, *values: Any, **attrs: Any) -> Value:
        return graph.add(OPS[op], *values, **attrs).output

    graph.outputs = list(derivatives(graph, y, graph.inputs, emit))
    return graph


def test_there_are_rules() -> None:
    assert {"Add", "Mul", "Div", "Exp", "Tanh", "Relu", "MatMul"} <= set(RULED)


@pytest.mark.parametrize(("name", "shapes"), CASES, ids=lambda v: str(v).replace(" ", ""))
def test_derivatives(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [np.random.default_rng(i).uniform(0.5, 2, s) for i, s in enumerate(shapes)]
    got = ts.compile(with_derivatives(*graph_of(name, shapes)), backend="numpy").run(arrays)
    for k, g in enumerate(got):
        assert g.shape == shapes[k]
        for i in np.ndindex(g.shape):
            ends = []
            for move in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[k][i] += move
                ends.append(float(np.sum(OPS[name](*moved))))
            np.testing.assert_allclose(g[i], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_an_operator_without_a_rule_is_named() -> None:
    graph, y = graph_of("Erf", ((3,),))
    with pytest.raises(TypeRuleError, match=r"the derivative of Erf \('y'\) is not known"):
        with_derivatives(graph, y)
