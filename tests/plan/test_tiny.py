"""Programs that are not worth dividing are planned for one thread as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from tinsmith import ops
from tinsmith.codegen.target import host
from tinsmith.graph import Graph, Type
from tinsmith.passes import run_passes
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.planner import make_plan

RNG = np.random.default_rng(3)


def tiny(kind: str) -> Graph:
    g = Graph(kind)
    if kind == "conv":
        x = g.input("x", Type("float32", (1, 8, 12, 12)))
        w = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
        y = ops.Relu(ops.Conv(x, w, pad=(1, 1, 1, 1)))
    elif kind == "matmul":
        x = g.input("x", Type("float32", (16, 32)))
        y = ops.MatMul(x, RNG.standard_normal((32, 48)).astype(np.float32))
    elif kind == "softmax":
        x = g.input("x", Type("float32", (24, 64)))
        y = ops.Softmax(x)
    else:
        x = g.input("x", Type("float32", (24, 128)))
        y = ops.Reduce(ops.Exp(x), np.array([1]), kind="sum")
    g.outputs = [y]
    run_passes(g, "portable")
    run_passes(g, "machine")
    return g


@pytest.mark.parametrize("kind", ["conv", "matmul", "softmax", "reduce"])
def test_what_is_not_worth_dividing_is_planned_for_one_thread(kind: str) -> None:
    alone, shared = (make_plan(tiny(kind), host(), PlanOptions(threads)) for threads in (1, 2))
    assert shared.plan.threads == 1
    assert str(shared.plan) == str(alone.plan)
    assert shared.codes == alone.codes
