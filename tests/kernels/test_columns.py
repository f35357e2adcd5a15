"""Blocks summed into images, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels

RNG = np.random.default_rng(6)
CASES = [
    ((5, 5), (2, 2), {}),
    ((4, 7), (3, 3), {"pad": (1, 1, 1, 1), "stride": (2, 1)}),
    ((6, 6), (2, 3), {"dilation": (2, 1), "stride": (1, 3)}),
    ((9,), (3,), {"stride": (4,)}),
    ((6, 7), (3, 2), {"stride": 2, "pad": 1}),
    ((9,), (3,), {"dilation": (3,), "pad": (5, 2)}),
    ((28, 28), (3, 3), {"pad": (1, 1, 1, 1), "stride": (2, 2)}),
    ((3, 40), (1, 2), {"pad": (0, 3, 1, 0)}),
    ((1, 1), (3, 3), {"pad": (1, 1, 1, 1)}),
    ((20, 33), (4, 4), {"stride": (4, 4)}),
]


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("batch, channels", [(1, 1), (2, 3)])
@pytest.mark.parametrize("image, block, attrs", CASES)
def test_images(image, block, attrs, batch, channels, target):
    rank = len(image)
    count, pad = 1, np.broadcast_to(attrs.get("pad", 0), 2 * rank)
    steps, gaps = (np.broadcast_to(attrs.get(name, 1), rank) for name in ("stride", "dilation"))
    for a in range(rank):
        span = gaps[a] * (block[a] - 1) + 1
        count *= (image[a] + pad[a] + pad[rank + a] - span) // steps[a] + 1
    x = RNG.standard_normal((batch, channels * int(np.prod(block)), count)).astype(np.float32)
    check("Col2Im", [x, np.array(image), np.array(block)], attrs, consts=(1, 2), kernel="col2im",
          target=target)  # fmt: skip
