"""Convolutions and products of bytes: native, and equal to the references to the last bit."""

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, native
from tinsmith import ops
from tinsmith.graph import Type

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


def test_large_products_of_whole_numbers_use_no_algorithm_that_rounds():
    b, a = built((512, 512), "uint8")
    w = b.graph.const(extreme("int8", 512, 512), "w")
    g = b.out(ops.MatMulInteger(a, w))
    x = extreme("uint8", 512, 512)
    native(g, [x], exact=True)
    net = ts.compile(g, cache=False)
    assert "exact precision asks for the products themselves" in net.explain()
