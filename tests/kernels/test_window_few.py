"""Convolution to few outputs, on every instruction set."""

from __future__ import annotations

import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.layout import block_of

SHAPES = {
    "one output": conv(1, 16, 1, (5, 6), (3, 3), pad=(1, 1, 1, 1)),
    "pointwise": conv(2, 35, 2, (7, 5), (1, 1)),
    "9x9": conv(1, 20, 2, (11, 12), (9, 9), pad=(4, 4, 4, 4), bias=False),
    "stride, dilation": conv(2, 8, 2, (13, 14), (3, 2), stride=(2, 3), dilation=(2, 1)),
    "one pixel": conv(1, 64, 2, (1, 1), (1, 1)),
    "1-D": conv(1, 24, 1, (19,), (5,), pad=(2, 2)),
    "3-D": conv(1, 17, 2, (4, 3, 5), (2, 3, 3), pad=(1, 1, 1, 0, 1, 1)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    arrays, attrs = SHAPES[name]
    check(
        "Conv", arrays, attrs, kernel="conv_few_outputs", target=target, consts=(1, 2),
        extra_halo=len(name) % 3,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
def test_most_outputs(target):
    most = block_of(level(target)) // 2
    arrays, attrs = conv(1, 32, most, (6, 9), (3, 3), pad=(1, 1, 1, 1))
    tail = [("Mul", ("const", normal(1, most, 1, 1, seed=5))), ("Sigmoid",)]
    check(
        "Conv", arrays, attrs, kernel="conv_few_outputs", target=target, consts=(1, 2),
        epilogue=tail,
    )  # fmt: skip
    arrays, attrs = conv(1, 32, most + 1, (6, 9), (3, 3))
    with pytest.raises(Skip, match="enough"):
        KERNELS["conv_few_outputs"].offer(
            site_of(one_node("Conv", arrays, attrs, (1, 2)), level(target))
        )


@pytest.mark.parametrize("target", levels())
def test_inner_loops_do_not_spill(target):
    case = conv(1, 64, 2, (28, 28), (3, 3), pad=(1, 1, 1, 1))
    for epilogue in ((), RELU6):
        assert spills(machine_code("Conv", *case, "conv_few_outputs", target, epilogue)) == [], (
            epilogue
        )
