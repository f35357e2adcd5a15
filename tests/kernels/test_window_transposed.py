"""Transposed convolution on every instruction set."""

from __future__ import annotations

import pytest

from tests.kernels.harness import check, levels
from tests.kernels.window_cases import RELU6, conv_transposed, machine_code, normal, spills

SHAPES = {
    "2x2 stride 2": conv_transposed(1, 20, 33, (5, 6), (2, 2), stride=(2, 2)),
    "3x3 stride 2": conv_transposed(
        2, 16, 16, (5, 4), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1), output_padding=(1, 1)
    ),
    "4x4 stride 2": conv_transposed(1, 19, 24, (6, 6), (4, 4), stride=(2, 2), pad=(1, 1, 1, 1)),
    "stride 1": conv_transposed(1, 16, 16, (5, 5), (3, 3), pad=(1, 0, 1, 2), bias=False),
    "kernel below the stride": conv_transposed(
        1, 8, 8, (4, 3), (1, 2), stride=(3, 4), output_padding=(1, 2)
    ),
    "16x16 stride 8": conv_transposed(1, 5, 7, (3, 3), (16, 16), stride=(8, 8), pad=(4,) * 4),
    "dilated": conv_transposed(1, 16, 9, (5, 6), (3, 3), stride=(2, 3), dilation=(2, 2)),
    "dilated, coprime": conv_transposed(1, 16, 9, (5, 6), (3, 2), stride=(2, 2), dilation=(3, 3)),
    "wanted shape": conv_transposed(
        1, 16, 16, (5, 5), (3, 3), stride=(2, 2), output_shape=(10, 9), auto_pad="SAME_LOWER"
    ),
    "1-D": conv_transposed(2, 12, 20, (7,), (5,), stride=(3,), pad=(2, 1)),
    "3-D": conv_transposed(1, 8, 8, (3, 2, 4), (2, 3, 2), stride=(2, 1, 2)),
    "groups": conv_transposed(1, 32, 64, (4, 4), (2, 2), stride=(2, 2), group=2),
    "narrow groups": conv_transposed(1, 24, 36, (4, 5), (3, 3), stride=(2, 2), group=6),
    "depthwise": conv_transposed(2, 21, 21, (4, 3), (4, 4), stride=(2, 2), pad=(1,) * 4, group=21),
    "one pixel": conv_transposed(1, 64, 32, (1, 1), (4, 4)),
    "pad beyond the kernel": conv_transposed(1, 8, 8, (9, 9), (2, 2), pad=(3, 3, 2, 2)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    arrays, attrs = SHAPES[name]
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed", target=target, consts=(1, 2),
        extra_halo=len(name) % 3,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
def test_epilogue(target):
    arrays, attrs = conv_transposed(2, 16, 19, (4, 5), (2, 2), stride=(2, 2))
    tail = [("Mul", ("const", normal(1, 19, 1, 1, seed=5))), ("Add", normal(2, 19, 8, 10, seed=6))]
    check(
        "ConvTranspose", arrays, attrs, kernel="conv_transposed", target=target, consts=(1, 2),
        epilogue=[*tail, ("Relu",)], extra_halo=1,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", [2, 3])
def test_inner_loops_do_not_spill(kernel, target):
    case = conv_transposed(1, 64, 64, (14, 14), (kernel, kernel), stride=(2, 2))
    for epilogue in ((), RELU6):
        assert (
            spills(machine_code("ConvTranspose", *case, "conv_transposed", target, epilogue)) == []
        ), epilogue
