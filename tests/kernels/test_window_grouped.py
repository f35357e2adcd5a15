"""Grouped convolution, of every width, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tests.kernels.window_cases import RELU6, conv, machine_code, normal, spills
from tests.kernels.window_shapes import GROUPED, PAD
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip


def ways(name, target):
    """How many ways there are to compute one of the shapes."""
    node = one_node("Conv", *GROUPED[name], (1, 2))
    return len(KERNELS["conv_grouped"].offer(site_of(node, level(target))))


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("name", GROUPED)
def test_every_width(name, target):
    arrays, attrs = GROUPED[name]
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
    arrays, attrs = GROUPED[name]
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
    (x, *rest), attrs = GROUPED[name]
    x = x.copy()
    x[0, 0, 2, 2], x[0, -1, 1, 1] = np.inf, np.nan
    for pick in range(ways(name, target)):
        check(
            "Conv", [x, *rest], attrs, kernel="conv_grouped", target=target, consts=(1, 2),
            pick=pick,
        )  # fmt: skip
