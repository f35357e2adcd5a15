"""Transposes between blocked images and rows of channels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.target import host
from tinsmith.kernels._kernel import KERNELS, PLAIN, Skip

rng = np.random.default_rng(0)
SHAPES = [(1, 96, 8, 7), (2, 19, 5, 3), (1, 3, 4, 4), (3, 16, 1, 1), (2, 21, 30), (1, 160, 9, 9),
          (2, 6, 3, 2, 5), (1, 40, 60, 64)]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(shape, halo, target):
    x = rng.standard_normal(shape).astype(np.float32)
    last = (0, *range(2, x.ndim), 1)
    first = (0, x.ndim - 1, *range(1, x.ndim - 1))
    attrs = {"kernel": "transpose_blocked", "target": target, "extra_halo": halo, "rtol": 0}
    there = check("Transpose", (x,), {"perm": last}, **attrs)
    rows = np.ascontiguousarray(x.transpose(last))
    pick = int(x.ndim == 3)  # with one spatial axis either side may be the blocked one
    back = check("Transpose", (rows,), {"perm": first}, pick=pick, **attrs)
    assert there.reads == back.writes and there.writes == back.reads == (PLAIN,)


def test_integers_of_four_bytes():
    x = rng.integers(-9, 9, (1, 18, 4, 4)).astype(np.int32)
    check("Transpose", (x,), {"perm": (0, 2, 3, 1)}, kernel="transpose_blocked")


@pytest.mark.parametrize("perm", [(0, 1, 3, 2), (1, 2, 3, 0), (0, 3, 2, 1)])
def test_other_orders_are_declined(perm):
    node = one_node("Transpose", (np.zeros((2, 3, 4, 5), np.float32),), {"perm": perm})
    with pytest.raises(Skip):
        KERNELS["transpose_blocked"].offer(site_of(node, host()))
