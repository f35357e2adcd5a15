"""Places of elements that are not zero, and slices that a condition selects."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.errors import DataError
from tinsmith.graph import Graph, Type
from tinsmith.kernels.selected import NUMBERS

RNG = np.random.default_rng(8)
DENSITIES = (0.0, 0.02, 0.5, 1.0)
SLICES = [((1,), 0), ((50,), 0), ((50,), None), ((7, 5), 0), ((7, 5), 1), ((7, 5), None)]
SLICES += [((2, 20, 3), -2), ((3, 2, 40), 2)]


def sparse(shape, density, dtype="float32"):
    values = RNG.integers(1, 100, shape) * (RNG.uniform(0, 1, shape) < density)
    return values.astype(dtype)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("shape", [(1,), (5,), (16,), (37,), (3, 7), (2, 3, 50), (1, 1, 4, 9, 2)])
def test_places(shape, density, target):
    check("NonZero", [sparse(shape, density)], kernel="places_by_parts", target=target)


@pytest.mark.parametrize("density", DENSITIES)
def test_places_of_many_parts(density):
    x = sparse((70, 901), density)
    x[:40] = 0
    for some in (x, x[::-1].copy()):
        choice = check("NonZero", [some], kernel="places_by_parts")
        assert choice.phases[0].tiles > 1


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", NUMBERS.split())
def test_places_in_every_type(dtype, target):
    check("NonZero", [sparse((3, 45), 0.3, dtype)], kernel="places_by_parts", target=target)


@pytest.mark.parametrize("target", levels())
def test_nan_is_not_zero_and_a_negative_zero_is(target):
    x = np.float32([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-45] * 7)
    check("NonZero", [x], kernel="places_by_parts", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("shape, axis", SLICES)
def test_slices(shape, axis, density, target):
    x = sparse(shape, 0.8)
    for short in (0, 1):
        condition = sparse((x.size if axis is None else shape[axis]) - short, density, "bool")
        if condition.size:
            check(
                "Compress", [x, condition], {"axis": axis}, kernel="compress_slices", target=target
            )


@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "bfloat16", "int64"])
def test_slices_in_every_type(dtype):
    x = sparse((4, 23), 0.9, Type(dtype, ()).dtype)
    check("Compress", [x, sparse(23, 0.5, "bool")], {"axis": 1}, kernel="compress_slices")


def test_slices_of_many_parts():
    x, condition = sparse((40_000, 3), 0.9), sparse(40_000, 0.3, "bool")
    choice = check("Compress", [x, condition], {"axis": 0}, kernel="compress_slices")
    assert choice.phases[1].tiles > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_plans(threads):
    """Between native nodes; what depends on the count comes after it."""
    g = Graph("g")
    x = g.input("x", Type("float32", (60, 700)))
    y = ops.Relu(ops.Sub(x, np.float32(50)))
    places = ops.NonZero(y)
    rows = ops.Compress(y, ops.Greater(ops.Reduce(y, np.int64([1]), kind="max", keepdims=False),
                                       np.float32(45)), axis=0)  # fmt: skip
    g.outputs = [places, ops.GatherND(y, ops.Transpose(places, perm=(1, 0))), rows, ops.Exp(y)]
    net = ts.compile(g, threads=threads)
    plain = ts.compile(g, backend="numpy")
    assert {"places_by_parts", "compress_slices"} <= {s.kernel for s in net.program().plan.steps}
    for density in DENSITIES:
        feed = sparse((60, 700), density)
        for got, want in zip(net(feed).values(), plain(feed).values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("op", ["NonZero", "Compress"])
def test_a_model_may_say_how_many_there_are(op):
    g = Graph("g")
    x = g.input("x", Type("float32", (2, 3)))
    c = g.input("c", Type("bool", (6,)))
    y = ops.NonZero(x) if op == "NonZero" else ops.Compress(x, c)
    y.type = Type(y.dtype, (*y.shape[:-1], 2))
    g.outputs = [ops.Neg(y)]
    net = ts.compile(g)
    assert {s.kind for s in net.program().plan.steps} == {"native"}
    feed = np.float32([[0, 0, 3], [4, 0, 0]])
    want = -np.array(np.nonzero(feed)) if op == "NonZero" else np.float32([-3, -4])
    np.testing.assert_array_equal(net(feed, feed.reshape(-1) != 0), want)
    with pytest.raises(DataError, match="gives 6, where 2 were planned"):
        net(np.ones((2, 3), np.float32), np.ones(6, bool))
