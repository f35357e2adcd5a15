"""Blocks of 1x1 and depthwise convolutions as graphs, and one block's machine code against them."""

from __future__ import annotations

import numpy as np

from tests.kernels.harness import SLACK, from_layout, prepare
from tests.passes.build import Builder, feeds_of
from tinsmith import ops
from tinsmith.kernels.layout import to_layout
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes

FINISH = {
    "none": lambda y, b: y,
    "relu6": lambda y, b: ops.Clip(y, min=0.0, max=6.0),
    "silu": lambda y, b: ops.Mul(y, ops.Sigmoid(y)),
    "slope": lambda y, b: ops.PRelu(y, b.w(y.shape[1], 1, 1)),
}


def graph_of(
    c, e, o, size, kernel=3, stride=1, *, batch=1, finish="relu6", residual=False, bias=True,
    pad=None, dilation=1, residual_of="x",
):  # fmt: skip
    """expand (where e) -> depthwise -> project (where o); the bias is large, so that a halo of
    finished biases would be seen."""
    b = Builder()
    x = b.x(batch, c, *size)

    def conv(y, outputs, k=1, **attrs):
        inputs = 1 if attrs else y.shape[1]
        w = b.graph.const(b.array(outputs, inputs, k, k) / np.float32(inputs * k * k) ** 0.5, "w")
        extra = [b.graph.const(3 * b.array(outputs), "b")] if bias else []
        return ops.Conv(y, w, *extra, **attrs)

    y = FINISH[finish](conv(x, e), b) if e else x
    pad = (kernel // 2,) * 4 if pad is None else pad
    attrs = {"group": y.shape[1], "stride": (stride,) * 2, "pad": pad, "dilation": (dilation,) * 2}
    y = FINISH[finish](conv(y, y.shape[1], kernel, **attrs), b)
    if o:
        y = conv(y, o)
    if residual:
        other = x if residual_of == "x" else b.x(*y.shape, name="other")
        y = ops.Add(y, other)
    g = b.out(y)
    run_passes(g, "portable")
    run_passes(g, "machine")
    return g


def block_of_graph(g):
    (node,) = [n for n in g.nodes if n.op.name == "Block"]
    return node


def run_block(g, target, threads=1, extra_halo=0, kernel="conv_block"):
    """Machine code equals the reference, whatever the split of tiles; returns the choice."""
    node = block_of_graph(g)
    feeds = {v.name: a for v, a in zip(g.inputs, feeds_of(g), strict=True)}
    (want,) = run_graph(g, [feeds[v.name] for v in g.inputs])
    for splits in (1, 3):
        bench = prepare(node, feeds, kernel, target, extra_halo, threads=threads)
        bench.run(splits)
        ((inside, poison, layout),) = bench.outputs
        got = from_layout(inside, poison.shape, layout)
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_array_equal(inside, to_layout(got, layout), "halo or padding is not zero")
        for raw in bench.keep:
            start = SLACK + (-(raw.ctypes.data + SLACK)) % 64
            assert (raw[:start] == 0xFF).all(), "wrote before a buffer"
            assert (raw[start + len(raw) - 2 * SLACK - 64 :] == 0xFF).all(), "wrote beyond a buffer"
    return bench.choice
