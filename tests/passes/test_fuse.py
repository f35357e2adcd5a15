"""FuseElementwise: what goes into a region, and what must stay out."""

import numpy as np
import pytest

from tests.passes.build import Builder, check, ops_of, refused
from tinsmith import ops
from tinsmith.graph import Graph, Type


def regions(graph):
    """One list of operators for each Fused node, in order."""
    return [ops_of(n.body) for n in graph.nodes if n.op.name == "Fused"]


def conv(b, x, c=4):
    return ops.Conv(x, b.w(c, x.shape[1], 3, 3), pad=(1, 1, 1, 1))


def test_a_chain_ends_its_anchor():
    b = Builder()
    y = ops.Mul(ops.Relu(ops.Add(conv(b, b.x(1, 3, 6, 6)), b.w(1, 4, 6, 6))), b.c(0.3))
    g = b.out(ops.Tanh(y, name="last"))
    check(g, "machine")
    assert regions(g) == [["Conv", "Add", "Relu", "Mul", "Tanh"]]
    (node,) = g.nodes
    assert node.output.name == "last" and node.name == "conv"
    assert [v.name for v in node.inputs[:2]] == ["x", "w"]
    assert len(node.inputs) == 3, "one-element constants live in the body"


def test_a_value_used_twice_inside():
    b = Builder()
    y = conv(b, b.x(1, 3, 6, 6))
    g = b.out(ops.Mul(y, ops.Sigmoid(y)))
    check(g, "machine")
    assert regions(g) == [["Conv", "Sigmoid", "Mul"]]


def test_not_past_a_graph_output():
    b = Builder()
    y = conv(b, b.x(1, 3, 6, 6))
    r = ops.Relu(y)
    g = b.out(ops.Tanh(r), r)
    check(g, "machine")
    assert regions(g) == [["Conv", "Relu"]]


def test_not_past_a_second_consumer():
    b = Builder()
    y = conv(b, b.x(1, 3, 6, 6))
    g = b.out(ops.Relu(y), ops.Softmax(y, axis=1))
    report = check(g, "machine")
    assert regions(g) == []
    assert any("Softmax" in why.reason for why in refused(report.refusals, "conv"))


def test_the_gate_of_squeeze_and_excite_stays_outside():
    b = Builder()
    y = ops.Relu(conv(b, b.x(1, 3, 6, 6)))
    gate = ops.Sigmoid(ops.Conv(ops.GlobalPool(y), b.w(4, 4, 1, 1)))
    g = b.out(ops.Mul(y, gate))
    check(g, "machine")
    assert regions(g) == [["Conv", "Relu"], ["Conv", "Sigmoid"]]
    assert ops_of(g)[-1] == "Mul"


def test_a_residual_goes_to_the_later_anchor():
    b = Builder()
    x = b.x(1, 4, 6, 6)
    first, second = conv(b, x), conv(b, x)
    g = b.out(ops.Relu(ops.Add(first, second)))
    check(g, "machine")
    assert ops_of(g) == ["Conv", "Fused"]
    assert regions(g) == [["Conv", "Add", "Relu"]]


def test_an_elementwise_producer_joins_the_region_that_reads_it():
    b = Builder()
    x = b.x(1, 4, 6, 6)
    y = ops.Add(conv(b, x), ops.Tanh(ops.Neg(x)))
    g = b.out(y)
    check(g, "machine")
    assert sorted(regions(g)[0]) == ["Add", "Conv", "Neg", "Tanh"]


def test_what_the_anchor_itself_reads_stays_outside():
    b = Builder()
    x = ops.Tanh(b.x(1, 4, 6, 6))
    g = b.out(ops.Relu(conv(b, x)))
    check(g, "machine")
    assert ops_of(g) == ["Tanh", "Fused"]
    c = Builder()
    x = ops.Tanh(c.x(1, 4, 6, 6))
    h = c.out(ops.Add(conv(c, x), x))
    check(h, "machine")
    assert ops_of(h) == ["Tanh", "Fused"]


def test_a_larger_broadcast_is_not_absorbed():
    b = Builder()
    y = ops.MatMul(b.x(1, 5), b.w(5, 4))
    g = b.out(ops.Add(y, b.w(3, 4)))
    check(g, "machine")
    assert regions(g) == []


def test_elementwise_nodes_alone():
    b = Builder()
    x = b.x("N", 4)
    g = b.out(ops.Softmax(ops.Mul(ops.Exp(x), ops.Neg(x))), ops.Relu(ops.Softmax(x)))
    check(g, "machine", sizes={"N": 3})
    assert [sorted(r) for r in regions(g)] == [["Exp", "Mul", "Neg"]]
    assert ops_of(g).count("Relu") == 1, "one node alone is not a region"


def test_different_symbols_are_different_shapes():
    b = Builder()
    y = ops.Relu(b.x("N", 4))
    g = b.out(ops.Add(y, b.x("M", 4, name="z")))
    check(g, "machine")
    assert regions(g) == []


def test_types_are_not_mixed():
    b = Builder()
    x = b.x(3, 4)
    wide = ops.Cast(ops.Relu(x), to="float64")
    g = b.out(ops.Exp(ops.Neg(wide)), ops.Where(ops.Less(x, b.c(0.0)), x, b.c(1.0)))
    check(g, "machine")
    assert regions(g) == [["Neg", "Exp"]]


def test_regions_are_bounded():
    b = Builder()
    y = conv(b, b.x(1, 3, 4, 4))
    for _ in range(10):
        y = ops.Tanh(y)
    g = b.out(y)
    check(g, "machine", spec="fuse-elementwise{max-nodes=4}")
    assert max(map(len, regions(g))) == 4
    assert sum(map(len, regions(g))) == 11


def test_other_anchors_on_request():
    b = Builder()
    make = lambda: ops.Relu(ops.Neg(ops.Softmax(b.x(2, 5, name="x"))))  # noqa: E731
    g = b.out(make())
    check(g, "machine", spec="fuse-elementwise{anchors=Softmax|LayerNorm}")
    assert regions(g) == [["Softmax", "Neg", "Relu"]]


def test_an_anchor_whose_other_output_is_used():
    b = Builder()
    x = b.x(3, 2, 4)
    y, h = ops.GRU(x, b.w(1, 15, 4), b.w(1, 15, 5), hidden_size=5)
    g = b.out(ops.Relu(y), h)
    check(g, "machine")
    assert regions(g) == []


def test_batchnorm_is_lowered_and_fused():
    b = Builder()
    x = b.x(1, 4, 6, 6)
    y = ops.BatchNorm(ops.Concat(x, x, axis=1), b.w(8), b.w(8), b.w(8), b.c(np.ones(8)))
    g = b.out(ops.Relu(y))
    check(g)
    assert regions(g) == [["Mul", "Add", "Relu"]]
    fused = g.nodes[-1]
    assert [v.shape for v in fused.inputs[1:]] == [(8, 1, 1), (8, 1, 1)]


def test_float16_regions():
    g = Graph()
    x = g.input("x", Type("float16", (3, 4)))
    g.outputs.append(ops.Tanh(ops.Relu(x)))
    check(g, "machine")
    assert regions(g) == [["Relu", "Tanh"]]


@pytest.mark.parametrize("stage", ["machine", "portable"])
def test_a_fused_graph_is_left_alone(stage):
    b = Builder()
    g = b.out(ops.Relu(conv(b, b.x(1, 3, 6, 6))))
    check(g, "machine")
    text = str(g)
    check(g, stage)
    assert str(g) == text


def test_a_bias_and_a_residual_behind_a_reshape_go_up_to_the_product():
    b = Builder()
    x = b.x(2, 3, 8)
    y = ops.Reshape(ops.MatMul(ops.Reshape(x, b.i(6, 8)), b.w(8, 8)), b.i(2, 3, 8))
    g = b.out(ops.Relu(ops.Add(ops.Add(y, b.w(1, 1, 8)), x)))
    check(g)
    assert regions(g) == [["MatMul", "Add", "Add", "Relu"]]


def test_nothing_goes_up_to_a_product_that_is_read_twice():
    b = Builder()
    y = ops.MatMul(b.x(6, 8), b.w(8, 8))
    g = b.out(ops.Relu(ops.Reshape(y, b.i(2, 3, 8))), ops.Softmax(y))
    check(g)
    assert ops_of(g) == ["MatMul", "Reshape", "Relu", "Softmax"]
