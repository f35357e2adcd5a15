"""Small quantised nets, for tests of what computes with bytes and of what compares it."""

from __future__ import annotations

import numpy as np

import tinsmith as ts
from tinsmith import ops
from tinsmith.graph import Graph, Type
from tinsmith.ops.control import run_graph

RNG = np.random.default_rng(26)
TIES = 1e-4
"""Share of results that may be one quantum away: sums are exact here, and are rounded there."""
CHAINED_TIES, MOST_QUANTA = 0.02, 8
"""The same for operators after each other; a right result of wrong scales is far beyond."""
FLOAT_TIES = 1e-3  # where products of bytes are not fast, and sums are floats of either kind


class Net:
    """A graph under construction, of values with a scale and a zero point each."""

    def __init__(self, *shape, low="uint8", zero=3):
        self.graph, self.low = Graph("net"), np.dtype(low)
        x = self.graph.input("x", Type(self.low, shape))
        self.x = x, np.float32(0.02), np.array(zero, low)

    def real(self, v):
        return ops.DequantizeLinear(*v)

    def low_of(self, y, scale, zero):
        step, low = np.float32(scale), np.array(zero, self.low)
        return ops.QuantizeLinear(y, step, low), step, low

    def weights(self, axis, *shape):
        w = RNG.integers(-127, 128, shape).astype(np.int8)
        scale = RNG.uniform(0.001, 0.01, shape[axis]).astype(np.float32)
        zeros = np.zeros(shape[axis], np.int8)
        constants = [self.graph.const(a, "w") for a in (w, scale, zeros)]
        return ops.DequantizeLinear(*constants, axis=axis)

    def conv(self, v, outputs, *kernel, scale=0.1, zero=128, group=1, **attrs):
        dims = outputs, v[0].dims[1] // group, *kernel
        bias = RNG.standard_normal(outputs).astype(np.float32)
        y = ops.Conv(self.real(v), self.weights(0, *dims), bias, group=group, **attrs)
        return self.low_of(y, scale, zero)

    def check(self, v, target, most_floats=0, chained=False):
        """Compile, run, compare; gives the net. Counts steps that store float32. Where operators
        are `chained`, one quantum of the first becomes some of the last, around one place."""
        self.graph.outputs.append(v[0])
        low = self.graph.inputs[0].dtype
        info = np.iinfo(low)
        x = RNG.integers(info.min, info.max + 1, self.graph.inputs[0].dims).astype(low)
        want = run_graph(self.graph, {"x": x})[0].astype(int)
        net = ts.compile(self.graph.clone(), target=target, cache=False)
        got = net.run([x])[0].astype(int)
        assert np.abs(got - want).max() <= (MOST_QUANTA if chained else 1)
        ties = TIES if target == "avx512vnni" else FLOAT_TIES
        ties = CHAINED_TIES if chained else ties
        assert (got != want).mean() <= max(ties, 2 / want.size)
        assert len(np.unique(want)) > 20, "the scale leaves nothing to compare"
        if target == "avx512vnni":
            assert len(floats_of(net)) <= most_floats
        return net


def floats_of(net):
    """The kernels of steps that do not compute with bytes."""
    return [s.kernel for s in net.program().plan.steps if s.kernel not in INTEGER]


INTEGER = {"conv_integer", "conv_integer_winograd", "conv_integer_depthwise",
           "conv_integer_saturating", "matmul_integer_saturating",
           "conv_depthwise_bytes", "matmul_integer", "byte_table", "pool_max", "relayout", "view",
           "in place", "depth_to_space_blocks"}  # fmt: skip


def chain(*channels, size=12):
    net = Net(1, channels[0], size, size, zero=5)
    v = net.x
    for outputs in channels[1:]:
        v = net.conv(v, outputs, 1, 1, scale=0.2)
    return net, v
