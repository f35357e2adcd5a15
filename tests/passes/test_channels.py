"""GatherChannels: which joins and cuts of channels become one copy, and which stay free."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops
from tinsmith.conditions import Scope
from tinsmith.graph import Graph, Type
from tinsmith.passes.channels import _picked
from tinsmith.sizes import symbol

ONLY = "-fuse-elementwise"


def conv(b, x, c, k=1, group=1, bias=False):
    w = b.w(c, x.shape[1] // group, k, k)
    return ops.Conv(x, w, b.w(c) if bias else None, pad=(k // 2,) * 4, group=group)


def cut(b, x, lo, hi, step=1):
    return ops.Slice(x, b.i(lo), b.i(hi), b.i(1), b.i(step))


def count(graph, name):
    return ops_of(graph).count(name)


def sources(graph):
    return [n.sources for n in graph.nodes if n.op.name == "ChannelGather"]


def unit(b, x, left=None):
    """A unit of ShuffleNet: half of the channels pass, the others are convolved."""
    half = x.shape[1] // 2
    kept, used = cut(b, x, 0, half), cut(b, x, half, 2 * half)
    used = ops.Relu(conv(b, used, half, bias=True))
    used = conv(b, used, half, 3, group=half, bias=True)
    used = ops.Relu(conv(b, used, half, bias=True))
    return ops.ChannelShuffle(ops.Concat(kept, used, axis=1), groups=2)


def test_a_chain_of_units_copies_each_channel_once():
    b = Builder()
    x = ops.ChannelShuffle(conv(b, b.x(2, 8, 5, 4), 20), groups=2)
    for _ in range(3):
        x = unit(b, x)
    g = b.out(conv(b, x, 6))
    check(g, spec=ONLY)
    assert not {"Concat", "Slice", "ChannelShuffle"} & set(ops_of(g))
    # the last convolution and the first of the second and third unit read parts of several
    # tensors; the first unit reads some channels of one
    assert count(g, "ChannelGather") == 4
    for runs in sources(g):
        assert list(runs) == sorted(runs), "weights took the order of the origins"


def test_the_order_passes_a_depthwise_convolution_and_pools():
    b = Builder()
    x = ops.ChannelShuffle(conv(b, b.x(1, 8, 6, 6), 12), groups=3)
    y = ops.MaxPool(ops.Relu(conv(b, x, 12, 3, group=12, bias=True)), kernel=(2, 2))
    g = b.out(conv(b, y, 5, bias=True))
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 0 and count(g, "ChannelShuffle") == 0


def test_the_order_passes_any_number_of_activations():
    b = Builder()
    x = ops.ChannelShuffle(conv(b, b.x(1, 3, 4, 4), 6), groups=3)
    for _ in range(600):
        x = ops.Sigmoid(ops.Relu(x))
    g = b.out(conv(b, x, 5))
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 0 and count(g, "ChannelShuffle") == 0


@pytest.mark.parametrize("reader", ["grouped", "output", "run-time weights", "added", "norm"])
def test_the_order_stays_where_something_else_reads_it(reader):
    b = Builder()
    x = conv(b, b.x(1, 8, 6, 6), 12)
    y = ops.ChannelShuffle(x, groups=3)
    outs = [conv(b, y, 4)]
    if reader == "grouped":
        outs.append(conv(b, y, 6, group=2))
    elif reader == "output":
        outs.append(y)
    elif reader == "run-time weights":
        outs.append(ops.Conv(y, b.x(4, 12, 1, 1, name="weights")))
    elif reader == "added":
        outs.append(conv(b, ops.Add(conv(b, y, 12, 3, group=12), x), 4))
    else:
        outs.append(ops.InstanceNorm(y, b.w(12), b.w(12)))
    g = b.out(*outs)
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 1
    assert len(sources(g)[0]) == 12


def test_whole_blocks_stay_where_they_are():
    b = Builder()
    x = b.x(1, 8, 6, 6)
    y = ops.Concat(conv(b, x, 16), conv(b, x, 32), conv(b, x, 5), axis=1)
    parts = ops.Split(y, b.i(32, 21), axis=1)
    g = b.out(*(conv(b, p, 4) for p in parts))
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 0
    assert count(g, "Concat") == 1 and count(g, "Split") == 1


@pytest.mark.parametrize("sizes", [(12, 20), (16, 15, 1), (5, 16)])
def test_other_joins_are_copies(sizes):
    b = Builder()
    x = b.x(1, 8, 6, 6)
    g = b.out(ops.Relu(ops.Concat(*(conv(b, x, c) for c in sizes), axis=-3)))
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 1 and count(g, "Concat") == 0


@pytest.mark.parametrize(
    "lo, hi, step, runs",
    [(2, 9, 1, ((0, 2, 7),)), (-1, -100, -1, None), (1, 20, 3, None), (-5, 50, 1, ((0, 15, 5),))],
)
def test_cuts(lo, hi, step, runs):
    b = Builder()
    x = conv(b, b.x(2, 8, 3, 3), 20)
    g = b.out(ops.Tanh(cut(b, x, lo, hi, step)))
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 1
    assert runs is None or sources(g) == [runs]


def test_a_cut_of_a_join_reads_the_part():
    b = Builder()
    x = b.x(1, 8, 6, 6)
    one, two = conv(b, x, 7), conv(b, x, 9)
    y = ops.Concat(one, two, axis=1)
    g = b.out(ops.Tanh(cut(b, y, 7, 16)), ops.Tanh(cut(b, y, 3, 12)))
    check(g, spec=ONLY)
    assert sources(g) == [((0, 3, 4), (1, 0, 5))]


def test_far_from_convolutions_and_other_ranks_nothing_changes():
    b = Builder()
    g = b.out(
        ops.Tanh(ops.Concat(b.x(1, 3, 4, 4), b.x(1, 5, 4, 4, name="z"), axis=1)),
        ops.Concat(b.x(2, 3, name="p"), b.x(2, 5, name="q"), axis=1),
    )
    check(g, spec=ONLY)
    assert count(g, "ChannelGather") == 0 and count(g, "Concat") == 2


def test_a_region_whose_result_is_the_graph_input():
    b = Builder()
    x = b.x(1, 12, 4, 4)
    y = ops.ChannelShuffle(ops.ChannelShuffle(x, groups=3), groups=4)
    g = b.out(y, conv(b, y, 4))
    check(g, spec=ONLY)


def test_sizes_that_are_not_known():
    b = Builder()
    x = conv(b, b.x("N", 8, "H", "W"), 20)
    g = b.out(conv(b, ops.ChannelShuffle(cut(b, x, 3, 15), groups=2), 4))
    check(g, spec=ONLY)
    assert sources(g) == [((0, 3, 12),)]


def test_constants_may_be_joined():
    b = Builder()
    x = conv(b, b.x(1, 8, 4, 4), 6)
    table = b.graph.const(np.ones((1, 2, 4, 4), np.float32), "table")
    g = b.out(conv(b, ops.Concat(table, x, axis=1), 4))
    check(g, spec=ONLY)


def test_channels_that_only_a_call_tells_are_left():
    """What is rolled along axis 1 need not be channels."""
    graph = Graph("rolled")
    x = graph.input("x", Type(np.dtype("float32"), (1, symbol(Scope(), "h", 9, 2), 7, 8)))
    for _ in range(2):
        ends = ([3], [1 << 40]), ([0], [3])
        x = ops.Concat(*(ops.Slice(x, *pair, [1]) for pair in ends), axis=1)
    graph.outputs = [x]
    assert not any(_picked(n) for n in graph.nodes)
