"""Operators between integers: machine code against the references of the graph as written."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.kernels.harness import level_param
from tests.quantised import RNG, Net, chain, floats_of
from tinsmith import ops
from tinsmith.errors import DataError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.ops.control import run_graph

TARGETS = [level_param(n) for n in ("avx512vnni", "avx512", "avx2")]

CONVS = [
    ((1, 64, 14, 14), 64, (1, 1), {}),
    ((2, 48, 9, 11), 40, (3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 3, 33, 35), 32, (3, 3), {"pad": (1, 1, 1, 1), "stride": (2, 2)}),
    ((1, 20, 15, 15), 17, (3, 3), {"stride": (2, 2), "dilation": (2, 1)}),
    ((1, 24, 70), 24, (5,), {"pad": (2, 2)}),
    ((1, 48, 14, 15), 48, (3, 3), {"group": 6, "pad": (1, 1, 1, 1)}),
    ((1, 40, 14, 15), 40, (3, 3), {"group": 5, "pad": (1, 1, 1, 1)}),
    ((1, 48, 14, 15), 96, (3, 3), {"group": 3, "stride": (2, 2), "pad": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("low, zero", [("uint8", 0), ("uint8", 7), ("int8", -5)])
@pytest.mark.parametrize("x, outputs, kernel, attrs", CONVS)
def test_convolutions(x, outputs, kernel, attrs, low, zero, target):
    net = Net(*x, low=low, zero=zero)
    net.check(net.conv(net.x, outputs, *kernel, zero=0 if low == "int8" else 128, **attrs), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("zero", [0, 9])
@pytest.mark.parametrize("kernel, stride", [((3, 3), 1), ((3, 3), 2), ((5, 5), 1)])
def test_depthwise_convolutions(kernel, stride, zero, target):
    """Whatever the zero point, which is what padding counts as."""
    net, pad = Net(1, 40, 17, 18, zero=zero), tuple(k // 2 for k in kernel) * 2
    v = net.conv(net.x, 40, *kernel, scale=0.03, group=40, pad=pad, stride=(stride, stride))
    net.check(v, target)


@pytest.mark.parametrize("target", TARGETS)
def test_residual_sums_are_finished_with_the_convolution(target):
    net = Net(1, 32, 12, 12, zero=0)
    first = net.conv(net.x, 32, 3, 3, pad=(1, 1, 1, 1), scale=0.2)
    second = net.conv(first, 32, 1, 1, scale=0.3)
    total = ops.Add(net.real(second), net.real(first))
    done = net.check(net.low_of(ops.Relu(total), 0.4173, 0), target)
    if target == "avx512vnni":
        assert [s.kernel for s in done.program().plan.steps].count("conv_integer") == 2


@pytest.mark.parametrize("target", TARGETS)
def test_pools_and_joins_stay_bytes(target):
    net = Net(1, 32, 16, 16, zero=2)
    parts = [net.conv(net.x, n, 1, 1) for n in (32, 16)]
    join = ops.Concat(*map(net.real, parts), axis=1)
    join = net.low_of(join, *(parts[0][1], 128))
    pool = ops.MaxPool(net.real(join), kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    net.check(net.low_of(pool, parts[0][1], 128), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("low, zero", [("uint8", 11), ("int8", 4)])
def test_products(low, zero, target):
    net = Net(33, 70, low=low, zero=zero)
    y = ops.MatMul(net.real(net.x), ops.Transpose(net.weights(0, 45, 70), perm=(1, 0)))
    bias = RNG.standard_normal(45).astype(np.float32)
    net.check(net.low_of(ops.Add(y, bias), 0.1, 0 if low == "int8" else 100), target)


@pytest.mark.parametrize("target", TARGETS[:1])
def test_explain_says_why_a_convolution_stays_in_floats(target):
    net = Net(1, 32, 8, 8, zero=0)
    v = net.conv(net.x, 32, 3, 3, group=8)
    net.graph.outputs.append(v[0])
    told = ts.compile(net.graph, target=target, cache=False).explain()
    assert "its 8 groups have 4 to 4 channels, not multiples of 8" in str(told)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [(64, 32, 96), (40, 33, 50, 32)])
def test_convolutions_of_one_tap_are_bytes_without_fast_ones_too(channels, target):
    net, v = chain(*channels)
    assert floats_of(net.check(v, target, chained=True)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_residual_sums_between_convolutions_of_one_tap_are_bytes(target):
    net, v = chain(64, 64)
    total = net.low_of(ops.Add(net.real(net.conv(v, 64, 1, 1)), net.real(v)), 0.3, 9)
    assert floats_of(net.check(net.conv(total, 32, 1, 1), target, chained=True)) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [12, 20])
def test_nine_taps_between_bytes_take_no_steps_of_their_own(size, target):
    net, v = chain(64, 64, size=size)
    v = net.conv(v, 64, 3, 3, pad=(1, 1, 1, 1), scale=0.2)
    done = net.check(net.conv(v, 48, 1, 1), target, chained=True)
    steps = [s.kernel for s in done.program().plan.steps]
    assert floats_of(done) == []
    assert "conv_integer_winograd" in steps and "winograd" not in steps


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("r, bias", [(2, True), (3, False)])
def test_transposed_convolutions_side_by_side(r, bias, target):
    """They are products of bytes for each pixel, whose results move when they are bytes again."""
    net = Net(2, 64, 5, 7, zero=9)
    w = net.weights(1, 64, 48, r, r)
    args = (RNG.standard_normal(48).astype(np.float32),) if bias else ()
    y = ops.ConvTranspose(net.real(net.x), w, *args, stride=(r, r))
    done = net.check(net.low_of(y, 0.1, 128), target)
    steps = [s.kernel for s in done.program().plan.steps]
    assert floats_of(done) == [] and "conv_integer" in steps and "depth_to_space_blocks" in steps


def test_zero_points_of_transposed_weights_that_the_run_computes():
    net = Net(1, 64, 5, 6)
    w, scale = (
        RNG.integers(-127, 128, (64, 48, 2, 2)).astype(np.int8),
        np.full(48, 0.01, np.float32),
    )
    zeros = ops.Cast(ops.Relu(net.graph.input("z", Type(np.dtype(np.float32), (48,)))), to="int8")
    y = ops.ConvTranspose(
        net.real(net.x), ops.DequantizeLinear(w, scale, zeros, axis=1), stride=(2, 2)
    )
    net.graph.outputs.append(net.low_of(y, 0.1, 128)[0])
    feeds = {"x": RNG.integers(0, 256, (1, 64, 5, 6)).astype(np.uint8),
             "z": RNG.integers(-9, 9, 48).astype(np.float32)}  # fmt: skip
    want = run_graph(net.graph, feeds)[0].astype(int)
    done = ts.compile(net.graph, target="host", cache=False)
    assert np.abs(done.run(None, feeds)[0].astype(int) - want).max() <= 1
    assert "zero points of the weights are computed" in str(done.explain())


@pytest.mark.parametrize(
    "attrs, channels, why",
    [
        ({"stride": (2, 2), "pad": (1, 1, 1, 1)}, 64, "without padding"),
        ({"stride": (1, 1)}, 64, "do not lie side by side"),
        ({"stride": (2, 2)}, 16, "too few"),
    ],
)
def test_explain_says_why_a_transposed_convolution_is_of_floats(attrs, channels, why):
    net = Net(1, channels, 5, 6)
    y = ops.ConvTranspose(net.real(net.x), net.weights(1, channels, 48, 2, 2), **attrs)
    net.graph.outputs.append(net.low_of(y, 0.1, 128)[0])
    assert why in str(ts.compile(net.graph, cache=False).explain())


@pytest.mark.parametrize("target", TARGETS[1:])
def test_depthwise_convolutions_of_one_tap_do_not_keep_others_in_floats(target):
    net = Net(1, 64, 12, 12, zero=3)
    v = net.conv(net.x, 64, 3, 3, group=64, pad=(1, 1, 1, 1), scale=0.05)
    done = net.check(net.conv(v, 64, 1, 1, group=64, scale=0.05), target, chained=True)
    assert floats_of(done) == []


@pytest.mark.parametrize("target", TARGETS[1:])
def test_joined_bytes_are_quantised_where_they_are_computed(target):
    net, v = chain(64, 64)
    parts = [net.conv(v, 32, 1, 1, scale=s) for s in (0.2, 0.2531)]
    join = net.low_of(ops.Concat(*map(net.real, parts), axis=1), 0.3137, 128)
    assert floats_of(net.check(net.conv(join, 32, 1, 1), target, chained=True)) == []


@pytest.mark.parametrize("target", TARGETS[1:])
def test_what_only_moves_is_not_rounded_again(target):
    net = Net(4, 6, 64)
    steps = net.x[1:]
    y = ops.Transpose(net.real(net.x), perm=(1, 0, 2))
    y = ops.Reshape(net.real((ops.QuantizeLinear(y, *steps), *steps)), np.array([24, 64]))
    y = ops.MatMul(net.real((ops.QuantizeLinear(y, *steps), *steps)), net.weights(1, 64, 40))
    done = net.check(net.low_of(y, 0.1, 100), target)
    assert "elementwise" not in floats_of(done) and "matmul_integer" in str(done.explain())


@pytest.mark.parametrize("target", TARGETS[1:])
def test_explain_says_why_a_convolution_needs_fewer_products_as_floats(target):
    net = Net(1, 64, 20, 20, zero=0)
    net.graph.outputs.append(net.conv(net.x, 64, 5, 5, pad=(2, 2, 2, 2))[0])
    told = ts.compile(net.graph, target=target, cache=False).explain()
    assert "floats need fewer products for its 25 taps" in str(told)


ENDS = [1e-45, 1e-40, 1e-38, 1e-18, 1e18, 1e20, 3e38]
"""Scales near the ends of float32, whose inverses and products are beyond them."""


def of_scales(op, x, other, y):
    """`op` of bytes with the scale `x` and, of weights or other bytes, `other`, as bytes of `y`."""
    net = Net(1, 64, 4, 5, zero=100)
    v = net.real((net.x[0], np.float32(x), np.array(100, np.uint8)))
    if op == "Add":
        more = net.graph.input("more", net.x[0].type)
        v = ops.Add(v, net.real((more, np.float32(other), np.array(9, np.uint8))))
    elif op == "Conv":
        w = RNG.integers(-127, 128, (32, 64, 1, 1)).astype(np.int8)
        v = ops.Conv(v, ops.DequantizeLinear(w, np.float32(other)))
    else:
        v = ops.Relu(v) if op == "Relu" else ops.GlobalPool(v)
    net.graph.outputs.append(net.low_of(v, y, 7)[0])
    return net.graph


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("op", ["Conv", "Add", "Relu", "GlobalPool"])
def test_scales_near_the_ends_of_float32(op, place, target):
    rng = np.random.default_rng(0)  # no channel's mean is 100, which floats may miss by a little
    for end in ENDS:
        scales = [0.25, 0.5, 0.5]  # sums that are exact
        scales[place] = end
        graph = of_scales(op, *scales)
        arrays = [rng.integers(0, 256, v.dims).astype(np.uint8) for v in graph.inputs]
        arrays[-1].reshape(-1)[:9] = range(95, 104)  # around the zero point
        with np.errstate(all="ignore"):
            want = run_graph(graph, dict(zip([v.name for v in graph.inputs], arrays, strict=True)))
        got = ts.compile(graph, target=target, cache=False).run(arrays)
        assert np.abs(got[0].astype(int) - want[0]).max() <= 1, end


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_batches_without_samples(op, backend):
    graph = Graph("g")
    low = "float32" if op == "QuantizeLinear" else "uint8"
    x = graph.input("x", Type(low, ("N", 4)))
    y = OPS[op](OPS["Relu"](x), np.float32(0.1), np.uint8(3))
    graph.outputs = [OPS["DequantizeLinear"](y, np.float32(2)) if low == "float32" else y]
    net = ts.compile(graph, cache=False, backend=backend)
    for samples in (0, 2, 0):
        assert net(np.zeros((samples, 4), low)).shape == (samples, 4)


@pytest.mark.parametrize("consts", [(), (1,)])
@pytest.mark.parametrize("zeros", [(), (7,), (7, -3)])
def test_products_of_two_vectors(consts, zeros):
    graph, rng = Graph("g"), np.random.default_rng(5)
    arrays = [rng.integers(0, 255, 9).astype(np.uint8), rng.integers(-9, 9, 9).astype(np.int8)]
    inputs = [a if i in consts else graph.input(f"x{i}", Type(a.dtype, a.shape))
              for i, a in enumerate(arrays)]  # fmt: skip
    points = [np.array(z, a.dtype) for z, a in zip(zeros, arrays, strict=False)]
    graph.outputs = [OPS["MatMulInteger"](*inputs, *points)]
    net = ts.compile(graph, cache=False)
    left, right = (a.astype(int) - z for a, z in zip(arrays, (*zeros, 0, 0), strict=False))
    got = net(*(a for i, a in enumerate(arrays) if i not in consts))
    assert got.shape == () and got == left @ right


def test_scales_for_another_number_of_rows_are_refused_by_the_reference():
    graph = Graph("g")
    x = graph.input("x", Type("float32", ("N", 3)))
    graph.outputs = [OPS["QuantizeLinear"](x, np.float32([1, 2]), np.uint8([0, 1]), axis=0)]
    net = ts.compile(graph, cache=False, backend="numpy")
    assert net(np.ones((2, 3), np.float32)).tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(DataError, match="2 numbers for axis 0"):
        net(np.ones((1, 3), np.float32))
