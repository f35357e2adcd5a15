"""Local response normalisation on blocked images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels
from tinsmith.kernels._kernel import Skip

rng = np.random.default_rng(0)
SHAPES = [(1, 64, 3, 5), (2, 19, 4, 3), (1, 3, 2, 2), (1, 20, 7), (1, 33, 2, 3, 2)]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, halo, target):
    x = rng.standard_normal(shape).astype(np.float32) * 4
    check("LRN", (x,), {"size": 5, "alpha": 0.1}, kernel="lrn_blocked", target=target,
          extra_halo=halo, rtol=2e-6)  # fmt: skip


@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.6, 2.0])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_sizes_and_powers(size, beta):
    x = rng.standard_normal((1, 40, 3, 3)).astype(np.float32) * 4
    check("LRN", (x,), {"size": size, "alpha": 0.2, "beta": beta, "bias": 1.5},
          kernel="lrn_blocked", target="host", rtol=2e-6)  # fmt: skip


@pytest.mark.parametrize("alpha", [0.1, -0.1])
def test_powers_that_overflow_would_fill_padding_lanes(alpha):
    x = np.full((1, 3, 2, 2), 1e25, np.float32)
    with pytest.raises(Skip, match="padding lanes"):
        check("LRN", (x,), {"size": 3, "alpha": alpha, "beta": -0.5}, kernel="lrn_blocked")
