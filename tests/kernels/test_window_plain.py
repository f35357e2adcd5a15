"""Pooling, and convolution of few channels, on plain data, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tests.kernels.window_shapes import POOLS
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

PLANES = {
    "in place": ((1, 2, 9, 50), dict(kernel=(2, 3))),
    "in segments": ((1, 1, 9, 4500), dict(kernel=(3, 3), pad=(1, 1, 1, 1))),
    "in bands": ((1, 1, 90, 600), dict(kernel=(3, 5), pad=(0, 2, 2, 2))),
    "stride 3": ((1, 3, 20, 131), dict(kernel=(5, 5), stride=(2, 3), pad=(2, 2, 2, 2))),
    "stride 4, in segments": ((2, 1, 9001), dict(kernel=(9,), stride=(4,), pad=(4, 4))),
}

SHAPES = {
    "one channel": conv(1, 1, 1, (20, 70), (3, 3), pad=(1, 1, 1, 1)),
    "three, batch": conv(2, 3, 3, (19, 37), (5, 5), pad=(2, 2, 2, 2)),
    "in place": conv(1, 2, 1, (7, 40), (3, 2), bias=False),
    "pointwise": conv(1, 3, 4, (9, 33), (1, 1)),
    "1-D, segments": conv(1, 1, 1, (5000,), (25,), pad=(12, 12)),
    "strided": conv(1, 2, 3, (21, 66), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1)),
    "stride 3, dilated": conv(1, 1, 2, (30, 90), (3, 3), stride=(1, 3), dilation=(2, 3)),
    "groups": conv(2, 4, 4, (8, 19), (3, 3), pad=(1, 1, 1, 1), group=2),
    "depthwise": conv(1, 3, 3, (8, 20), (5, 7), pad=(2, 3, 2, 3), group=3),
    "3-D": conv(1, 2, 2, (4, 5, 20), (2, 3, 3), pad=(1, 1, 1, 0, 1, 1)),
    "one pixel": conv(1, 1, 1, (1, 1), (3, 3), pad=(1, 1, 1, 1)),
    "all of it padding": conv(1, 1, 1, (2, 3), (2, 2), pad=(4, 4, 4, 4)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS | PLANES)
def test_max(name, target):
    shape, attrs = (POOLS | PLANES)[name]
    check("MaxPool", [normal(*shape) - 3], attrs, kernel="pool_max_plain", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", POOLS | PLANES)
@pytest.mark.parametrize("include", [False, True])
def test_average(name, target, include):
    shape, attrs = (POOLS | PLANES)[name]
    attrs = {**attrs, "count_include_pad": include}
    check("AveragePool", [normal(*shape) + 1], attrs, kernel="pool_average_plain", target=target)


@pytest.mark.parametrize("target", levels())
def test_nan_and_infinity_win_where_the_reference_says(target):
    x = normal(1, 2, 8, 40)
    x[0, 0, 2, 2], x[0, 0, 5, 35], x[0, 1, 1, 1], x[0, 1, 1, 2] = np.nan, np.inf, -np.inf, np.nan
    attrs = dict(kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    check("MaxPool", [x], attrs, kernel="pool_max_plain", target=target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_convolution(name, target):
    arrays, attrs = SHAPES[name]
    check("Conv", arrays, attrs, kernel="conv_plain", target=target, consts=(1, 2))


@pytest.mark.parametrize("target", levels())
def test_widest(target):
    most = max(4, level(target).lanes)
    arrays, attrs = conv(1, most, most, (6, 35), (3, 3), pad=(1, 1, 1, 1))
    check("Conv", arrays, attrs, kernel="conv_plain", target=target, consts=(1, 2))


@pytest.mark.parametrize("target", levels())
def test_a_sum_lies_where_an_addend_lay(target):
    """The last tiles of a row, and of a segment's rows, overlap those before: what they have
    finished must not be added to once more."""
    arrays, attrs = conv(2, 4, 4, (35, 14), (3, 3), pad=(1, 1, 1, 1))
    tail = [("Add", normal(2, 4, 35, 14))]
    check("Conv", arrays, attrs, kernel="conv_plain", target=target, consts=(1, 2), epilogue=tail)
    arrays, attrs = conv(1, 2, 4, (8, 16), (3, 3), pad=(1, 1, 1, 1))
    tail = [("Add", normal(1, 4, 8, 16))]
    check("Conv", arrays, attrs, kernel="conv_plain", target=target, consts=(1, 2), epilogue=tail)


@pytest.mark.parametrize("target", levels())
def test_epilogues(target):
    arrays, attrs = conv(2, 3, 2, (9, 36), (3, 3), pad=(1, 1, 1, 1))
    scale = ("const", normal(1, 2, 1, 1, seed=4))
    tail = [("Mul", scale), ("Add", normal(2, 2, 9, 36, seed=3)), ("Sigmoid",)]
    check("Conv", arrays, attrs, kernel="conv_plain", target=target, consts=(1, 2), epilogue=tail)
    tail = [("Add", normal(2, 3, 9, 1, seed=3)), ("Relu",)]
    check(
        "AveragePool", [arrays[0]], dict(kernel=(3, 3), pad=(1, 1, 1, 1)),
        kernel="pool_average_plain", target=target, epilogue=tail,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels()[:-1])  # the last one has no vectors
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_inner_loops_do_not_spill(channels, target):
    case = conv(1, channels, channels, (64, 256), (3, 3), pad=(1, 1, 1, 1))
    for epilogue in ((), RELU6):
        assert spills(machine_code("Conv", *case, "conv_plain", target, epilogue)) == []


@pytest.mark.parametrize(
    ("op", "case", "kernel", "why"),
    [
        ("Conv", conv(1, 3, 32, (8, 8), (3, 3)), "conv_plain", "fill a block"),
        ("Conv", conv(1, 1, 1, (8, 80), (3, 5), stride=(1, 5)), "conv_plain", "stride of 5"),
        (
            "MaxPool",
            ([normal(1, 1, 4, 4)], dict(kernel=(2, 2), with_indices=True)),
            "pool_max_plain",
            "places",
        ),
    ],
)
def test_declines(op, case, kernel, why):
    arrays, attrs = case
    site = site_of(one_node(op, arrays, attrs, (1, 2)), level("avx2"))
    with pytest.raises(Skip, match=why):
        KERNELS[kernel].offer(site)
