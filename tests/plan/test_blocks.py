"""Whether a block runs as one kernel, or its nodes one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.block_cases import block_of_graph, graph_of
from tests.passes.build import feeds_of
from tinsmith.codegen.target import level
from tinsmith.errors import CodegenError, NoKernel
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.select import candidates
from tinsmith.plan import blocks
from tinsmith.plan.footprint import footprint
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.placement import Placement
from tinsmith.plan.planner import make_plan

TARGET = level("avx2")


def inverted(**more):
    return graph_of(**{"c": 16, "e": 48, "o": 24, "size": (12, 12), **more})


def kernels_of(graph, **options):
    built = make_plan(graph, TARGET, PlanOptions(**options))
    return [s.kernel for s in built.plan.steps if s.kind != "view"]


@pytest.mark.parametrize(
    ("ratio", "small", "together"),
    [(1.1, False, True), (0.99, False, False), (0.99, True, True), (0.8, True, False)],
)
def test_the_cost_model_decides(monkeypatch, ratio, small, together):
    graph = inverted()
    site = Placement(TARGET, PlanOptions()).site(block_of_graph(graph))
    cost = min(c.choice.cost for c in candidates(site) if c.choice)
    monkeypatch.setattr(blocks, "one_by_one", lambda placement, node: ratio * cost)
    assert ("conv_block" in kernels_of(graph, small=small)) == together


def test_one_by_one_adds_up_its_kernels():
    graph = inverted()
    target = replace(TARGET, footprint=footprint(graph))
    apart = blocks.one_by_one(Placement(target, PlanOptions()), block_of_graph(graph))
    steps = make_plan(graph, TARGET, PlanOptions(overrides={"conv": "conv_direct"})).plan.steps
    alone = [s for s in steps if s.kernel in ("conv_direct", "conv_depthwise")]
    assert len(alone) == 3 and apart <= sum(s.cost for s in alone) * 1.001


def test_what_leaves_the_cache_speaks_for_a_block():
    big = inverted(size=(224, 224), stride=2)
    assert "conv_block" in kernels_of(big)


@pytest.mark.parametrize("key", ["*", "Conv", "conv", "conv.1", "conv.2"])
def test_a_forced_node_is_placed_alone(key):
    graph = inverted(size=(224, 224), stride=2)
    names = [n.name for n in block_of_graph(graph).body.nodes]
    assert names == ["conv", "conv.1", "conv.2"]
    ran = kernels_of(graph, overrides={key: "reference"})
    assert "conv_block" not in ran and ran.count("reference") == (3 if key in "*Conv" else 1)


def test_a_block_can_be_forced_by_name():
    graph = inverted()
    assert "conv_block" in kernels_of(graph, overrides={"Block": "conv_block"})
    assert "conv_block" in kernels_of(graph, overrides={"conv.2": "conv_block"})


def test_forcing_what_declines_is_an_error(monkeypatch):
    graph, row = graph_of(c=4, e=8, o=4, size=(6, 6), finish="none"), KERNELS["conv_block"]
    monkeypatch.setattr(
        type(row), "offer", _declining(type(row).offer, "conv_block", why=Skip("declined here"))
    )
    with pytest.raises(NoKernel, match="declines"):
        make_plan(graph, TARGET, PlanOptions(overrides={"Block": "conv_block"}))


def test_without_the_kernel_blocks_are_placed_one_by_one(monkeypatch):
    row = KERNELS["conv_block"]
    monkeypatch.setattr(
        type(row), "offer", _declining(type(row).offer, "conv_block", why=Skip("declined here"))
    )
    graph = inverted(residual=True, o=16)
    feeds = feeds_of(graph)
    text = ts.compile(graph.clone(), cache=False)
    assert "conv_block                   shaped     -  declined here" in text.explain()
    want = ts.compile(graph, backend="numpy")(*feeds)
    np.testing.assert_allclose(text(*feeds), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("why", [Skip("declined here"), CodegenError("no such code")])
def test_nodes_without_kernels_of_their_own_are_told(monkeypatch, why):
    row, graph = KERNELS["conv_block"], inverted()
    apart = [k.name for k in KERNELS.rows() if k.op == "Conv"]
    monkeypatch.setattr(type(row), "offer", _declining(type(row).offer, *apart, why=why))
    verdict = blocks.judge(Placement(TARGET, PlanOptions()), block_of_graph(graph))
    assert verdict.together and "kernels of their own: conv: " in verdict.reason
    assert str(why) in verdict.reason


def _declining(offer, *names, why: Exception):
    def declined(kernel, site):
        if kernel.name in names:
            raise why
        return offer(kernel, site)

    return declined
