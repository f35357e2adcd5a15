"""The k largest and smallest elements, in order, with ties and NaN as the reference has them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.target import level
from tinsmith.kernels._kernel import KERNELS, Skip

RNG = np.random.default_rng(2)
SHAPES = [((1,), 1, 0), ((10,), 3, 0), ((10,), 10, 0), ((3, 17), 5, -1), ((9, 4), 2, 0),
          ((2, 30, 3), 7, 1), ((2, 3, 500), 500, 2), ((1, 1), 1, 1)]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("shape, k, axis", SHAPES)
def test_shapes(shape, k, axis, largest, target):
    x = RNG.standard_normal(shape).astype(np.float32)
    check("TopK", [x, np.array(k)], {"axis": axis, "largest": largest}, consts=(1,),
          kernel="topk", target=target)  # fmt: skip


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "int64", "uint64", "int32", "uint32", "uint8", "int8"]
)
def test_ties_of_every_type(dtype, largest):
    x = RNG.integers(0, 6, (4, 40)).astype(dtype)
    check("TopK", [x, np.array(17)], {"largest": largest}, consts=(1,), kernel="topk")


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 8, 12])
def test_nan_and_infinities(k, largest, target):
    x = np.array([[1, np.nan, np.inf, -np.inf, 0.0, -0.0, np.nan, 5, 1, np.inf, -np.inf, 2],
                  [np.nan] * 12, [np.inf] * 6 + [-np.inf] * 6], np.float32)  # fmt: skip
    check("TopK", [x, np.array(k)], {"largest": largest}, consts=(1,), kernel="topk",
          target=target)  # fmt: skip


def test_rising_and_falling():
    for x in (np.arange(100), np.arange(100)[::-1]):
        check("TopK", [x.astype(np.float32), np.array(60)], consts=(1,), kernel="topk")


@pytest.mark.parametrize("k", [2, 3, 7, 8, 9, 255, 256, 257, 1000, 1500])
def test_long_rows(k):
    x = np.round(RNG.standard_normal((2, 3000)) * 40).astype(np.float32)
    check("TopK", [x, np.array(k)], consts=(1,), kernel="topk")


def test_whole_rows_are_left_to_the_reference():
    site = site_of(one_node("TopK", [np.zeros(600, np.float32), np.array(400)], consts=(1,)),
                   level("sse2"))  # fmt: skip
    with pytest.raises(Skip, match="400 of 600"):
        KERNELS["topk"].offer(site)
