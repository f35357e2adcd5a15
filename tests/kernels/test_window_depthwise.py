"""Depthwise convolution on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip


def depthwise(batch, channels, size, kernel, **attrs):
    return conv(batch, channels, channels, size, kernel, group=channels, **attrs)


SHAPES = {
    "no padding": depthwise(1, 16, (5, 5), (3, 3)),
    "batch, odd": depthwise(2, 19, (17, 19), (3, 3), pad=(1, 1, 1, 1)),
    "7x7 stride 2": depthwise(1, 35, (20, 20), (7, 7), stride=(2, 2), pad=(3, 3, 3, 3)),
    "5x5": depthwise(1, 24, (6, 6), (5, 5), pad=(2, 2, 2, 2), bias=False),
    "one pixel": depthwise(3, 80, (1, 1), (1, 1)),
    "1-D": depthwise(1, 33, (9,), (3,), pad=(1, 1)),
    "3-D": depthwise(1, 20, (4, 5, 6), (2, 3, 3), pad=(0, 1, 1, 1, 1, 1), stride=(1, 2, 1)),
    "dilated": depthwise(1, 7, (40, 33), (3, 3), pad=(0, 0, 5, 7), dilation=(2, 3), stride=(2, 1)),
    "wide kernel": depthwise(1, 7, (4, 33), (1, 31), pad=(0, 15, 0, 15)),
    "stride 3, two rows": depthwise(2, 8, (13, 14), (2, 2), stride=(3, 3)),
    "small and long": depthwise(1, 48, (2, 70), (3, 3), pad=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, target):
    arrays, attrs = SHAPES[name]
    check(
        "Conv", arrays, attrs, kernel="conv_depthwise", target=target, consts=(1, 2),
        extra_halo=len(name) % 3,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("kernel", [3, 5])
def test_epilogue(kernel, target):
    pad = kernel // 2
    arrays, attrs = depthwise(2, 19, (6, 7), (kernel, kernel), pad=(pad,) * 4)
    tail = [("Sigmoid",), ("Mul", normal(2, 19, 6, 7, seed=5)), ("Add", normal(2, 1, 6, 7, seed=6))]
    check(
        "Conv", arrays, attrs, kernel="conv_depthwise", target=target, consts=(1, 2), epilogue=tail,
        extra_halo=2,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (7, 1)])
def test_inner_loops_do_not_spill(kernel, stride, target):
    pad = kernel // 2
    case = depthwise(1, 64, (28, 28), (kernel, kernel), stride=(stride, stride), pad=(pad,) * 4)
    for epilogue in ((), RELU6):
        assert spills(machine_code("Conv", *case, "conv_depthwise", target, epilogue)) == [], (
            epilogue
        )


def test_declines_a_multiplier():
    arrays, attrs = conv(1, 8, 16, (4, 4), (3, 3), group=8)
    with pytest.raises(Skip, match="8 groups of 8 to 16 channels"):
        KERNELS["conv_depthwise"].offer(
            site_of(one_node("Conv", arrays, attrs, (1, 2)), level("avx2"))
        )


BYTES = {
    "padded": ((1, 40, 9, 11), (3, 3), {"pad": (1, 1, 1, 1)}),
    "batch, one side": ((2, 20, 10, 9), (3, 3), {"pad": (0, 1, 1, 0), "stride": (2, 2)}),
    "5x5": ((1, 17, 8, 7), (5, 5), {"pad": (2, 2, 2, 2)}),
    "5x5, all edge": ((1, 17, 3, 2), (5, 5), {"pad": (2, 2, 2, 2)}),
    "7x7": ((1, 8, 30, 31), (7, 7), {"pad": (3, 3, 3, 3)}),
    "1-D": ((1, 5, 30), (7,), {"pad": (3, 3), "stride": (3,)}),
    "3-D": ((1, 16, 3, 4, 5), (1, 2, 4), {"dilation": (1, 2, 1)}),
    "dilated": ((1, 7, 20, 23), (3, 3), {"pad": (2, 2, 2, 2), "dilation": (2, 2)}),
    "one pixel": ((2, 40, 1, 1), (1, 1), {}),
    "one pixel, all edge": ((1, 17, 1, 1), (3, 3), {"pad": (1, 1, 1, 1)}),
    "wide": ((1, 7, 4, 33), (1, 31), {"pad": (0, 15, 0, 15)}),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("zero", [None, 0, 77])
@pytest.mark.parametrize("left, right", [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("name", BYTES)
def test_bytes(name, left, right, zero, target):
    x, kernel, attrs = BYTES[name]
    arrays = [ends(left, *x), ends(right, x[1], 1, *kernel)]
    arrays += [] if zero is None else [np.array(zero, left)]
    halo, threads = len(name) % 3, 1 + len(name) % 2
    check("ConvInteger", arrays, {**attrs, "group": x[1]}, kernel="conv_depthwise_bytes",
          target=target, consts=[1, 2], extra_halo=halo, threads=threads)  # fmt: skip


def ends(dtype, *shape):
    """Bytes, most of them the ends of their range."""
    info, rng = np.iinfo(dtype), np.random.default_rng(len(shape))
    some = rng.integers(info.min, info.max, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.6, rng.choice([info.min, info.max], shape), some).astype(
        dtype
    )


def test_bytes_with_other_sums_are_declined():
    for arrays, reason in (
        ([ends("uint8", 1, 8, 9, 400), ends("int8", 8, 1, 1, 150)], "too large"),
        ([ends("uint8", 1, 8, 9, 9), ends("int8", 8, 1, 3, 3), np.array(0, np.uint8),
          np.array(1, np.int8)], "zero points"),
        ([ends("uint8", 1, 8, 3, 4, 5), ends("int8", 8, 1, 1, 3, 3), np.array(7, np.uint8)],
         "padding is deep"),
    ):  # fmt: skip
        attrs = {"group": 8, "pad": (1, 0, 0) * 2 if reason.endswith("deep") else None}
        node = one_node("ConvInteger", arrays, attrs, consts=(1, 2, 3))
        with pytest.raises(Skip, match=reason):
            KERNELS["conv_depthwise_bytes"].offer(site_of(node, level("avx2")))
