"""Depthwise convolution by computed weights, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import conv, normal
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

SHAPES = {
    "3x3": conv(1, 16, 16, (6, 7), (3, 3), pad=(1, 1, 1, 1), group=16, bias=False),
    "7x7, odd": conv(2, 37, 37, (9, 11), (7, 7), group=37, bias=False),
    "strided": conv(1, 3, 3, (12, 13), (3, 2), stride=(2, 3), group=3, bias=False),
    "1-D": conv(3, 20, 20, (17,), (5,), pad=(2, 2), group=20, bias=False),
    "3-D": conv(1, 9, 9, (4, 5, 6), (2, 3, 3), dilation=(1, 2, 1), group=9, bias=False),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    (x, w, _), attrs = SHAPES[name]
    assert x is not None
    kernel = "conv_depthwise_computed"
    check("Conv", [x, w], attrs, kernel=kernel, target=target, extra_halo=len(name) % 3)
    tail = [("Mul", ("const", normal(1, x.shape[1], *[1] * (x.ndim - 2), seed=4))), ("Sigmoid",)]
    check("Conv", [x, w], attrs, kernel=kernel, target=target, epilogue=tail)


@pytest.mark.parametrize("target", levels())
def test_infinity_stays_in_its_channel(target):
    (x, w, _), attrs = conv(1, 5, 5, (6, 7), (3, 3), group=5, bias=False)
    assert x is not None
    x[0, 4, 2, 2] = np.inf
    with np.errstate(invalid="ignore"):
        check("Conv", [x, w], attrs, kernel="conv_depthwise_computed", target=target)


@pytest.mark.parametrize(
    ("case", "consts", "why"),
    [
        (conv(1, 4, 4, (5, 5), (3, 3), group=4, bias=False), (1,), "constant"),
        (conv(1, 4, 4, (5, 5), (3, 3), group=4), (), "bias"),
        (conv(1, 4, 8, (5, 5), (3, 3), group=4, bias=False), (), "4 groups of 4 to 8"),
    ],
)
def test_declines(case, consts, why):
    arrays, attrs = case
    arrays = [a for a in arrays if a is not None]
    site = site_of(one_node("Conv", arrays, attrs, consts), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS["conv_depthwise_computed"].offer(site)
