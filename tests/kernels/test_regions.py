"""Pooling over regions against the reference: sizes, modes, regions outside and turned round."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.free import compare
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.errors import DataError
from tinsmith.graph import Graph, Type

RNG = np.random.default_rng(7)
MODES = ["avg", "max"]
WAYS = [{"mode": "avg"}, {"mode": "max"}, {"mode": "avg", "cut": True}]
SHAPES = [((1, 1, 1, 1), 1, (1, 1)), ((1, 3, 8, 9), 4, (2, 3)), ((2, 16, 7, 5), 3, (7, 7)),
          ((3, 37, 6, 11), 5, (1, 4)), ((1, 140, 5, 6), 2, (3, 2))]  # fmt: skip


def regions(shape, count, spread=1.4):
    """Regions inside and outside of the pictures, some of them turned round."""
    height, width = shape[2:]
    ends = RNG.uniform(1 - spread, spread, (count, 4)) * [width, height, width, height]
    return ends.astype(np.float32), RNG.integers(0, shape[0], count)


def pooled(x, rois, pictures, size, target="host", **attrs):
    attrs |= {"output_height": size[0], "output_width": size[1]}
    check("RoiAlign", [x, rois, pictures], attrs, kernel="roi_align", target=target, extra_halo=1)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("shape, count, size", SHAPES)
def test_shapes(shape, count, size, ratio, way, target):
    x = RNG.standard_normal(shape).astype(np.float32)
    rois, pictures = regions(shape, count)
    pooled(x, rois, pictures, size, target, **way, sampling_ratio=ratio)
    rois = np.concatenate([np.minimum(rois[:, :2], rois[:, 2:]),
                           np.maximum(rois[:, :2], rois[:, 2:])], axis=1)  # fmt: skip
    pooled(x, rois, pictures - shape[0], size, target, **way, sampling_ratio=ratio)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ratio", [0, 2])
def test_scales_without_a_shift(ratio, mode, target):
    x = RNG.standard_normal((2, 5, 9, 9)).astype(np.float32)
    rois, pictures = regions((2, 0, 36, 36), 9)
    pooled(x, rois, pictures, (2, 2), target, mode=mode, sampling_ratio=ratio,
           spatial_scale=0.25, coordinate_transformation_mode="output_half_pixel")  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_far_larger_than_the_picture_and_without_extent(ratio, way):
    x = RNG.standard_normal((1, 4, 6, 7)).astype(np.float32)
    rois = np.array([[-300, -500, 400, 700], [2, 2, 2, 2], [-1, -1, -1, 7], [1e3, 1e3, 2e3, 2e3],
                     [0.5, 0.5, 6.5, 5.5], [6, 5, 7, 6], [-1e6, -1e5, 1e5, 2e6], [0, -4e5, 5, 4e5],
                     [1, 1, 1e10, 3], [-3e38, 1, 3, 1e20]], np.float32)  # fmt: skip
    pooled(x, rois, np.zeros(10, np.int32), (2, 3), **way, sampling_ratio=ratio)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("way", WAYS)
def test_a_region_that_is_not_finite_is_refused(way, backend):
    x = Graph("far")
    values = [x.input("x", Type("float32", (1, 4, 6, 7))), x.input("r", Type("float32", (2, 4)))]
    x.outputs = [ops.RoiAlign(*values, x.const(np.zeros(2, np.int64), "i"), **way)]
    net, rois = ts.compile(x, backend=backend), np.ones((2, 4), np.float32)
    for roi in ([0, -3e38, 3, 3e38], [-np.inf, 0, 2, 1], [0, 0, np.inf, np.inf], [0, np.nan, 1, 1]):
        rois[1] = roi
        with pytest.raises(DataError, match=r"region (1 )?is not finite"):
            net(np.ones((1, 4, 6, 7), np.float32), rois)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_stay_where_they_are(mode, target):
    x = RNG.standard_normal((1, 3, 9, 9)).astype(np.float32)
    x[0, 0, 2, 2], x[0, 1, 7, 7] = np.nan, np.inf
    rois = np.array([[0, 0, 4, 4], [5, 5, 9, 9], [0, 5, 4, 9], [2.5, 2.5, 3.5, 3.5]], np.float32)
    with np.errstate(all="ignore"):
        pooled(x, rois, np.zeros(4, np.int64), (2, 2), target, mode=mode, sampling_ratio=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_plans(count, threads):
    g = Graph("regions")
    x = g.input("x", Type("float32", (2, 40, 8, 8)))
    rois, pictures = (
        g.input("r", Type("float32", (count, 4))),
        g.input("i", Type("int64", (count,))),
    )
    cells = ops.RoiAlign(ops.Relu(x), rois, pictures, output_height=2, output_width=2)
    g.outputs = [ops.Tanh(ops.Reshape(cells, np.int64([count, -1 if count else 160])))]
    net = ts.compile(g, threads=threads)
    assert ("roi_align" in {s.kernel for s in net.program().plan.steps}) == (count > 0)
    feeds = [RNG.standard_normal((2, 40, 8, 8)).astype(np.float32), *regions((2, 0, 8, 8), count)]
    want = ts.compile(g, backend="numpy")(*feeds)
    np.testing.assert_allclose(net(*feeds), want, rtol=1e-5, atol=1e-6)
    if count:
        feeds[2][-1] = 2
        with pytest.raises(DataError, match="batch index"):
            net(*feeds)


@pytest.mark.parametrize("way", WAYS)
def test_one_program_takes_pictures_of_all_sizes(way):
    graph, sizes = Graph("g"), ("h", "w")
    x = graph.input("x", Type("float32", (2, 20, *sizes)))
    rois, pictures = (
        graph.input("r", Type("float32", ("k", 4))),
        graph.input("p", Type("int64", ("k",))),
    )
    graph.outputs = [ops.RoiAlign(x, rois, pictures, output_height=7, output_width=5,
                                  sampling_ratio=2, **way)]  # fmt: skip

    def feed(s):
        shape = (2, 20, s["h"], s["w"])
        return dict(zip("xrp", (RNG.standard_normal(shape).astype(np.float32),
                                *regions(shape, s["k"])), strict=True))  # fmt: skip

    calls = [dict(zip("hwk", c, strict=True)) for c in ((10, 14, 50), (11, 15, 40), (12, 9, 3))]
    found = compare(graph, calls, feed)
    assert (found.calls, found.programs, found.held) == (3, 1, [])
