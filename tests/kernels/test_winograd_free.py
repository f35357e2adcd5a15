"""Winograd's convolutions where only a call tells the sizes: one program, against references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.free_convs import agree, conv, picture
from tests.kernels.harness import level_param

TARGETS = list(map(level_param, ("sse2", "avx2", "avx512")))
SIZES = ((3, 40, 36), (1, 7, 7), (2, 3, 2), (4, 13, 31), (1, 56, 57), (2, 2, 50), (1, 17, 23))
"""Smaller than a tile, of one block and of many, with tiles that reach beyond every edge."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((3, 3), {"pad": (1, 1, 1, 1)}),
        ((5, 5), {"pad": (2, 2, 2, 2)}),
        ((3, 3), {"auto_pad": "SAME_UPPER"}),
        ((3, 5), {"pad": (0, 2, 2, 1)}),
    ],
)
def test_any_size(kernel: tuple[int, ...], attrs: Any, target: str, threads: int) -> None:
    graph = conv(35, 50, kernel, **attrs)
    programs = agree(
        "winograd", graph, [picture(35, *s) for s in SIZES], target=target, threads=threads
    )
    assert programs <= 3 or threads > 1  # of one image, of few places, of many


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "size", "pad"),
    [(3, 7, (3, 3, 3, 3)), (1, 7, (0, 0, 0, 0)), (4, 5, (2, 1, 2, 3)), (3, 3, (1, 1, 1, 1))],
)
def test_stems_of_any_size(
    channels: int, size: int, pad: tuple[int, ...], target: str, threads: int
) -> None:
    graph = conv(channels, 40, (size, size), pad=pad, stride=(2, 2))
    sizes = ((2, 224, 200), (3, 40, 36), (1, 7, 7), (4, 13, 31), (1, 56, 57), (2, 9, 50), (1, 8, 9))
    results = [min(n + pad[i] + pad[i + 2] - size for i, n in enumerate(s[1:])) for s in sizes]
    pictures = [picture(channels, *s) for s, n in zip(sizes, results, strict=True) if n >= 2]
    kernel = {"kernels": {"conv": "winograd_stem"}}
    options = {"target": target, "threads": threads, **kernel}
    assert agree("winograd_stem", graph, pictures, **options) <= 3 or threads > 1


@pytest.mark.parametrize("precision", ["default", "strict"])
def test_signals(precision: str) -> None:
    pictures = [picture(32, n, t) for n, t in ((2, 100), (2, 3), (3, 1001), (2, 17))]
    agree("winograd", conv(32, 33, (3,), pad=(1, 1)), pictures, precision=precision)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_what_is_not_like_the_rest_stays_where_it_is(value: float) -> None:
    """Tiles with such an element are computed by the definition, in blocks of any number."""
    pictures = [picture(32, *s) for s in ((2, 30, 41), (2, 5, 6), (2, 64, 64))]
    for x in pictures:
        x[1, 7, 2, 3] = value
    graph = conv(32, 32, (3, 3), pad=(1, 1, 1, 1))
    net, reference = ts.compile(graph.clone(), shapes="free"), ts.compile(graph, backend="numpy")
    for x in pictures:
        found, wanted = net(x), reference(x)
        assert (np.isfinite(found) == np.isfinite(wanted)).all()
        rest = np.abs(wanted) < 1e4
        assert np.abs(found[rest] - wanted[rest]).max() < 1e-2 * np.abs(wanted[rest]).max()
