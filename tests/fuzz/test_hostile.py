"""Small models that ask for much are refused in words, or run, in little time and memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz.hostile import BUDGET, CASES, ONES, SECONDS
from tinsmith import budget
from tinsmith.errors import BudgetExceeded, OptionError, OutOfMemory, TinsmithError

WORDS = {
    "functions_that_call_the_next_twice": "BudgetExceeded: .* 2001 nodes, .*=nodes=4002 ",
    "a_constant_in_such_functions": "BudgetExceeded: .* of constants",
    "loops_in_loops": "BudgetExceeded: .* nodes",
    "constants_joined_with_themselves": "PlanError",
    "constants_joined_with_the_one_before": "PlanError",
    "text_joined_with_itself": "BudgetExceeded: .* for one array",
    "sparse_initializers": "BudgetExceeded: .* of constants",
    "a_pattern_that_tries_again": "ran",
    "a_pattern_of_many_states": "BudgetExceeded: .* states",
    "branches_in_branches": "ran",
}
"""What comes of some; of others, an error in words but none that says that memory was lacking."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What comes of each model, all of them within bounds of time and memory."""
    environment = {**os.environ, "TINSMITH_BUDGET": BUDGET, "TINSMITH_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.hostile"],
        env=environment, capture_output=True, text=True, timeout=SECONDS * 10,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-3000:]
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {name: said for name, _, said in rows}


@pytest.mark.parametrize("name", CASES)
def test_what_asks_for_much_is_refused_in_words(outcomes: dict[str, str], name: str) -> None:
    import re

    said = outcomes[name]
    assert re.match(WORDS.get(name, r"(?!ran|!|OutOfMemory|.*MemoryError)"), said), said


def test_limits_are_as_documented_and_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    assert budget.limit("nodes") == budget.LIMITS["nodes"]
    assert budget.limit("array") == (budget.machine_memory() or 0) // 2
    monkeypatch.setenv(budget.VARIABLE, " nodes = 1k , array=1.5G,")
    assert (budget.limit("nodes"), budget.limit("array")) == (1024, 3 << 29)
    assert budget.limit("constants") == budget.LIMITS["constants"]
    with pytest.raises(BudgetExceeded, match=r"^w: 1025 nodes, .*TINSMITH_BUDGET=nodes=2050 "):
        budget.check("nodes", 1025, "w")
    budget.check("nodes", 1024, "w")


@pytest.mark.parametrize("text", ["node=1", "nodes", "nodes=", "nodes=-1", "nodes=inf", "array=x"])
def test_limits_that_cannot_be_understood(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(budget.VARIABLE, text)
    with pytest.raises(OptionError, match="TINSMITH_BUDGET"):
        ts.load(CASES["a_declared_input"]()[0])


def test_what_a_budget_keeps_from_folding_stays_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz.hostile import X, Y, model, node

    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(4)]
    nodes += [node("Gather", ["c4", "i"], ["g"]), node("Add", ["x", "g"], ["y"])]
    weights = {"c0": np.arange(1 << 10, dtype=np.float32), "i": np.array(5)}
    made = model(nodes, [X], [Y], weights)
    free = ts.compile(ts.load(made), cache=False)
    assert "Concat" not in free.graph("placed")
    monkeypatch.setenv(budget.VARIABLE, "constants=10K")
    bound = ts.compile(ts.load(made), cache=False)
    assert "Concat" in bound.graph("placed")
    for net in (free, bound):
        np.testing.assert_array_equal(net(ONES), ONES + 5)


@pytest.mark.parametrize("where", ["load", "compile", "run"])
def test_where_memory_ends_an_error_of_our_own_comes(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError("nothing left")

    place = {
        "load": "tinsmith.frontends.onnx.model.import_model",
        "compile": "tinsmith.compiler.build.Compilation.place",
        "run": "tinsmith.runtime.session.Session._run",
    }[where]
    made, feeds = CASES["branches_in_branches"]()
    monkeypatch.setattr(place, none)
    with pytest.raises(OutOfMemory, match="nothing left") as caught:
        ts.compile(ts.load(made), cache=False)(**feeds)
    assert isinstance(caught.value, TinsmithError)
