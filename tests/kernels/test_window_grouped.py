"""Grouped convolution, of every width, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

PAD = (1, 1, 1, 1)
SHAPES = {
    "two of 32": conv(1, 64, 96, (6, 7), (3, 3), group=2, pad=PAD),
    "pointwise, four of 16": conv(2, 64, 64, (5, 5), (1, 1), group=4),
    "32 of 4": conv(1, 128, 128, (9, 9), (3, 3), group=32, pad=PAD),
    "8 wide": conv(2, 40, 40, (9, 10), (3, 3), group=5, pad=PAD, stride=(2, 2)),
    "24 wide": conv(1, 72, 72, (7, 7), (3, 3), group=3, pad=PAD),
    "40 wide": conv(1, 80, 80, (6, 5), (3, 3), group=2, pad=PAD, bias=False),
    "56 wide": conv(1, 168, 168, (5, 4), (3, 3), group=3, pad=PAD),
    "100 wide": conv(1, 300, 300, (3, 3), (1, 1), group=3),
    "6 wide": conv(1, 18, 18, (5, 5), (3, 3), group=3, pad=PAD),
    "3 to 5": conv(1, 12, 20, (5, 5), (2, 3), group=4, dilation=(1, 2)),
    "2 wide": conv(1, 34, 34, (6, 6), (3, 3), group=17, pad=PAD),
    "multiplier 2": conv(2, 19, 38, (7, 7), (3, 3), group=19, pad=PAD),
    "multiplier 3": conv(1, 10, 30, (7, 7), (3, 3), group=10, pad=PAD),
    "multiplier 16": conv(1, 5, 80, (5, 5), (3, 3), group=5, pad=PAD),
    "8 to 4": conv(1, 32, 16, (5, 6), (3, 3), group=4, pad=PAD),
    "4 to 8": conv(1, 16, 32, (5, 6), (3, 3), group=4, pad=PAD),
    "1-D": conv(1, 16, 16, (11,), (9,), group=4, pad=(4, 4)),
    "3-D": conv(1, 16, 16, (4, 3, 5), (2, 3, 3), group=2, pad=(0, 1, 1, 1, 1, 1)),
}


def ways(name, target):
    """How many ways there are to compute one of the shapes."""
    node = one_node("Conv", *SHAPES[name], (1, 2))
    return len(KERNELS["conv_grouped"].offer(site_of(node, level(target))))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", SHAPES)
def test_every_width(name, target):
    arrays, attrs = SHAPES[name]
    for pick in range(ways(name, target)):
        check(
            "Conv", arrays, attrs, kernel="conv_grouped", target=target, consts=(1, 2), pick=pick,
            extra_halo=len(name) % 2,
        )  # fmt: skip


def test_groups_that_fill_no_vectors_are_interleaved():
    for name, target, expected in [
        ("two of 32", "avx512", 1),
        ("8 wide", "avx512", 2),
        ("8 wide", "avx2", 1),
        ("24 wide", "avx512", 2),
        ("multiplier 2", "avx2", 2),
        ("100 wide", "avx512", 1),
    ]:
        assert ways(name, target) == expected, (name, target)


@pytest.mark.parametrize(("groups", "kept"), [(2, "over up to"), (12, "side by side")])
def test_groups_are_interleaved_where_there_are_enough(groups, kept):
    arrays, attrs = conv(1, 5 * groups, 5 * groups, (28, 28), (3, 3), group=groups, pad=PAD)
    node = one_node("Conv", arrays, attrs, (1, 2))
    found = KERNELS["conv_grouped"].offer(site_of(node, level("avx512")))
    assert kept in min(found, key=lambda choice: choice.cost).detail


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", ["32 of 4", "24 wide", "two of 32"])
def test_epilogues(name, target):
    arrays, attrs = SHAPES[name]
    shape = (1, arrays[1].shape[0], *arrays[0].shape[2:])
    tail = [("Add", normal(*shape, seed=5)), ("Sigmoid",), ("Mul", ("const", normal(1, seed=6)))]
    for pick in range(ways(name, target)):
        check(
            "Conv", arrays, attrs, kernel="conv_grouped", target=target, consts=(1, 2), pick=pick,
            epilogue=tail, extra_halo=1,
        )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(("wide", "groups"), [(32, 4), (24, 6), (40, 2), (8, 32), (4, 32)])
def test_inner_loops_hardly_spill(wide, groups, target):
    case = conv(1, wide * groups, wide * groups, (28, 28), (3, 3), pad=PAD, group=groups)
    # one reload among 48 products, of 16 registers, costs nothing
    for epilogue in ((), RELU6):
        code = machine_code("Conv", *case, "conv_grouped", target, epilogue)
        assert len(spills(code)) <= 1, epilogue


def test_group_1_is_declined():
    arrays, attrs = conv(1, 8, 8, (4, 4), (2, 2))
    site = site_of(one_node("Conv", arrays, attrs, (1, 2)), level("avx2"))
    with pytest.raises(Skip, match="group is 1"):
        KERNELS["conv_grouped"].offer(site)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", ["24 wide", "6 wide", "32 of 4", "multiplier 3"])
def test_infinity_stays_in_its_group(name, target):
    (x, *rest), attrs = SHAPES[name]
    x = x.copy()
    x[0, 0, 2, 2], x[0, -1, 1, 1] = np.inf, np.nan
    for pick in range(ways(name, target)):
        check(
            "Conv", [x, *rest], attrs, kernel="conv_grouped", target=target, consts=(1, 2),
            pick=pick,
        )  # fmt: skip
