"""Convolutions and products of bytes: native, and equal to the references to the last bit."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, native
from tinsmith import ops
from tinsmith.graph import Type
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import COURSE, run_passes

RNG = np.random.default_rng(8)


def extreme(dtype, *shape):
    """Mostly the ends of the range, so that sums are long."""
    info = np.iinfo(dtype)
    ends = RNG.choice([info.min, info.max, info.max], shape)
    return np.where(RNG.random(shape) < 0.7, ends, RNG.integers(0, 9, shape)).astype(dtype)


CONVS = [
    ((1, 3, 9, 9), (8, 3, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 64, 8, 8), (32, 64, 3, 3), {"pad": (1, 1, 1, 1)}),
    ((1, 64, 14, 14), (64, 64, 1, 1), {}),
    ((2, 200, 5, 5), (16, 200, 2, 2), {"stride": (2, 2)}),
    ((1, 32, 9, 9), (32, 1, 3, 3), {"group": 32, "pad": (1, 1, 1, 1)}),
    ((1, 16, 12), (8, 4, 5), {"group": 4, "auto_pad": "SAME_UPPER"}),
]


def built(shape, dtype):
    b = Builder()
    return b, b.graph.input("x", Type(np.dtype(dtype), shape))


@pytest.mark.parametrize("left, right", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("shape, weights, attrs", CONVS)
def test_integer_convolutions(shape, weights, attrs, left, right):
    b, x = built(shape, left)
    w = b.graph.const(extreme(right, *weights), "w")
    zeros = [b.c(3, left), b.c(RNG.integers(-3 * (right == "int8"), 4, weights[0]), right)]
    g = b.out(ops.ConvInteger(x, w, *zeros, **attrs))
    native(g, [extreme(left, *shape)], exact=True)


@pytest.mark.parametrize("biased", [0, 1000, 1 << 29])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("shape, weights, attrs", CONVS)
def test_quantised_convolutions(shape, weights, attrs, channelwise, biased):
    b, x = built(shape, "uint8")
    m = weights[0]
    w = b.graph.const(extreme("int8", *weights), "w")
    scale = RNG.uniform(0.01, 0.1, m if channelwise else ()).astype(np.float32)
    bias = b.c(RNG.integers(-biased, biased, m), np.int32) if biased else None
    out = np.float32(np.sqrt(np.prod(weights[1:])) * 40)
    g = b.out(ops.QLinearConv(x, b.c(0.5), b.c(120, np.uint8), w, b.graph.const(scale, "ws"),
                              b.c(np.zeros(m if channelwise else ()), np.int8), b.c(out),
                              b.c(101, np.uint8), bias, **attrs))  # fmt: skip
    native(g, [extreme("uint8", *shape)], exact=True)


@pytest.mark.parametrize("inner", [5, 500, 3000])
@pytest.mark.parametrize("columns", [False, True])
def test_quantised_products(inner, columns):
    b, a = built((2, 33, inner), "uint8")
    n = 40
    scale = RNG.uniform(0.01, 0.1, n if columns else ()).astype(np.float32)
    zero = RNG.integers(-3, 3, n if columns else ())
    w = b.graph.const(extreme("int8", inner, n), "w")
    g = b.out(ops.QLinearMatMul(a, b.c(0.5), b.c(100, np.uint8), w, b.graph.const(scale, "s"),
                                b.c(zero, np.int8), b.c(np.sqrt(inner) * 30),
                                b.c(7, np.int8)))  # fmt: skip
    native(g, [extreme("uint8", 2, 33, inner)], exact=True)


SIGNS = [("uint8", "int8", True), ("uint8", "uint8", False), ("int8", "int8", True),
         ("int8", "uint8", False)]  # fmt: skip
COMPUTED = ["weights", "parameters", "both"]
SHAPES = {
    "Conv": ((1, 12, 9, 8), (20, 12, 3, 3), {"pad": (1, 2, 1, 0)}),
    "long Conv": ((1, 70, 9, 8), (20, 70, 3, 3), {"pad": (1, 2, 1, 0)}),
    "grouped Conv": ((1, 70, 9, 8), (20, 35, 3, 3), {"group": 2}),
    "MatMul": ((3, 50), (50, 20), {}),
    "long MatMul": ((2, 3, 700), (700, 20), {}),
    "batched MatMul": ((2, 3, 50), (2, 50, 20), {}),
}


def operands(b, names, feeds, computed):
    """Inputs for what is computed, constants for the rest; `feeds` gets the arrays of inputs."""
    for name, array in names.items():
        weights, first = (
            name.startswith("b") and array.ndim > 1,
            name.startswith("a") and array.ndim > 1,
        )
        known = computed == "parameters" if weights else computed == "weights" and not first
        if known:
            yield b.graph.const(array, name)
        else:
            feeds.append(array)
            yield b.graph.input(name, Type(array.dtype, array.shape))


@pytest.mark.parametrize("left, right, columns", SIGNS)
@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("shape", SHAPES)
def test_computed_operands(shape, computed, columns, left, right):
    """Weights, zero points and scales that the run tells, with zero points for each column."""
    (a, w, attrs), feeds = SHAPES[shape], []
    many = ((w[0] if "Conv" in shape else w[-1]),) if columns else ()
    zeros = RNG.integers(0, 100, many).astype(right)
    scales = RNG.uniform(0.01, 0.1, many).astype(np.float32)
    x, weights = extreme(left, *a), extreme(right, *w)
    b, plain = Builder(), {"a": x, "b": weights, "az": np.array([5], left), "bz": zeros}
    kind = "Conv" if "Conv" in shape else "MatMul"
    given = operands(b, plain, feeds, computed)
    whole = OPS[f"{kind}Integer"](*given, **attrs)
    out = np.float32(np.sqrt(np.prod(w)) * 10)
    full = {"a2": x, "as": np.float32(0.5), "az2": np.array(7, left), "b2": weights, "bs": scales,
            "bz2": zeros, "ys": out, "yz": np.array(100, "uint8")}  # fmt: skip
    values = dict(zip(full, operands(b, full, feeds, computed), strict=True))
    b.out(whole, OPS[f"QLinear{kind}"](*values.values(), **attrs))
    native(b.graph, feeds, exact=True)


def test_zero_points_and_scales_of_rows():
    b, feeds = Builder(), []
    zeros, scales = RNG.integers(0, 9, 3).astype(np.uint8), RNG.uniform(1, 2, 3).astype(np.float32)
    full = {"a": extreme("uint8", 3, 40), "as": scales, "az": zeros, "b": extreme("int8", 40, 20),
            "bs": np.float32(0.5), "bz": np.array(1, np.int8), "ys": np.float32(99),
            "yz": np.array(3, np.int8)}  # fmt: skip
    a, *rest = operands(b, full, feeds, "parameters")
    b.out(ops.QLinearMatMul(a, *rest), ops.MatMulInteger(a, rest[2], rest[1], rest[4]))
    native(b.graph, feeds, exact=True)


def test_what_follows_the_sums_is_computed_with_them():
    b, x = built((1, 40, 6, 6), "uint8")
    w = b.graph.const(extreme("int8", 24, 40, 3, 3), "w")
    g = b.out(ops.QLinearConv(x, b.c(0.5), b.c(120, np.uint8), w, b.c(0.1), b.c(0, np.int8),
                              b.c(900.0), b.c(101, np.uint8)))  # fmt: skip
    net = ts.compile(g, cache=False)
    kernels = [s.kernel for s in net.program().plan.steps if s.kernel != "relayout"]
    assert kernels in (["conv_integer"], ["conv_integer_winograd"])


@pytest.mark.parametrize("each, kernel", [(1, "conv_depthwise_bytes"), (2, "conv_grouped")])
@pytest.mark.parametrize("biased", [0, 1000, 1 << 29])
def test_groups_of_few_channels(biased, each, kernel):
    """Depthwise convolutions read bytes; other groups of few channels are computed in floats."""
    b, x = built((1, 32, 9, 9), "uint8")
    w = b.graph.const(extreme("int8", 32, each, 3, 3), "w")
    bias = b.c(RNG.integers(-biased, biased, 32), np.int32) if biased else None
    g = b.out(ops.QLinearConv(x, b.c(0.5), b.c(120, np.uint8), w, b.c(0.1), b.c(0, np.int8),
                              b.c(90.0), b.c(101, np.uint8), bias, group=32 // each,
                              pad=(1, 1, 1, 1)))  # fmt: skip
    native(g, [extreme("uint8", 1, 32, 9, 9)], exact=True)
    assert kernel in ts.compile(g, cache=False).explain()


def test_large_products_of_whole_numbers_are_exact():
    b, a = built((512, 512), "uint8")
    w = b.graph.const(extreme("int8", 512, 512), "w")
    g = b.out(ops.MatMulInteger(a, w))
    native(g, [extreme("uint8", 512, 512)], exact=True)


@pytest.mark.parametrize("how", ["product", "convolution", "transposed"])
def test_sums_that_may_exceed_int32_stay_floats(how):
    b, depth = Builder("uint8"), 68_000
    x = b.x(*((1, depth) if how == "product" else (1, depth, 1, 1)))
    w = {"product": (depth, 32), "convolution": (32, depth, 1, 1)}.get(how, (depth, 32, 2, 2))
    x = ops.DequantizeLinear(x, np.float32(1))
    w = ops.DequantizeLinear(b.graph.const(np.full(w, 127, np.int8)), np.float32(1))
    made = {"product": ops.MatMul, "convolution": ops.Conv}.get(how)
    b.out(made(x, w) if made else ops.ConvTranspose(x, w, stride=(2, 2)))
    for stage in COURSE:
        run_passes(b.graph, stage, byte_rate=4.0)
    (y,) = run_graph(b.graph, [np.full(b.graph.inputs[0].dims, 255, np.uint8)])
    np.testing.assert_allclose(y, depth * 255 * 127, rtol=1e-3)


def test_groups_of_few_channels_of_no_sample():
    """What is joined of empty tensors is a constant, also where the pass runs."""
    b, x = built((0, 8, 5, 5), "uint8")
    y = ops.QuantizeLinear(ops.Concat(ops.DequantizeLinear(x, b.c(0.5)), axis=1), b.c(0.5))
    w = b.graph.const(extreme("int8", 8, 2, 3, 3), "w")
    scale, zero = b.c(0.5), b.c(3, np.uint8)
    g = b.out(ops.QLinearConv(y, scale, zero, w, scale, b.c(0, np.int8), scale, zero, group=4),
              ops.ConvInteger(y, w, zero, group=4))  # fmt: skip
    got = ts.compile(g, cache=False).run([np.zeros((0, 8, 5, 5), np.uint8)])
    assert [y.shape for y in got] == [(0, 8, 3, 3)] * 2
