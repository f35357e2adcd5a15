"""Convolution to few outputs, on every instruction set."""

from __future__ import annotations

import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tests.kernels.window_shapes import FEW
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip
from tinsmith.kernels.layout import block_of


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", FEW)
def test_shapes(name, target):
    arrays, attrs = FEW[name]
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
