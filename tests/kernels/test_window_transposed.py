"""Transposed convolution on every instruction set."""

from __future__ import annotations

import pytest

from tests.kernels.harness import check, levels
from tests.kernels.window_cases import RELU6, conv_transposed, machine_code, normal, spills
from tests.kernels.window_shapes import TRANSPOSED


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", TRANSPOSED)
def test_shapes(name, target):
    arrays, attrs = TRANSPOSED[name]
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
