"""Winograd's convolutions where only a call tells the sizes: one program, against references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import level_param
from tinsmith import ops
from tinsmith.graph import Graph, Type

TARGETS = list(map(level_param, ("sse2", "avx2", "avx512")))
SIZES = ((3, 40, 36), (1, 7, 7), (2, 3, 2), (4, 13, 31), (1, 56, 57), (2, 2, 50), (1, 17, 23))
"""Smaller than a tile, of one block and of many, with tiles that reach beyond every edge."""


def conv(channels: int, outputs: int, kernel: tuple[int, ...], **attrs: Any) -> Graph:
    rng, graph = np.random.default_rng(0), Graph("g")
    dims = ("n", channels, *("hw"[-len(kernel) :]))
    x = graph.input("x", Type("float32", dims))
    w = rng.standard_normal((outputs, channels, *kernel)) / np.sqrt(channels * np.prod(kernel))
    b = graph.const(rng.standard_normal(outputs).astype(np.float32), "b")
    y = ops.Conv(x, graph.const(w.astype(np.float32), "w"), b, name="conv", **attrs)
    graph.outputs = [ops.Relu(y)]
    return graph


def picture(channels: int, *sizes: int) -> Any:
    n, *rest = sizes
    x = np.random.default_rng(sum(sizes)).standard_normal((n, channels, *rest))
    return x.astype(np.float32)


def agree(graph: Graph, pictures: list[Any], **options: Any) -> int:
    """Compare with the reference; how many programs it took."""
    net = ts.compile(graph.clone(), shapes="free", cache=False, **options)
    reference = ts.compile(graph, backend="numpy")
    programs, kernels = set[str](), set[str]()
    for x in pictures:
        found, wanted = net(x), reference(x)
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-9)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5 * scale)
        kernels |= {s.kernel for s in net.program().plan.steps}
        programs.add(str(net.program().takes))
    assert "winograd" in kernels, net.explain("conv")
    return len(programs)


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
    programs = agree(graph, [picture(35, *s) for s in SIZES], target=target, threads=threads)
    assert programs <= 3 or threads > 1  # of one image, of few places, of many


@pytest.mark.parametrize("precision", ["default", "strict"])
def test_signals(precision: str) -> None:
    pictures = [picture(32, n, t) for n, t in ((2, 100), (2, 3), (3, 1001), (2, 17))]
    agree(conv(32, 33, (3,), pad=(1, 1)), pictures, precision=precision)


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
