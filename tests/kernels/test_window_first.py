"""Convolution of plain images with few channels, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.free_convs import agree, picture
from tests.kernels.free_convs import conv as free_conv
from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tests.kernels.window_shapes import FIRST
from tinsmith.codegen.target import level, runnable
from tinsmith.kernels._kernel import KERNELS, Skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", FIRST)
def test_shapes(name, target):
    arrays, attrs = FIRST[name]
    check(
        "Conv", arrays, attrs, kernel="conv_first_layer", target=target, consts=(1, 2), extra_halo=1
    )


@pytest.mark.parametrize("target", levels())
def test_sizes_that_a_call_tells(target):
    sizes = ((2, 224, 200), (3, 40, 36), (1, 7, 7), (4, 13, 31), (1, 56, 57), (2, 1, 50))
    graph = free_conv(3, 19, (3, 3), pad=(1, 1, 1, 1), stride=(2, 2))
    pictures = [picture(3, *size) for size in sizes]
    assert agree("conv_first_layer", graph, pictures, target=target) <= 3


@pytest.mark.parametrize("target", levels())
def test_epilogue(target):
    arrays, attrs = conv(2, 3, 19, (9, 9), (3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    tail = [("Add", normal(2, 19, 5, 5, seed=5)), ("HardSwish",)]
    check(
        "Conv", arrays, attrs, kernel="conv_first_layer", target=target, consts=(1, 2),
        epilogue=tail, extra_halo=2,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", [3, 7])
def test_inner_loops_do_not_spill(kernel, target):
    pad = kernel // 2
    case = conv(1, 3, 64, (112, 112), (kernel, kernel), stride=(2, 2), pad=(pad,) * 4)
    for epilogue in ((), RELU6):
        assert spills(machine_code("Conv", *case, "conv_first_layer", target, epilogue)) == [], (
            epilogue
        )


def test_far_places_of_results_are_asked_for():
    near = level("avx2")
    far = replace(near, l2=4096)
    arrays, attrs = conv(2, 3, 37, (17, 19), (3, 3), pad=(1, 1, 1, 1))
    assert "prefetch" not in machine_code("Conv", arrays, attrs, "conv_first_layer", near)
    assert "prefetch" in machine_code("Conv", arrays, attrs, "conv_first_layer", far)
    if runnable(far):
        check("Conv", arrays, attrs, kernel="conv_first_layer", target=far, consts=(1, 2))


@pytest.mark.parametrize(("channels", "group"), [(32, 1), (4, 2)])
def test_declines(channels, group):
    arrays, attrs = conv(1, channels, 8, (4, 4), (1, 1), group=group)
    with pytest.raises(Skip):
        KERNELS["conv_first_layer"].offer(
            site_of(one_node("Conv", arrays, attrs, (1, 2)), level("avx2"))
        )
