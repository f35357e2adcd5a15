"""Padding lanes stay zero where results are infinite: zero times those is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.harness import check, levels
from tinsmith.kernels._kernel import Skip

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "conv_direct": ((1, 16, 6, 5), (21, 16, 3, 3), {"pad": (1, 1, 1, 1)}),
    "conv_first_layer": ((1, 3, 9, 8), (21, 3, 3, 3), {"stride": (2, 2), "pad": (1, 1, 1, 1)}),
    "conv_few_outputs": ((1, 32, 6, 5), (3, 32, 3, 3), {"pad": (1, 1, 1, 1)}),
    "conv_grouped": ((1, 32, 6, 5), (42, 16, 3, 3), {"group": 2, "pad": (1, 1, 1, 1)}),
    "conv_grouped side by side": ((1, 21, 6, 5), (21, 3, 3, 3), {"group": 7, "pad": (1, 1, 1, 1)}),
    "winograd": ((1, 32, 12, 11), (37, 32, 3, 3), {"pad": (1, 1, 1, 1)}),
    "winograd_taps": ((1, 130, 5, 6), (69, 130, 3, 3), {"pad": (1, 1, 1, 1)}),
    "conv_transposed of one channel": ((1, 1, 5, 4), (1, 1, 3, 3), {"stride": (2, 2)}),
    "conv_transposed": ((1, 16, 5, 4), (16, 21, 3, 3), {"stride": (2, 2)}),
}


@pytest.mark.parametrize("name", levels())
@pytest.mark.parametrize("epilogue", [[], [("Relu",)]], ids=["plain", "relu"])
@pytest.mark.parametrize("kernel", CONVS)
def test_convolutions_of_infinity(kernel: str, epilogue: list[Any], name: str) -> None:
    shape, taps, attrs = CONVS[kernel]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    x[0, -1, 2, 2] = np.inf
    w = rng.standard_normal(taps, np.float32)
    kernel = kernel.split()[0]
    op = "ConvTranspose" if kernel == "conv_transposed" else "Conv"
    rank = len(shape) - 2
    attrs = {"stride": (1,) * rank, **attrs}
    try:
        with np.errstate(invalid="ignore"):
            check(op, [x, w], attrs, kernel=kernel, target=name, consts=(1,), epilogue=epilogue,
                  rtol=1e-3)  # fmt: skip
    except Skip as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("name", levels())
def test_a_maximum_of_padding_alone(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 1, 4), np.float32)
    attrs = {"kernel": (2, 2), "stride": (1, 1), "dilation": (2, 1), "pad": (1, 0, 1, 0)}
    check("MaxPool", [x], attrs, kernel="pool_max", target=name)
