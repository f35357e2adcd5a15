"""Rare operators as common ones: beyond the samples of the rules."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, check, ops_of
from tinsmith import ops
from tinsmith.errors import DataError
from tinsmith.graph import Type
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes

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


def test_places_in_batches():
    b = Builder()
    places = b.graph.const(np.array([[1], [0]]))
    g = b.out(ops.GatherND(b.x(2, 3, 4), places, batch_dims=1))
    check(g, "machine", spec=ONLY)
    assert "GatherND" not in ops_of(g)


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


@pytest.mark.parametrize("upper", [True, False])
def test_triangles_from_a_computed_diagonal(upper):
    b = Builder()
    k = b.graph.input("k", Type(np.dtype("int64"), ()))
    g = b.out(ops.Trilu(b.x(3, 4), k, upper=upper))
    check(g, "machine", spec=ONLY)
    assert "Trilu" not in ops_of(g)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(axis):
    b = Builder()
    g = b.out(ops.Hardmax(b.x(3, 4, 2), axis=axis))
    check(g, "machine", spec=ONLY)
    assert "Hardmax" not in ops_of(g)


@pytest.mark.parametrize("order", [1, 2])
def test_lengths_along_other_axes(order):
    b = Builder()
    g = b.out(ops.LpNorm(b.x(2, 3, 4), axis=1, p=order))
    x = b.array(2, 3, 4)
    x[1, :, 2] = 0
    want = run_graph(g, [x])
    run_passes(g, "machine", spec=ONLY)
    assert "LpNorm" not in ops_of(g)
    np.testing.assert_allclose(run_graph(g, [x])[0], want[0], rtol=1e-6)


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diagonals_are_constants(k):
    b = Builder()
    g = b.out(ops.EyeLike(b.x(3, 4), k=k, dtype="int32"))
    check(g, "machine", spec=ONLY)
    assert ops_of(g) == ["Identity"]


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_batch_norm_with_the_statistics_of_the_batch(shape):
    b = Builder()
    x = b.x(*shape)
    axes = b.i(0, *range(2, len(shape)))
    mean = ops.Reduce(x, axes, kind="mean", keepdims=False)
    var = ops.Reduce(ops.Mul(x, x), axes, kind="mean", keepdims=False)
    g = b.out(ops.BatchNorm(x, b.w(3), b.w(3), mean, var))
    check(g, "machine", spec=ONLY)
    assert "BatchNorm" not in ops_of(g)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sizes", [(3, 4), (1, 5), (2, 3, 4)])
def test_affine_grid(sizes, aligned):
    b = Builder()
    size = b.i(2, 1, *sizes)
    g = b.out(ops.AffineGrid(b.x(2, len(sizes), len(sizes) + 1), size, align_corners=aligned))
    check(g, "machine", spec=ONLY)
    assert "AffineGrid" not in ops_of(g)


@pytest.mark.parametrize("larger", [False, True])
def test_unpooling(larger):
    b = Builder()
    shift = b.graph.input("i", Type(np.dtype("int64"), ()))
    places = ops.Reshape(ops.Add(b.i(5, 0, 3, 8, 18, 12), shift), b.i(1, 1, 2, 3))
    shape = b.i(1, 1, 5, 7) if larger else None
    g = b.out(ops.MaxUnpool(b.x(1, 1, 2, 3), places, shape, kernel=(2, 2), stride=(2, 2)))
    check(g, "machine", spec=ONLY)
    assert "MaxUnpool" not in ops_of(g)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("rest", [(), (3,), (2, 2)])
def test_reversed_sequences(rest, time, dtype):
    b = Builder()
    lens = b.graph.input("lens", Type(np.dtype(dtype), (4,)))
    shape = (5, 4) if time == 0 else (4, 5)
    g = b.out(ops.ReverseSequence(b.x(*shape, *rest), lens, time_axis=time, batch_axis=1 - time))
    check(g, "machine", spec=ONLY)
    assert "ReverseSequence" not in ops_of(g)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("op, gates", [(ops.RNN, 1), (ops.GRU, 3), (ops.LSTM, 4)])
def test_lengths_are_checked(op, gates, layout):
    b = Builder()
    n, t = (2, 5) if layout else (5, 2)
    lens = b.graph.input("lens", Type(np.dtype("int32"), (n if layout else t,)))
    w, r = b.c(np.ones((1, gates * 3, 3))), b.c(np.ones((1, gates * 3, 3)))
    g = b.out(op(b.x(n, t, 3), w, r, None, lens, layout=layout)[0])
    run_passes(g, "machine")
    (checked,) = (n for n in g.nodes if n.op.name == "Bounded")
    assert (checked.least, checked.most) == (0, 5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", [None, 1, -7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("op", [ops.NegativeLogLikelihoodLoss, ops.SoftmaxCrossEntropyLoss])
def test_losses(op, weighted, ignore, reduction):
    b = Builder()
    labels = b.graph.input("labels", Type(np.dtype("int64"), (4, 3)))
    weight = b.x(3, name="weight") if weighted else None
    g = b.out(op(b.x(4, 3, 3), labels, weight, ignore_index=ignore, reduction=reduction))
    check(g, "machine", spec=ONLY)
    assert not {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"} & set(ops_of(g))


def test_an_ignored_label_does_not_spread_what_lies_at_its_place():
    b = Builder()
    labels = b.graph.const(np.array([0, 1]), "labels")
    x = b.graph.input("x", Type(np.dtype("float32"), (2, 2)))
    loss = ops.NegativeLogLikelihoodLoss(x, labels, ignore_index=0, reduction="sum")
    g = b.out(loss)
    run_passes(g, "machine", verify=True)
    (y,) = run_graph(g, [np.array([[np.inf, 0], [0, 3]], np.float32)])
    assert y == -3


def test_labels_out_of_range_are_an_error():
    b = Builder()
    labels = b.graph.input("labels", Type(np.dtype("int64"), (2,)))
    net = ts.compile(b.out(ops.NegativeLogLikelihoodLoss(b.x(2, 3), labels)), cache=False)
    assert {s.kind for s in net.program().plan.steps} <= {"native", "view"}
    with pytest.raises(DataError, match="out of range"):
        net(x=np.zeros((2, 3), np.float32), labels=np.array([0, 3]))
