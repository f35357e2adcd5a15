"""Branches of one input that are added: which become one convolution or product, and which stay."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, check, ops_of
from tinsmith import ops

# dims of x, and of each branch: the weights' dims, and attributes
JOINED = {
    "1x1 with 3x3": ((2, 3, 5, 6), (4, 3, 3, 3), {"pad": (1,) * 4}, (4, 3, 1, 1), {}),
    "3x3 twice": ((1, 3, 5, 6), (4, 3, 3, 3), {"pad": (1,) * 4}, (4, 3, 3, 3), {"pad": (1,) * 4}),
    "1x3 with 3x3": (
        (1, 3, 5, 6), (4, 3, 3, 3), {"pad": (1,) * 4}, (4, 3, 1, 3), {"pad": (0, 1, 0, 1)},
    ),
    "3x3 with 7x7, depthwise": (
        (1, 4, 9, 8), (4, 1, 7, 7), {"pad": (3,) * 4, "group": 4},
        (4, 1, 3, 3), {"pad": (1,) * 4, "group": 4},
    ),
    "strided": (
        (1, 3, 7, 7), (4, 3, 3, 3), {"pad": (1,) * 4, "stride": (2, 2)},
        (4, 3, 1, 1), {"stride": (2, 2)},
    ),
    "dilated": (
        (1, 3, 9, 9), (4, 3, 5, 5), {"pad": (4,) * 4, "dilation": (2, 2)},
        (4, 3, 3, 3), {"pad": (2,) * 4, "dilation": (2, 2)},
    ),
    "1x1 with dilated": (
        (1, 3, 9, 9), (4, 3, 3, 3), {"pad": (2,) * 4, "dilation": (2, 2)}, (4, 3, 1, 1), {},
    ),
    "first tap": ((1, 3, 5, 6), (4, 3, 2, 2), {"pad": (0, 0, 1, 1)}, (4, 3, 1, 1), {}),
    "line": ((1, 3, 9), (4, 3, 3), {"pad": (1, 1)}, (4, 3, 1), {}),
    "volume": ((1, 2, 4, 3, 5), (4, 2, 3, 3, 3), {"pad": (1,) * 6}, (4, 2, 1, 1, 1), {}),
}  # fmt: skip
APART = {
    "neither in the other": (
        (1, 3, 5, 6), (4, 3, 3, 1), {"pad": (1, 0, 1, 0)}, (4, 3, 1, 3), {"pad": (0, 1, 0, 1)},
        "none of the other's",
    ),
    "groups": (
        (1, 4, 5, 6), (4, 4, 3, 3), {"pad": (1,) * 4}, (4, 1, 1, 1), {"group": 4}, "groups",
    ),
    "stride": (
        (1, 3, 4, 4), (4, 3, 1, 1), {"stride": (2, 2)}, (4, 3, 3, 3), {}, "strides differ",
    ),
    "between the taps": (
        (1, 3, 9, 9), (4, 3, 2, 2), {"pad": (1,) * 4, "dilation": (2, 2)}, (4, 3, 1, 1), {},
        "none of the other's",
    ),
    "dilations": (
        (1, 3, 9, 9), (4, 3, 3, 3), {"pad": (2,) * 4, "dilation": (2, 2)},
        (4, 3, 3, 3), {"pad": (1,) * 4}, "dilations differ",
    ),
    "broadcast": (
        (1, 3, 5, 6), (4, 3, 3, 3), {"pad": (1,) * 4}, (1, 3, 1, 1), {}, "broadcast",
    ),
}  # fmt: skip


def added(shape, one, first, other, second, biases=(True, True), turn=False):
    b = Builder()
    x = b.x(*shape)
    parts = [
        ops.Conv(x, b.w(*dims), b.w(dims[0]) if bias else None, **attrs)
        for dims, attrs, bias in ((one, first, biases[0]), (other, second, biases[1]))
    ]
    return b.out(ops.Relu(ops.Add(*(parts[::-1] if turn else parts))))


def norm(b, x):
    return ops.BatchNorm(x, b.w(4), b.w(4), b.w(4), b.c(np.array([0.5, 1, 2, 0.1])))


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("name", JOINED)
def test_added_convolutions_become_one(name, biases, turn):
    graph = added(*JOINED[name], biases=biases, turn=turn)
    check(graph, "portable")
    assert ops_of(graph) == ["Conv", "Relu"]


@pytest.mark.parametrize("name", APART)
def test_convolutions_that_do_not_fit_stay(name):
    *case, why = APART[name]
    graph = added(*case)
    report = check(graph, "portable")
    assert ops_of(graph).count("Conv") == 2
    assert any(why in r.reason for r in report.refusals if r.rule == "join_added_convs")


@pytest.mark.parametrize("other", ["pool", "dilated"])
def test_branches_join_past_what_is_added_between(other):
    b = Builder()
    x = b.x(1, 4, 6, 6)
    pool = ops.MaxPool(x, kernel=(3, 3), pad=(1,) * 4)
    far = ops.Conv(x, b.w(4, 4, 3, 3), pad=(2,) * 4, dilation=(2, 2))
    wide, point = ops.Conv(x, b.w(4, 4, 3, 3), pad=(1,) * 4), ops.Conv(x, b.w(4, 4, 1, 1))
    between = pool if other == "pool" else far
    total = ops.Add(ops.Add(ops.Add(wide, between), point), norm(b, x))
    graph = b.out(ops.Relu(total))
    check(graph, "portable")
    assert ops_of(graph).count("Conv") == (1 if other == "pool" else 2)
    assert "BatchNorm" not in ops_of(graph)


@pytest.mark.parametrize("where", ["weights", "biases"])
def test_infinite_sums_stay_apart(where):
    b = Builder()
    x, w, v = b.x(1, 3, 4, 4), b.w(4, 3, 1, 1), b.w(4, 3, 1, 1)
    one, other = b.w(4), b.w(4)
    if where == "weights":
        w.const[0, 0] = v.const[0, 0] = 3e38
    else:
        one.const[0] = other.const[0] = 3e38
    graph = b.out(ops.Add(ops.Conv(x, w, one), ops.Conv(x, v, other)))
    with np.errstate(over="ignore", invalid="ignore"):
        report = check(graph, "portable")
    assert ops_of(graph).count("Conv") == 2
    assert any("not finite" in r.reason for r in report.refusals)


def test_a_branch_with_another_reader_stays():
    b = Builder()
    x = b.x(1, 3, 4, 4)
    one = ops.Conv(x, b.w(4, 3, 1, 1))
    graph = b.out(ops.Add(one, ops.Conv(x, b.w(4, 3, 1, 1))), ops.Relu(one))
    check(graph, "portable")
    assert ops_of(graph).count("Conv") == 2


@pytest.mark.parametrize(
    ("dims", "attrs"),
    [
        ((4, 4, 3, 3), {"pad": (1,) * 4}),
        ((4, 2, 3, 3), {"pad": (1,) * 4, "group": 2}),
        ((4, 1, 5, 5), {"pad": (4,) * 4, "group": 4, "dilation": (2, 2)}),
        ((4, 4, 1, 1), {}),
        ((4, 4, 2, 2), {"pad": (1, 1, 0, 0)}),
    ],
)
def test_a_norm_beside_a_convolution_becomes_a_tap(dims, attrs):
    b = Builder()
    x = b.x(1, 4, 7, 7)
    graph = b.out(ops.Add(ops.Conv(x, b.w(*dims), **attrs), norm(b, x)))
    check(graph, "portable")
    assert ops_of(graph) == ["Conv"]


def test_a_norm_beside_a_strided_convolution_stays():
    b = Builder()
    x = b.x(1, 4, 1, 1)
    graph = b.out(ops.Add(ops.Conv(x, b.w(4, 4, 1, 1), stride=(2, 2)), norm(b, x)))
    report = check(graph, "portable")
    assert "BatchNorm" in ops_of(graph)
    assert any("stride is" in r.reason for r in report.refusals)


def test_a_block_of_branches_becomes_one_convolution():
    """RepVGG's block as exported: norms after two convolutions, and one alone."""
    b = Builder()
    x = b.x(2, 4, 6, 5)
    wide = norm(b, ops.Conv(x, b.w(4, 4, 3, 3), pad=(1,) * 4))
    point = norm(b, ops.Conv(x, b.w(4, 4, 1, 1)))
    total = ops.Add(ops.Add(ops.Add(wide, b.c(0.0)), point), norm(b, x))
    graph = b.out(ops.Relu(total))
    names = [n.name for n in graph.nodes]
    net = ts.compile(graph.clone(), cache=False)
    check(graph, "portable")
    assert ops_of(graph) == ["Conv", "Relu"]
    text = net.explain("conv")
    assert "conv.1 (join_added_convs)" in text and "batchnorm.2 (join_norm_with_conv)" in text
    assert {net.explain(name) for name in names} == {text}


@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_goes_into_the_weights_it_adapts(bias):
    b = Builder()
    x = b.x(3, 8)
    y = ops.MatMul(x, b.w(8, 6))
    y = ops.Add(y, b.w(6)) if bias else y
    low = ops.MatMul(ops.MatMul(x, b.w(8, 2)), b.w(2, 6))
    graph = b.out(ops.Add(y, ops.Mul(low, b.c(0.5))))
    check(graph, "portable")
    assert ops_of(graph) == ["MatMul", "Add"][: 1 + bias]


def test_products_of_one_input_are_added_in_their_weights():
    b = Builder()
    x = b.x(2, 3, 8)
    graph = b.out(ops.Add(ops.MatMul(x, b.w(8, 6)), ops.MatMul(x, b.w(8, 6))))
    check(graph, "portable")
    assert ops_of(graph) == ["MatMul"]
