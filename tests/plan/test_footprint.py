"""What a run goes through, and that kernels of small models are chosen for weights in caches."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

import tinsmith as ts
from tests.machines import machine_with
from tests.models import array, conv
from tinsmith import ops
from tinsmith.codegen.target import OURS
from tinsmith.graph import Graph, Type
from tinsmith.passes.manager import run_passes
from tinsmith.plan.footprint import EXPANDED, MIB, footprint
from tinsmith.plan.planner import make_plan

ZEN4 = machine_with("avx512", l3=32 << 20, peak=117e9, l2_bandwidth=79e9, l3_bandwidth=94e9,
    dram_bandwidth=32e9, dram_together=37e9,
)  # fmt: skip


def dense(layers: int, size: int = 1024) -> Graph:
    """Products of one row, of `size` by `size` weights a layer."""
    g = Graph("dense")
    y = g.input("x", Type(np.dtype("float32"), (1, size)))
    for k in range(layers):
        y = ops.Relu(ops.MatMul(y, g.const(array(size, size, seed=k), f"w{k}")))
    g.outputs = [y]
    run_passes(g, "machine")
    return g


def kernels_of(g: Graph) -> set[str]:
    return {s.kernel for s in make_plan(g, ZEN4).plan.steps}


def test_weights_are_streamed_as_they_are_where_caches_keep_them() -> None:
    assert kernels_of(dense(2)) == {"gemv_packed"}
    assert kernels_of(dense(20)) == {"gemv_narrow"}


def test_every_weight_and_the_two_largest_tensors_count() -> None:
    tensors = 2 * 4 * 1024
    assert footprint(dense(3)) == 3 * 4 * MIB + MIB > 3 * 4 * MIB + tensors  # in whole MiB
    assert footprint(dense(17)) == inf


@pytest.mark.parametrize(("k", "group", "times"), [(3, 1, EXPANDED), (1, 1, 1), (3, 512, 1)])
def test_windows_grow_where_winograd_may_be_used(k: int, group: int, times: int) -> None:
    g = Graph("windows")
    x = g.input("x", Type(np.dtype("float32"), (1, 512, 14, 14)))
    g.outputs = [ops.Relu(conv(g, x, 512, k, group=group))]
    run_passes(g, "machine")
    weights, tensors = 4 * 512 * (512 // group) * k * k * times, 4 * 512 * 14 * 14
    assert weights + tensors <= footprint(g) <= weights + 2 * tensors + 2 * MIB


def test_parts_of_blocks_count() -> None:
    g = Graph("block")
    x = g.input("x", Type(np.dtype("float32"), (1, 256, 14, 14)))
    y = ops.Relu(conv(g, x, 1024, 1))
    y = ops.Relu(conv(g, y, 1024, 3, seed=1, group=1024))
    g.outputs = [conv(g, y, 256, 1, seed=2)]
    whole = footprint(g)
    run_passes(g, "machine")
    assert "Block" in {n.op.name for n in g.nodes}
    assert 2 * MIB < footprint(g) <= whole


def test_weights_whose_shape_is_known_only_at_run_time_do_not_count() -> None:
    g = Graph("computed")
    x = g.input("x", Type(np.dtype("float32"), (1, 3, 5, 5)))
    dims = g.input("dims", Type(np.dtype("int64"), (4,)))
    w = ops.Reshape(g.const(array(4, 27), "w"), dims)
    g.outputs = [ops.Conv(x, w)]
    assert not w.type.is_static and footprint(g) == MIB
    y = ts.compile(g)(np.ones((1, 3, 5, 5), np.float32), np.array([4, 3, 3, 3]))
    assert y.shape == (1, 4, 3, 3)


def test_weights_come_the_faster_the_more_of_them_are_kept() -> None:
    rates = [replace(ZEN4, footprint=n * MIB).weights_rate() for n in (4, 16, 24, 40, 48)]
    assert rates == sorted(rates, reverse=True)
    memory = pytest.approx(ZEN4.dram_bandwidth)
    assert rates[0] == pytest.approx(ZEN4.l3_bandwidth) and rates[-1] == memory
    assert ZEN4.weights_rate() == memory  # of a model that nothing is known of
    assert ZEN4.weights_rate(2) == pytest.approx(ZEN4.dram_together / 2)
    small = replace(ZEN4, footprint=16 * MIB)
    assert small.weights_rate(growth=3) == memory and small.weights_rate(2) > ZEN4.dram_bandwidth
    assert replace(small, l3=8 * OURS).weights_rate() == small.weights_rate()
