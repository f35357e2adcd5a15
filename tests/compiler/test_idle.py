"""Kernels that are asked for in vain are noted, whether the program is compiled or stored."""

from __future__ import annotations

import numpy as np

import tinsmith as ts
from tests.models import conv
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS


def test_kernels_that_reach_no_node_are_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path))
    g = Graph("idle")
    x = g.input("x", Type(np.dtype("float32"), (1, 16, 8, 8)))
    y = g.add(OPS["Relu"], conv(g, x, 16, 3), name="after").output
    g.outputs = [y]
    path = tmp_path / "idle.tin"
    ts.save(g, path)
    for _ in range(2):  # compiled, and from the store
        net = ts.compile(path, kernels={"after": "reference", "Conv": "conv_direct"})
        net(np.zeros((1, 16, 8, 8), np.float32))
        assert [note for note in net.notes if "kernels: 'after' had no effect" in note]
        assert "'Conv'" not in "".join(net.notes)


def test_parts_that_run_later_have_kernels_of_their_own():
    g = Graph("later")
    x = g.input("x", Type(np.dtype("float32"), (4, 5)))
    where = OPS["Cast"](OPS["NonZero"](x), to="float32")
    g.outputs = [OPS["Exp"](where), g.add(OPS["Tanh"], x, name="after").output]
    net = ts.compile(g, cache=False, kernels={"after": "reference", "Exp": "reference"})
    net(np.eye(4, 5, dtype=np.float32))
    assert "no effect" not in "".join(net.notes)
