"""Taps that only see padding: which are dropped, and that nothing else changes."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops

CASES = {
    "centre only": ((1, 3, 5, 6), (3, 3), {"dilation": (7, 6), "pad": (7, 6, 7, 6)}, (1, 1)),
    "one pixel": ((2, 3, 1, 1), (3, 3), {"pad": (1, 1, 1, 1)}, (1, 1)),
    "one row": ((1, 3, 1, 9), (5, 3), {"pad": (2, 1, 2, 1)}, (1, 3)),
    "one side": ((1, 3, 2, 9), (4, 1), {"pad": (3, 0, 1, 0)}, (3, 1)),
    "stride jumps over pixels": ((1, 3, 3, 3), (5, 5), {"pad": (2,) * 4, "stride": (4, 4)}, (3, 3)),
    "groups": ((1, 4, 1, 4), (3, 3), {"pad": (1,) * 4, "group": 2}, (1, 3)),
    "line": ((1, 3, 4), (3,), {"dilation": (6,), "pad": (6, 6)}, (1,)),
    "pads too small to shrink": (
        (1, 3, 3, 3),
        (2, 2),
        {"dilation": (5, 5), "pad": (3, 3, 3, 3)},
        (2, 2),
    ),
    "all alive": ((1, 3, 5, 6), (3, 3), {"pad": (1,) * 4}, (3, 3)),
    "only padding": ((1, 3, 1, 1), (1, 1), {"pad": (3,) * 4, "stride": (5, 5)}, (1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_taps_that_see_no_pixel_go(name):
    shape, kernel, attrs, left = CASES[name]
    b = Builder()
    x = b.x(*shape)
    channels = shape[1] // attrs.get("group", 1)
    graph = b.out(ops.Conv(x, b.w(4, channels, *kernel), b.w(4), **attrs))
    check(graph)
    assert ops_of(graph) == ["Conv"]
    assert graph.nodes[0].inputs[1].shape[2:] == left


def test_infinite_weights_keep_their_padding():
    b = Builder()
    w = b.w(2, 3, 3, 3)
    w.const[0, 0, 0, 0] = np.inf
    graph = b.out(ops.Conv(b.x(1, 3, 1, 1), w, pad=(1, 1, 1, 1)))
    with np.errstate(invalid="ignore"):
        check(graph)
    assert graph.nodes[0].inputs[1].shape == (2, 3, 3, 3)


@pytest.mark.parametrize(
    ("size", "dilation", "pad", "parts"),
    [
        ((8, 9), (6, 7), (6, 7, 6, 7), 9),
        ((8, 9), (6, 7), (6, 0, 6, 14), 6),
        ((9, 3), (5, 1), (5, 0, 5, 0), 0),
        ((10, 10), (4, 4), (4, 4, 4, 4), 0),
    ],
)
def test_far_taps_become_products_of_parts(size, dilation, pad, parts):
    b = Builder()
    x = b.x(2, 512, *size)
    y = ops.Relu(ops.Conv(x, b.w(512, 512, 3, 3), b.w(512), dilation=dilation, pad=pad))
    graph = b.out(y)
    check(graph, "portable", "machine", tolerance=1e-4)
    kernels = [n for n in _all_nodes(graph) if n.op.name == "Conv"]
    assert len(kernels) == (parts or 1)
    assert all(n.inputs[1].shape[2:] == ((1, 1) if parts else (3, 3)) for n in kernels)


@pytest.mark.parametrize(
    ("size", "kernel", "dilation", "pad"),
    [((1, 1), (2, 2), 2, 1), ((1, 2), (2, 2), 3, 2), ((1, 1, 1), (2, 2, 2), 4, 2)],
)
def test_taps_that_all_see_padding_only(size, kernel, dilation, pad):
    """What is left is the bias."""
    rank = len(size)
    b = Builder()
    x = b.x(1, 64, *size)
    attrs = {"dilation": (dilation,) * rank, "pad": (pad,) * (2 * rank)}
    graph = b.out(ops.Relu(ops.Conv(x, b.w(7, 64, *kernel), b.w(7), **attrs)))
    check(graph, "portable", "machine", tolerance=1e-4)


def _all_nodes(graph):
    for node in graph.nodes:
        yield node
        if "body" in node.attrs:
            yield from _all_nodes(node.attrs["body"])
