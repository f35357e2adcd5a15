"""Winograd convolution: exact matrices, bounded errors, awkward shapes, and nothing that leaks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, prepare, site_of
from tests.kernels.window_cases import conv, normal
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.layout import from_layout
from tinsmith.kernels.winograd.matrices import bilinear, supported
from tinsmith.kernels.winograd.program import program

AXES = [
    (m, r, s)
    for s in (1, 2, 3)
    for r in range(1, 8)
    for m in range(1, 8)
    if supported(m, r, s) and r >= s
]


@pytest.mark.parametrize(("m", "r", "stride"), AXES)
def test_matrices_are_exact(m, r, stride):
    axis = bilinear(m, r, stride)
    for i in range(m):
        for k in range(r):
            for n in range(axis.reach):
                got = sum(
                    a * g[k] * b[n] for a, g, b in zip(axis.at[i], axis.g, axis.bt, strict=True)
                )
                assert got == (n == stride * i + k)


def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="9 results of 3 taps"):
        bilinear(9, 3)


@pytest.mark.parametrize(("m", "r", "stride"), AXES)
def test_programs_compute_their_matrix(m, r, stride):
    axis = bilinear(m, r, stride)
    for matrix in (axis.at, axis.bt):
        code = program(matrix)
        values = list(np.eye(code.inputs))
        for step in code.steps:
            values.append(sum(c * values[k] for c, k in step))
        rows = [sum(c * values[k] for c, k in row) for row in code.rows]
        np.testing.assert_array_equal(rows, np.array(matrix, float))
        assert sorted(i for group in code.groups for i in group) == list(range(len(matrix)))


def test_shared_sums_save_operations():
    assert [program(bilinear(m, 3).bt).operations for m in (2, 4, 6)] == [4, 12, 24]


PAD = {"pad": (1, 1, 1, 1)}
SHAPES = {
    "exact tiles": (conv(1, 16, 16, (12, 12), (3, 3), **PAD), 0),
    "odd everything": (conv(2, 37, 21, (9, 11), (3, 3), pad=(1, 0, 2, 1)), 1),
    "no padding": (conv(1, 20, 33, (8, 10), (3, 3)), 0),
    "one row": (conv(3, 16, 16, (1, 23), (3, 3), **PAD), 0),
    "one column": (conv(1, 16, 16, (17, 1), (3, 3), **PAD), 2),
    "small": (conv(1, 48, 40, (7, 7), (3, 3), **PAD), 0),
    "wide padding": (conv(1, 16, 16, (5, 6), (3, 3), pad=(2, 3, 3, 2), bias=False), 0),
    "many tiles": (conv(1, 16, 80, (40, 37), (3, 3), **PAD), 0),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    (arrays, attrs), extra = SHAPES[name]
    node = one_node("Conv", arrays, attrs, (1, 2))
    for pick in range(len(KERNELS["winograd"].offer(site_of(node, level(target))))):
        check(
            "Conv", arrays, attrs, kernel="winograd", target=target, consts=(1, 2), pick=pick,
            extra_halo=extra, rtol=3e-5,
        )  # fmt: skip
