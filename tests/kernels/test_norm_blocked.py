"""Instance and group normalisation of channel-blocked images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.target import host
from tinsmith.kernels._kernel import KERNELS, Skip

rng = np.random.default_rng(0)


def r(*dims: int) -> np.ndarray:
    return rng.standard_normal(dims).astype(np.float32)


def operands(*dims: int) -> tuple[np.ndarray, ...]:
    return r(*dims) * 3 + 2, r(dims[1]), r(dims[1])


INSTANCE = [(1, 16, 5, 7), (2, 19, 3, 3), (1, 3, 9, 4), (2, 6, 11), (1, 20, 2, 3, 5), (1, 33, 1, 2)]
GROUPS = [
    (2, 8, 4, 5, 2), (1, 32, 3, 3, 8), (1, 64, 4, 4, 4), (2, 30, 3, 4, 3), (1, 40, 5, 5, 4),
    (1, 20, 6, 2, 1), (1, 21, 4, 4, 7), (1, 48, 3, 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", INSTANCE, ids=str)
def test_instance(shape, halo, target):
    check(
        "InstanceNorm", operands(*shape), {"eps": 1e-5}, kernel="instance_norm_blocked",
        consts=(1, 2), target=target, extra_halo=halo, rtol=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", GROUPS, ids=str)
def test_groups(shape, halo, target):
    *dims, groups = shape
    check(
        "GroupNorm", operands(*dims), {"groups": groups, "eps": 1e-5},
        kernel="group_norm_blocked", consts=(1, 2), target=target, extra_halo=halo, rtol=2e-5,
    )  # fmt: skip


def test_a_large_mean_does_not_swallow_the_spread():
    x, scale, shift = operands(1, 24, 16, 16)
    check(
        "InstanceNorm", (x + 1000, scale, shift), {"eps": 1e-5}, kernel="instance_norm_blocked",
        consts=(1, 2), rtol=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("eps", [0.0, 1e-50])
def test_an_eps_that_is_zero_in_float32_is_declined(eps):
    node = one_node("InstanceNorm", operands(1, 4, 3, 3), {"eps": eps}, (1, 2))
    with pytest.raises(Skip, match="positive eps"):
        KERNELS["instance_norm_blocked"].offer(site_of(node, host()))


def test_a_scale_that_is_computed_is_declined():
    node = one_node("InstanceNorm", operands(1, 4, 3, 3), {"eps": 1e-5})
    with pytest.raises(Skip, match="scale"):
        KERNELS["instance_norm_blocked"].offer(site_of(node, host()))
