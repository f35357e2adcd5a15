"""Rare operators as common ones: beyond the samples of the rules."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops
from tinsmith.graph import Type

ONLY = "-fuse-elementwise"


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("k", [None, -2, 0, 3, 9])
def test_triangles(k, upper):
    b = Builder()
    shift = None if k is None else b.c(k, np.int64)
    g = b.out(ops.Tanh(ops.Trilu(b.x(2, 3, 4), shift, upper=upper)))
    check(g, "machine", spec=ONLY)
    assert "Trilu" not in ops_of(g)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_one_hot(dtype, axis):
    b = Builder()
    indices = b.graph.input("i", Type(np.dtype(dtype), (2, 3)))
    values = b.graph.const(np.array([-1, 4], np.float32), "values")
    g = b.out(ops.OneHot(indices, b.c(3, np.int64), values, axis=axis))
    check(g, "machine", spec=ONLY)
    assert "OneHot" not in ops_of(g)


def test_indices_beyond_the_depth_select_nothing():
    b = Builder()
    values = b.graph.const(np.array([0, 1], np.float32), "values")
    g = b.out(
        ops.OneHot(b.graph.input("i", Type(np.dtype("int64"), (9,))), b.c(2, np.int64), values)
    )
    check(g, "machine")


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (-1, -2)])
def test_mean_variance_norm(axes):
    b = Builder()
    g = b.out(ops.MeanVarianceNorm(b.x(2, 3, 4, 5), axes=axes))
    check(g, "machine", spec=ONLY)
    assert "MeanVarianceNorm" not in ops_of(g)


@pytest.mark.parametrize("places", [[[0], [-1]], [[0, 1], [2, -2]], [2, 3, -5], [[[1, 2, 0]]]])
def test_places_of_tuples(places):
    b = Builder()
    g = b.out(ops.Tanh(ops.GatherND(b.x(3, 4, 5), b.graph.const(np.array(places)))))
    check(g, "machine", spec=ONLY)
    assert "GatherND" not in ops_of(g)


def test_batches_stay():
    b = Builder()
    places = b.graph.const(np.array([[1], [0]]))
    g = b.out(ops.GatherND(b.x(2, 3, 4), places, batch_dims=1))
    check(g, "machine", spec=ONLY)
    assert "GatherND" in ops_of(g)


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_places_of_elements(axis):
    b = Builder()
    places = b.graph.const(np.array([[0, -1], [1, 1], [-2, 0]]))
    g = b.out(ops.GatherElements(b.x(4, 3), places, axis=axis))
    check(g, "machine", spec=ONLY)
    assert "GatherElements" not in ops_of(g)


def test_sizes_that_are_not_known_stay():
    b = Builder()
    g = b.out(ops.Trilu(b.x("N", "N")))
    check(g, "machine", spec=ONLY)
    assert ops_of(g) == ["Trilu"]
