"""The cost of waiting among threads: measured with the machine's peaks, nothing at one thread."""

from __future__ import annotations

import pytest

from tests.kernels.block_cases import block_of_graph, graph_of
from tests.machines import machine_with
from tinsmith.codegen.host import usable_cores
from tinsmith.codegen.target import level
from tinsmith.plan.blocks import one_by_one
from tinsmith.plan.options import PlanOptions
from tinsmith.plan.placement import Placement
from tinsmith.runtime.gauge import phase_of_two

SLOW = machine_with("avx2", wait=1e-3)


def test_one_thread_waits_for_nobody():
    placement = Placement(SLOW, PlanOptions(threads=2))
    assert placement.target.wait == 1e-3
    placement.share(1)
    assert placement.target.wait == 0.0 and placement.threads == 1
    assert placement.again(2).target.wait == 1e-3


def test_blocks_save_waits():
    node = block_of_graph(graph_of(c=16, e=48, o=24, size=(12, 12)))
    alone = one_by_one(Placement(SLOW, PlanOptions(1)), node)
    shared = one_by_one(Placement(SLOW, PlanOptions(2)), node)
    assert alone is not None and shared is not None
    assert shared - alone == pytest.approx(2e-3, rel=0.01)  # between its three convolutions


@pytest.mark.skipif(usable_cores() < 2, reason="one core")
def test_waits_are_measured():
    assert 1e-9 < phase_of_two(level("host")) < 1e-2
