"""Models whose large weights are kept in 16, 8 or 4 bits: compiled, written, read again."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.errors import NotWritable, OptionError
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS
from tinsmith.passes import weights
from tinsmith.passes.manager import Context

KINDS = {"fp16": 60, "bf16": 45, "int8": 35, "int8/64": 35, "int4": 14, "int4/32": 14}
"""What `weights=` takes, and the least signal to noise of the results, in decibels."""


def dense(rows=1, k=512, hidden=640, classes=100):
    """Two dense layers, one as Gemm has it, and a convolution before them."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return g.const(rng.standard_normal(shape).astype(np.float32) * 0.1)

    g = Graph("dense")
    x = g.input("x", Type(np.dtype(np.float32), (rows, 8, 8, 8)))
    y = OPS["Conv"](x, draw(8, 8, 8, 8), pad=(4, 4, 3, 3))
    y = OPS["Reshape"](y, np.array([rows, k]))
    y = OPS["Add"](OPS["MatMul"](y, OPS["Transpose"](draw(hidden, k), perm=(1, 0))), draw(hidden))
    g.outputs = [OPS["MatMul"](OPS["Relu"](y), draw(hidden, classes))]
    return g, rng.standard_normal((rows, 8, 8, 8)).astype(np.float32)


def decibels(got, want):
    return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_products_read_small_weights(kind):
    graph, x = dense()
    want = ts.compile(graph, cache=False)(x)
    net = ts.compile(graph, cache=False, weights=kind)
    kernels = [row.kernel for row in net.profile(x).rows]
    assert sum(k.startswith("gemv_small") for k in kernels) == 2
    assert decibels(net(x), want) > KINDS[kind]
    told = str(net.explain("matmul")) + str(net.explain())
    assert "gemv_small" in told


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_loops_are_the_same_on_every_backend(kind):
    rng, body, graph = np.random.default_rng(0), Graph("body"), Graph("loop")
    _, on = (body.input(n, Type(np.dtype(d), ())) for n, d in (("i", np.int64), ("on", np.bool_)))
    state = body.input("state", Type(np.dtype(np.float32), (4, 128)))
    w = body.const(rng.standard_normal((128, 128)).astype(np.float32) / 11)
    body.outputs = [OPS["Identity"](on), OPS["MatMul"](state, w)]
    x = graph.input("x", Type(np.dtype(np.float32), (4, 128)))
    graph.outputs = [OPS["Loop"](np.array(3), None, x, body=body)]
    x = rng.standard_normal((4, 128)).astype(np.float32)
    want, plain = ts.compile(graph, backend="numpy", weights=kind)(x), ts.compile(graph)(x)
    np.testing.assert_array_equal(ts.compile(graph, cache=False, weights=kind)(x), want)
    assert 0 < np.abs(want - plain).max() < 1


def layer(op, gates, hidden=160):
    rng = np.random.default_rng(0)
    g = Graph(op)
    x = g.input("x", Type(np.dtype(np.float32), (4, 1, hidden)))
    w, r = (
        g.const(rng.standard_normal((1, gates * hidden, hidden)).astype(np.float32) * 0.05)
        for _ in "wr"
    )
    g.outputs = [g.add(OPS[op], x, w, r, hidden_size=hidden).outputs[0]]
    return g, rng.standard_normal((4, 1, hidden)).astype(np.float32)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 4)])
def test_recurrent_layers_read_small_weights(op, gates, kind):
    graph, x = layer(op, gates if op != "RNN" else 1, 160 if op != "RNN" else 320)
    plain = ts.compile(graph, cache=False)
    net = ts.compile(graph, cache=False, weights=kind)
    assert decibels(net(x), plain(x)) > KINDS[kind]
    share = 0.27 if kind == "int8" else 0.52
    assert net.memory.weights < share * plain.memory.weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["onnx", "tin"])
def test_files_keep_them_small_and_compute_the_same(kind, suffix, tmp_path):
    graph, x = dense()
    path, plain = tmp_path / f"small.{suffix}", tmp_path / f"plain.{suffix}"
    ts.write(graph, path, weights=kind)
    ts.write(graph, plain)
    share = {"fp16": 0.5, "bf16": 0.5, "int4": 0.15, "int4/32": 0.17}.get(kind, 0.27)
    assert path.stat().st_size < share * plain.stat().st_size + 20_000
    net = ts.compile(path, cache=False)
    assert sum(row.kernel.startswith("gemv_small") for row in net.profile(x).rows) == 2
    np.testing.assert_array_equal(net(x), ts.compile(graph, cache=False, weights=kind)(x))
    assert ts.verify(path, {"x": x}).ok


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_many_rows_and_free_ones(kind):
    graph, x = dense(rows=9)
    small = weights.shrunk(graph, *weights.parse(kind))
    net = ts.compile(small, cache=False)
    assert [row.kernel for row in net.profile(x).rows].count("matmul_small") == 2
    want = ts.compile(small, cache=False, backend="numpy")(x)
    np.testing.assert_allclose(net(x), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    g = Graph("free")
    a = g.input("a", Type(np.dtype(np.float32), ("rows", 256)))
    w = np.random.default_rng(1).standard_normal((256, 300)).astype(np.float32)
    g.outputs = [OPS["MatMul"](a, g.const(w))]
    net = ts.compile(g, cache=False, weights=kind)
    small = weights.shrunk(g, *weights.parse(kind))
    for rows in (1, 6, 3, 17, 0):
        x = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
        want = ts.compile(small, cache=False, backend="numpy")(x)
        np.testing.assert_allclose(net(x), want, atol=1e-4 * np.abs(want).max(initial=1))


def test_recurrent_layers_and_transposed_convolutions(tmp_path):
    rng = np.random.default_rng(2)
    g = Graph("layers")
    x = g.input("x", Type(np.dtype(np.float32), (5, 1, 64)))
    w, r = (g.const(rng.standard_normal((1, 128, 64 >> i)).astype(np.float32)) for i in (0, 1))
    y = g.add(OPS["LSTM"], x, w, r, hidden_size=32).outputs[0]
    y = OPS["Reshape"](y, np.array([1, 32, 5, 1]))
    kernel = g.const(rng.standard_normal((32, 40, 2, 2)).astype(np.float32))
    g.outputs = [OPS["ConvTranspose"](y, kernel)]
    x = rng.standard_normal((5, 1, 64)).astype(np.float32)
    want = ts.compile(g, cache=False)(x)
    ts.write(g, tmp_path / "small.onnx", weights="int4")
    for net in (ts.compile(tmp_path / "small.onnx"), ts.compile(g, weights="int4", cache=False)):
        assert decibels(net(x), want) > 30  # of 8 bits each


def test_blocks_have_scales_of_their_own():
    w = np.ones((64, 8), np.float32)
    w[32:] *= 1e-3
    small, scale, noise = weights.quantised(w, 4, 1, 0, 32)
    assert small.dtype.name == "int4" and scale.shape == (2, 8) and noise < 1e-12
    _, scale, noise = weights.quantised(w, 8, 1, 0, 0)
    assert scale.shape == (8,) and 0 < noise < 1e-4
    small, _, noise = weights.quantised(np.zeros((8, 8), np.float32), 8, 1, 0, 0)
    assert not small.any() and noise == 0


def test_what_would_be_noise_or_overflow_stays():
    g = Graph("noise")
    x = g.input("x", Type(np.dtype(np.float32), (1, 64)))
    w = np.full((64, 64), 1e-3, np.float32)
    w[0] = 1e-2
    w[:, 3] = np.nan
    g.outputs = [OPS["MatMul"](x, g.const(w, "w"))]
    context = Context()
    assert weights.SmallWeights("int8").run(g, context) == 0
    assert "w would lose nan% of its power" in context.told.refusals[0].reason
    g.constants()[0].const = np.full((64, 64), 1e6, np.float32)
    assert weights.SmallWeights("float16").run(g, context) == 0


@pytest.mark.parametrize("kind", ["int3", "int4/0", "int8/5", "fp16/32", "", "int8/", 8, None])
def test_what_is_refused(kind):
    graph, _ = dense()
    with pytest.raises(OptionError, match="weights"):
        ts.write(graph, "unused.onnx", weights=kind)
    if kind is not None:
        with pytest.raises(OptionError, match="weights"):
            ts.compile(graph, weights=kind)


def test_formats_that_have_no_way_to_keep_them(tmp_path):
    graph, _ = dense()
    for name, kind in (("m.pnnx.param", "fp16"), ("m.param", "int8")):
        with pytest.raises(NotWritable, match="no way to keep weights as"):
            ts.write(graph, tmp_path / name, weights=kind)


@pytest.mark.parametrize("kind", ["int4", "int4/32", "int8"])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_columns_without_weights_give_zeros(kind, rows):
    """Of a product with small weights besides, as of pruned models."""
    random = np.random.default_rng(0)
    w = (random.standard_normal((1024, 256)) * 1e-6).astype(np.float32)
    w[:, 5] = 0
    graph = Graph("pruned")
    x = graph.input("x", Type("float32", (rows, 1024)))
    graph.outputs = [OPS["MatMul"](x, graph.const(w))]
    given = random.standard_normal((rows, 1024)).astype(np.float32) + 3
    found = ts.compile(graph, weights=kind, cache=False)(given)
    assert np.abs(found[:, 5]).max() < 1e-20
    assert np.abs(found - given @ w).max() < 0.2 * np.abs(given @ w).max()
