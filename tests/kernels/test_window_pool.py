"""Pooling: clipped windows, counts, NaN, whole planes, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import normal
from tests.kernels.window_shapes import POOLS
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.ops import OPS


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS)
def test_max(name, target):
    shape, attrs = POOLS[name]
    x = normal(*shape) - 3  # mostly negative: a zero of the halo would win
    check("MaxPool", [x], attrs, kernel="pool_max", target=target, extra_halo=len(name) % 3)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("op, kernel", [("MaxPool", "pool_max"), ("AveragePool", "pool_average")])
def test_a_window_of_any_extent_takes_no_time_to_write(op, kernel, target):
    """Nearly all of it is padding; that is no reason to go through its taps one by one."""
    wide = 1 << 40
    attrs = {"kernel": (wide, wide), "pad": (wide // 2,) * 4}
    x = normal(1, 3, 6, 7)
    y = ts.compile(_pooled(op, x, attrs), kernels={op: kernel}, target=target, cache=False)(x)
    most = x.max((2, 3)) if op == "MaxPool" else x.mean((2, 3))
    np.testing.assert_allclose(y, np.broadcast_to(most[:, :, None, None], y.shape), rtol=1e-4)


def _pooled(op, x, attrs) -> Graph:
    g = Graph("pooled")
    g.outputs = list(g.add(OPS[op], g.input("x", Type(x.dtype, x.shape)), **attrs).outputs)
    return g


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("order", [0, 1])
def test_max_and_its_places(name, order, target):
    shape, attrs = POOLS[name]
    x = np.round(normal(*shape) * 2) - 3  # with ties
    attrs = {**attrs, "with_indices": True, "storage_order": order}
    check("MaxPool", [x], attrs, kernel="pool_places", target=target, extra_halo=len(name) % 3)


def test_places_of_nan_of_the_least_and_of_nothing():
    x = normal(1, 5, 4, 4)
    x[0, 0, 1, 1], x[0, 1], x[0, 2, 0, :2] = np.nan, -np.inf, [np.inf, np.nan]
    attrs = dict(kernel=(2, 2), stride=(2, 2), pad=(3, 3, 1, 1), with_indices=True)
    check("MaxPool", [x], attrs, kernel="pool_places")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("include", [False, True])
def test_average(name, target, include):
    shape, attrs = POOLS[name]
    attrs = {**attrs, "count_include_pad": include}
    x = normal(*shape) + 1
    check("AveragePool", [x], attrs, kernel="pool_average", target=target, extra_halo=1)


@pytest.mark.parametrize("target", levels())
def test_nan_and_infinity_win_where_the_reference_says(target):
    x = normal(1, 16, 8, 8)
    x[0, 3, 2, 2], x[0, 4, 5, 5], x[0, 5, 1, 1], x[0, 5, 1, 2] = np.nan, np.inf, -np.inf, np.nan
    attrs = dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    check("MaxPool", [x], attrs, kernel="pool_max", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS)
def test_nan_and_infinity_anywhere(name, target):
    shape, attrs = POOLS[name]
    x = normal(*shape)
    rng = np.random.default_rng(2)
    x[rng.random(shape) < 0.4] = -np.inf
    x[rng.random(shape) < 0.05] = np.nan
    check("MaxPool", [x], attrs, kernel="pool_max", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize(
    "shape", [(1, 16, 7, 7), (2, 19, 3, 5), (1, 70, 1, 1), (1, 33, 29), (2, 5, 3, 4, 5)], ids=str
)
def test_global(shape, kind, extra, target):
    x = normal(*shape) - 2
    check("GlobalPool", [x], {"kind": kind}, kernel="global_pool", target=target, extra_halo=extra)


@pytest.mark.parametrize("target", levels())
def test_epilogues(target):
    x, scale = normal(2, 19, 9, 8), ("const", normal(1, 19, 1, 1, seed=4))
    tail = [("Mul", scale), ("Add", normal(2, 19, 5, 4, seed=3)), ("Sigmoid",)]
    attrs = dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    for op, kernel in (("MaxPool", "pool_max"), ("AveragePool", "pool_average")):
        check(op, [x], attrs, kernel=kernel, target=target, epilogue=tail, extra_halo=1)
    tail = [("Mul", scale), ("Sigmoid",)]
    check("GlobalPool", [x], {}, kernel="global_pool", target=target, epilogue=tail)


@pytest.mark.parametrize(
    ("op", "attrs", "kernel", "why"),
    [
        ("MaxPool", dict(kernel=(2, 2), with_indices=True), "pool_max", "places"),
        ("GlobalPool", dict(kind="lp"), "global_pool", "kind is lp"),
    ],
)
def test_declines(op, attrs, kernel, why):
    site = site_of(one_node(op, [normal(1, 4, 4, 4)], attrs), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS[kernel].offer(site)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "shape", [(1, 40, 7, 9), (2, 19, 1, 1), (1, 8, 23), (1, 5, 2, 3, 4)], ids=str
)
def test_means_of_bytes(shape, kind, target):
    info = np.iinfo(kind)
    x = np.random.default_rng(4).integers(info.min, info.max, shape, endpoint=True).astype(kind)
    check("GlobalPool", (x,), {"dtype": "float32"}, kernel="global_pool", target=target)
