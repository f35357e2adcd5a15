"""Free dimensions that the command line gives no size, or one that does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.cli.harness import parsed, tinsmith
from tinsmith import ops
from tinsmith.graph import Graph, Type


@pytest.fixture
def shorter(tmp_path: Path) -> Path:
    """Zeros, two fewer than the input has elements."""
    g = Graph("shorter")
    x = g.input("x", Type("float32", ("N",)))
    count = ops.Sub(ops.Shape(x), g.const(np.array([2]), "two"))
    g.outputs = [ops.Relu(ops.ConstantOfShape(count))]
    ts.save(g, tmp_path / "shorter.tin")
    return tmp_path / "shorter.tin"


def test_the_pass_is_named_that_met_a_size_that_does_not_fit(shorter: Path) -> None:
    said = tinsmith("inspect", shorter, "--at", "placed", "--dim", "N=1", code=1).stderr
    assert "ConstantOfShape" in said and said.endswith(
        "has a negative dim; in pass propagate-shapes\n"
    )


@pytest.fixture
def picked(tmp_path: Path) -> Path:
    """The fourth of the input's places, which only a reference can tell there is not."""
    g = Graph("picked")
    x = g.input("x", Type("float32", ("N",)))
    zero, one = g.const(np.array(0), "zero"), g.const(np.array(1), "one")
    places = ops.Range(zero, ops.Size(x), one)
    g.outputs = [ops.Add(x, ops.Cast(ops.Gather(places, g.const(np.array(3))), to="float32"))]
    ts.save(g, tmp_path / "picked.tin")
    return tmp_path / "picked.tin"


@pytest.mark.parametrize("name", ["shorter", "picked"])
def test_what_is_in_a_model_that_no_size_of_1_fits(
    name: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    got = tinsmith("inspect", model)
    assert "nodes of unknown shape" in got.stdout and "memory" not in got.stdout
    assert got.stderr.startswith("warning: no memory is planned: ")
    assert got.stderr.endswith("N counted as 1, which --dim N=SIZE changes\n")
    assert parsed("inspect", model)["memory"] is None
    whole = parsed("inspect", model, "--dim", "N=5")
    assert whole["nodes_of_unknown_shape"] == 0 and whole["memory"]["peak"] >= 0
    for chosen in ([], ["--dim", "N=1"]):
        tinsmith("inspect", model, "--at", "placed", *chosen, code=1)
    tinsmith("inspect", model, "--dim", "N=1", code=1)
