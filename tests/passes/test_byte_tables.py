"""Functions of one quantised value become tables: equal to the references to the last bit."""

import numpy as np
import pytest

from tests.passes.build import Builder, native, ops_of
from tinsmith import ops
from tinsmith.graph import Type
from tinsmith.passes import run_passes

RNG = np.random.default_rng(3)


def swish(b, x):
    steps = b.c(0.004), b.c(0, np.uint8)
    gate = ops.DequantizeLinear(ops.QuantizeLinear(ops.Sigmoid(x), *steps), *steps)
    return ops.QuantizeLinear(ops.Mul(x, gate), b.c(0.01), b.c(128, np.uint8))


def placed(b, *outputs):
    b.out(*outputs)
    run_passes(b.graph, "machine", byte_rate=1.5, verify=True)
    return ops_of(b.graph)


def bytes_of(b, *shape, name="x"):
    x = b.graph.input(name, Type(np.dtype(np.uint8), shape))
    return ops.DequantizeLinear(x, b.c(0.05), b.c(117, np.uint8))


@pytest.mark.parametrize("shape", [(1, 20, 7, 7), (3, 40), (1,)], ids=str)
def test_a_rounded_swish_is_one_table(shape):
    b = Builder()
    b.out(swish(b, bytes_of(b, *shape)))
    native(b.graph, [RNG.integers(0, 256, shape).astype(np.uint8)], exact=True)
    assert "ByteTable" in placed(b)


def test_what_needs_two_bytes_is_none():
    b = Builder()
    x, y = bytes_of(b, 1, 8), bytes_of(b, 1, 8, name="y")
    z = ops.QuantizeLinear(ops.Mul(x, ops.Sigmoid(y)), b.c(0.01), b.c(128, np.uint8))
    assert "ByteTable" not in placed(b, z)


@pytest.mark.parametrize("low", ["int16", "uint16"])
def test_results_of_more_than_a_byte_are_none(low):
    b = Builder()
    y = ops.Sigmoid(bytes_of(b, 1, 8))
    assert "ByteTable" not in placed(b, ops.QuantizeLinear(y, b.c(1e-4), b.c(128, low)))
    native(b.graph, [RNG.integers(0, 256, (1, 8)).astype(np.uint8)])


def test_what_is_spread_over_a_shape_is_none():
    b = Builder()
    y = ops.Mul(ops.Sigmoid(bytes_of(b, 1, 8)), b.w(1, 8))
    assert "ByteTable" not in placed(b, ops.QuantizeLinear(y, b.c(0.01), b.c(128, np.uint8)))


@pytest.mark.parametrize("change", [ops.Relu, lambda x: x])
def test_rounding_alone_stays_arithmetic(change):
    b = Builder()
    y = ops.QuantizeLinear(change(bytes_of(b, 1, 8)), b.c(0.02), b.c(0, np.uint8))
    assert "ByteTable" not in placed(b, y)


def test_a_value_on_the_way_that_others_read_is_kept():
    b = Builder()
    x = bytes_of(b, 2, 16)
    first = swish(b, x)
    second = swish(b, ops.DequantizeLinear(first, b.c(0.01), b.c(128, np.uint8)))
    assert placed(b, first, second).count("ByteTable") == 2
    b = Builder()
    first = swish(b, bytes_of(b, 2, 16))
    b.out(first, swish(b, ops.DequantizeLinear(first, b.c(0.01), b.c(128, np.uint8))))
    native(b.graph, [RNG.integers(0, 256, (2, 16)).astype(np.uint8)], exact=True)
