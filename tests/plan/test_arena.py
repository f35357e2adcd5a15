"""Places in the arena where sizes are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith import formulas, ops
from tinsmith.graph import Graph, Type
from tinsmith.plan import planner


def test_what_all_tensors_would_take_is_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 14 tensors has a size of its own: the sum of these, which is only shown, would be
    longer than formulas may be."""
    places = planner.arena_of

    def arena_of(*args: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(formulas, "LONGEST", 30)
            return places(*args)

    monkeypatch.setattr(planner, "arena_of", arena_of)
    graph = Graph("pools")
    x = graph.input("x", Type("float32", (1, 4, "n")))
    pools = [ops.MaxPool(x, kernel=(k,), stride=(k,)) for k in range(2, 16)]
    graph.outputs = [ops.Concat(*[ops.GlobalPool(y, kind="max") for y in pools], axis=2)]
    net = ts.compile(graph, shapes="free", cache=False)
    for n in (60, 70):
        given = np.arange(4 * n, dtype=np.float32).reshape(1, 4, n)
        last = [n // k * k - 1 for k in range(2, 16)]
        np.testing.assert_array_equal(net(given), given[:, :, last])
    assert not net.notes
