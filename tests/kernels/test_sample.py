"""Grid sampling against the reference: ranks, modes, paddings, places outside and none at all."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from tests.kernels.harness import check, levels
from tinsmith.kernels._kernel import Skip
from tinsmith.ops.deform import GridSample

RNG = np.random.default_rng(4)
SHAPES = [
    ((1, 3, 8, 9), (1, 4, 5, 2)),
    ((2, 1, 1, 7), (2, 1, 1, 2)),
    ((2, 5, 3, 4, 5), (2, 3, 2, 3, 3)),
    ((1, 2, 11), (1, 6, 1)),
    ((1, 17, 6, 6), (1, 1, 9, 2)),
    ((2, 2, 1, 1), (2, 3, 3, 2)),
    ((1, 3, 2, 5), (1, 4, 4, 2)),
]
MODES, PADDINGS = ["linear", "nearest", "cubic"], ["zeros", "border", "reflection"]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", [*MODES, "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("shape, grid", SHAPES)
def test_grids(shape, grid, aligned, padding, mode, target):
    x = RNG.standard_normal(shape).astype(np.float32)
    at = RNG.uniform(-1.4, 1.4, grid).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    refused = pytest.raises(Skip, match="cubic") if "cubic" in mode and len(shape) == 5 else None
    with refused or nullcontext():
        check("GridSample", [x, at], attrs, kernel="grid_sample", target=target)


TYPES = [("float32", "float64"), ("float64", "float64"), ("float64", "float32")]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("types", TYPES)
def test_types(types, aligned, padding, mode, target):
    for shape, grid in SHAPES:
        if mode == "cubic" and len(shape) == 5:
            continue
        x = RNG.standard_normal(shape).astype(types[0])
        at = RNG.uniform(-1.4, 1.4, grid).astype(types[1])
        attrs = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
        rtol = 1e-12 if types[0] == types[1] else 2e-6
        check("GridSample", [x, at], attrs, kernel="grid_sample", target=target, rtol=rtol)


@pytest.mark.parametrize("target", levels())
def test_weights_are_as_exact_as_the_grid(target):
    """An element that is far larger than the others counts though its weight is tiny."""
    x = np.array([1e9, 1, 1, 1], np.float32).reshape(1, 1, 4)
    at = np.array([-1 + 2 * (1 - 1e-9) / 3, -1 + 2e-9 / 3]).reshape(1, 2, 1)
    attrs = {"align_corners": True}
    check("GridSample", [x, at], attrs, kernel="grid_sample", target=target)
    got = GridSample(x, at, **attrs)
    np.testing.assert_allclose(got[0, 0], [2, 1e9], rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_border_is_a_picture_whose_edges_go_on(mode):
    x = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)
    wide = np.pad(x, [(0, 0), (0, 0), (9, 9), (9, 9)], mode="edge")
    at = RNG.uniform(-5, 10, (1, 7, 8, 2))  # in elements, innermost axis first
    sizes, far = np.array([6, 5]), np.array([24, 23])
    grids = [((2 * place + 1) / size - 1).astype(np.float32)
             for place, size in ((at, sizes), (at + 9, far))]  # fmt: skip
    got = GridSample(x, grids[0], mode=mode, padding_mode="border")
    np.testing.assert_allclose(got, GridSample(wide, grids[1], mode=mode), atol=2e-5)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("types", [("float32", "float32"), *TYPES])
def test_edges_and_far_places(types, aligned, padding, mode, target):
    """Places on the borders and between; far outside; infinite and NaN ones."""
    x = RNG.standard_normal((1, 2, 4, 4)).astype(types[0])
    ends = [-1, 1, -1.25, 1.25, -0.75, 0.75, 0, 1e9, -1e9, 3e38, np.inf, -np.inf, np.nan]
    at = np.array([(a, b) for a in ends for b in ends], types[1]).reshape(1, 13, 13, 2)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    with np.errstate(all="ignore"):
        check("GridSample", [x, at], attrs, kernel="grid_sample", target=target)
