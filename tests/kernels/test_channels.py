"""Channels picked from several tensors, blocked and plain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels
from tinsmith import compile as compile_model
from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.ops.interpret import run_graph

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


@pytest.mark.parametrize("target", levels())
def test_units_of_shuffles_stay_blocked(target):
    """Three units of 26 channels, compiled: one copy each, no change of layout between them."""
    g = Graph("units")
    const = lambda *dims: g.const(r(*dims) / 200, "w")  # noqa: E731
    at = lambda *places: g.const(np.array(places, np.int64), "i")  # noqa: E731
    x = g.input("x", Type(np.dtype("float32"), (1, 20, 6, 5)))
    y = ops.Conv(x, const(26, 20, 1, 1))
    for _ in range(3):
        kept, used = (ops.Slice(y, at(lo), at(lo + 13), at(1)) for lo in (0, 13))
        used = ops.Conv(ops.Relu(ops.Conv(used, const(13, 13, 1, 1))), const(13, 13, 1, 1))
        y = ops.ChannelShuffle(ops.Concat(kept, used, axis=1), groups=2)
    g.outputs = [ops.Conv(y, const(20, 26, 1, 1))]
    feed = r(1, 20, 6, 5)
    (want,) = run_graph(g, [feed])
    net = compile_model(g, target=target, cache=False)
    got = net(feed)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    kernels = [row.kernel for row in net.profile(feed, repeat=1).rows]
    assert kernels.count("channel_gather") == 4
    assert not {"concat_strided", "slice_strided", "channelshuffle_strided"} & set(kernels)
    assert kernels.count("relayout") <= 2, "only where the model begins and ends"
