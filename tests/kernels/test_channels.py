"""Channels picked from several tensors, blocked and plain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels

rng = np.random.default_rng(0)


def r(*dims: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(dims) * 100).astype(dtype)


def shuffled(groups: int, channels: int) -> tuple[tuple[int, int, int], ...]:
    each = channels // groups
    return tuple((g, c, 1) for c in range(each) for g in range(groups))


CASES = {
    "join": ((r(1, 58, 7, 5), r(1, 58, 7, 5)), ((0, 0, 58), (1, 0, 58))),
    "shuffle": ((r(2, 29, 3, 3), r(2, 29, 3, 3)), shuffled(2, 58)),
    "cut": ((r(1, 116, 28, 28),), ((0, 58, 58),)),
    "one pixel": ((r(3, 40, 1, 1), r(3, 7, 1, 1)), ((1, 2, 5), (0, 3, 30), (1, 0, 1))),
    "reverse": ((r(1, 21, 2, 9),), tuple((0, c, 1) for c in range(20, -1, -1))),
    "repeat": ((r(1, 5, 4, 4),), ((0, 1, 3), (0, 0, 5), (0, 1, 3))),
    "one lane": ((r(1, 33, 4, 4), r(1, 1, 4, 4)), ((1, 0, 1), (0, 32, 1))),
    "whole blocks": ((r(1, 48, 4, 4),), ((0, 16, 16), (0, 0, 16))),
    "volume": ((r(2, 6, 3, 2, 5), r(2, 9, 3, 2, 5)), ((1, 4, 5), (0, 1, 4))),
    "rows": ((r(2, 6, 70),), ((0, 5, 1), (0, 0, 3))),
}


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 2])
@pytest.mark.parametrize("pick", [0, 1], ids=["plain", "blocked"])
@pytest.mark.parametrize("name", CASES)
def test_channels_equal_the_reference(name: str, pick: int, halo: int, target: str) -> None:
    if halo and not pick:
        pytest.skip("plain tensors have no halo")
    arrays, sources = CASES[name]
    check(
        "ChannelGather", arrays, {"sources": sources}, kernel="channel_gather", target=target,
        extra_halo=halo, pick=pick, rtol=0,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64"])
def test_other_element_types_are_plain(dtype: str) -> None:
    arrays = (r(2, 5, 3, 3, dtype=dtype), r(2, 4, 3, 3, dtype=dtype))
    choice = check(
        "ChannelGather", arrays, {"sources": ((1, 1, 3), (0, 0, 5))}, kernel="channel_gather"
    )
    assert choice.writes[0].is_plain
