"""FuseBlocks: what becomes a block, and what must stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of
from tinsmith import ops
from tinsmith.graph import Graph


def blocks(graph: Graph) -> list[list[str]]:
    """The operators of each Block, with those of Fused nodes in their place."""

    def inner(g):
        for n in g.nodes:
            yield from ops_of(n.body) if n.op.name == "Fused" else [n.op.name]

    return [list(inner(n.body)) for n in graph.nodes if n.op.name == "Block"]


def point(b, x, c, w=None, **attrs):
    return ops.Conv(x, b.w(c, x.shape[1], 1, 1) if w is None else w, b.w(c), **attrs)


def depth(b, x, k=3, **attrs):
    c, pad = x.shape[1], (k // 2,) * 4
    return ops.Conv(x, b.w(c, 1, k, k), b.w(c), group=c, pad=pad, **attrs)


def relu6(x):
    return ops.Clip(x, min=0.0, max=6.0)


def test_an_inverted_residual():
    b = Builder()
    x = b.x(1, 4, 6, 6)
    y = point(b, relu6(depth(b, relu6(point(b, x, 12)))), 4)
    g = b.out(ops.Add(y, x, name="sum"))
    check(g, "machine")
    assert blocks(g) == [["Conv", "Clip", "Conv", "Clip", "Conv", "Add"]]
    (node,) = g.nodes
    assert [v.name for v in node.inputs] == ["x"], "constants live inside"
    assert node.output.name == "sum" and g.outputs == [node.output]


def test_strides_and_a_residual_from_elsewhere():
    b = Builder()
    x, r = b.x(2, 4, 7, 9), b.x(2, 5, 4, 5, name="r")
    g = b.out(ops.Add(point(b, depth(b, point(b, x, 8), 5, stride=(2, 2)), 5), r))
    check(g, "machine")
    assert blocks(g) == [["Conv", "Conv", "Conv", "Add"]]
    assert [v.name for v in g.nodes[0].inputs] == ["x", "r"]


@pytest.mark.parametrize("order", ["point last", "point first"])
def test_a_result_that_an_epilogue_reads_once_more_ends_the_block(order):
    b = Builder()
    x = b.x(1, 4, 6, 6)
    first, second = (depth, point) if order == "point last" else (point, depth)
    y = ops.Relu(first(b, x, 3) if first is depth else first(b, x, 4))
    again = second(b, y, 3) if second is depth else second(b, y, 4)
    g = b.out(ops.Add(again, y))
    check(g, "machine")
    assert blocks(g) == []


def test_residuals_inside():
    b = Builder()
    x, r = b.x(1, 4, 6, 6), b.x(1, 4, 6, 6, name="r")
    e = ops.Relu(ops.Add(point(b, x, 4), x))
    d = ops.Tanh(ops.Mul(depth(b, e), r))
    check(b.out(ops.Add(point(b, d, 4), r)), "machine")
    assert blocks(b.graph) == [["Conv", "Add", "Relu", "Conv", "Mul", "Tanh", "Conv", "Add"]]


@pytest.mark.parametrize("first", [True, False])
def test_two_of_three(first):
    b = Builder()
    x = ops.MaxPool(b.x(1, 4, 6, 6), kernel=(1, 1))
    y = depth(b, point(b, x, 8)) if first else point(b, depth(b, x), 8)
    g = b.out(ops.Softmax(y, axis=1))
    check(g, "machine")
    assert blocks(g) == [["Conv", "Conv"]]


def test_the_gate_of_squeeze_and_excite_parts_a_block():
    b = Builder()
    y = ops.Relu(depth(b, ops.Relu(point(b, b.x(1, 4, 6, 6), 8))))
    gate = ops.Sigmoid(point(b, ops.GlobalPool(y), 8))
    g = b.out(point(b, ops.Mul(y, gate), 4))
    check(g, "machine")
    assert blocks(g) == [["Conv", "Relu", "Conv", "Relu"], ["Mul", "Conv"]]


def test_chains_share_nothing():
    b = Builder()
    y = b.x(1, 4, 6, 6)
    for _ in range(3):
        y = ops.Add(point(b, relu6(depth(b, relu6(point(b, y, 8)))), 4), y)
    check(b.out(y), "machine")
    assert len(blocks(b.graph)) == 3 == len(b.graph.nodes)


def expanded_twice_read(b):
    e = point(b, b.x(1, 4, 6, 6), 8)
    return (ops.Softmax(e, axis=1), point(b, depth(b, e), 4)), [["Conv", "Conv"]], "read 2 times"


def expanded_is_an_output(b):
    e = point(b, b.x(1, 4, 6, 6), 8)
    return (e, depth(b, e)), [], "is a graph output"


def filtered_is_an_output(b):
    d = depth(b, b.x(1, 4, 6, 6))
    return (d, point(b, d, 8)), [], "its result is a graph output"


def grouped(b):
    e = point(b, b.x(1, 4, 6, 6), 8)
    d = ops.Conv(e, b.w(8, 2, 3, 3), group=4, pad=(1, 1, 1, 1))
    return (point(b, d, 4),), [], ""


def a_multiplier(b):
    e = point(b, b.x(1, 4, 6, 6), 8)
    d = ops.Conv(e, b.w(16, 1, 3, 3), group=8, pad=(1, 1, 1, 1))
    return (point(b, d, 4),), [], ""


def dynamic_pointwise(b):
    w = b.x(8, 4, 1, 1, name="w")
    e = ops.Conv(b.x(1, 4, 6, 6), w)
    return (depth(b, e),), [], "constant weights"


def dynamic_depthwise(b):
    e = point(b, b.x(1, 8, 6, 6), 8)
    d = ops.Conv(e, b.x(8, 1, 3, 3, name="w"), group=8, pad=(1, 1, 1, 1))
    return (point(b, d, 4),), [], "its weights are not constants"


def dynamic_bias(b):
    x = b.x(1, 8, 6, 6)
    d = ops.Conv(x, b.w(8, 1, 3, 3), b.x(8, name="bias"), group=8)
    return (point(b, d, 4),), [], "its weights are not constants"


def strided_pointwise(b):
    e = point(b, b.x(1, 4, 9, 9), 8, stride=(2, 2))
    return (depth(b, e),), [], "is no 1x1 convolution"


def padded_pointwise(b):
    e = point(b, b.x(1, 4, 6, 6), 8, pad=(1, 1, 1, 1))
    return (depth(b, e),), [], "is no 1x1 convolution"


def wider_after(b):
    d = depth(b, b.x(1, 4, 6, 6))
    return (ops.Conv(d, b.w(8, 4, 3, 3)),), [], "is no 1x1 convolution"


def weights_from_inside(b):
    d = depth(b, b.x(1, 8, 1, 1), k=1)
    return (ops.Conv(b.x(1, 8, 4, 4, name="y"), d),), [], "is no 1x1 convolution"


def scaled(b):
    x = b.x(1, 4, 6, 6)
    return ops.Mul(x, ops.Sigmoid(ops.GlobalPool(x)))


def scaled_and_read_twice(b):
    y = scaled(b)
    return (point(b, y, 8), ops.Softmax(y, axis=1)), [], "is read 2 times"


def scaled_and_an_output(b):
    y = scaled(b)
    return (point(b, y, 8), y), [], "is a graph output"


def scaled_before_another_window(b):
    return (ops.Conv(scaled(b), b.w(8, 4, 3, 3)),), [], "no 1x1 convolution of one group"


@pytest.mark.parametrize(
    "case",
    [
        scaled_and_read_twice, scaled_and_an_output, scaled_before_another_window,
        expanded_twice_read, expanded_is_an_output, filtered_is_an_output, grouped, a_multiplier,
        dynamic_pointwise, dynamic_depthwise, dynamic_bias, strided_pointwise, padded_pointwise,
        wider_after, weights_from_inside,
    ],
)  # fmt: skip
def test_near_misses(case):
    b = Builder()
    outputs, want, reason = case(b)
    g = b.out(*outputs)
    report = check(g, "machine", spec="-lower-windows")
    assert blocks(g) == want
    told = [r.reason for r in report.refusals if r.rule == "fuse-blocks"]
    if not want:
        assert bool(told) == bool(reason) and all(reason in r for r in told), told


def test_one_channel_is_no_depthwise_convolution():
    b = Builder()
    g = b.out(point(b, ops.Conv(b.x(1, 1, 6, 6), b.w(1, 1, 3, 3)), 4))
    check(g, "machine")
    assert blocks(g) == []


def test_symbolic_shapes_stay_apart():
    b = Builder()
    g = b.out(point(b, depth(b, b.x("N", 4, 6, 6)), 8))
    check(g, "machine")
    assert blocks(g) == []


def test_other_types_keep_their_values():
    b = Builder("float64")
    g = b.out(point(b, depth(b, point(b, b.x(1, 4, 6, 6), 8)), 4))
    check(g, "machine", tolerance=1e-12)
    assert blocks(g) == [["Conv", "Conv", "Conv"]]
    import tinsmith as ts

    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6))
    want = ts.compile(g.clone(), backend="numpy")(x)
    np.testing.assert_allclose(ts.compile(g, cache=False)(x), want, rtol=1e-12)
