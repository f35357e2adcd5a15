"""Code kept from one site serves another of equal key: it must be what would be emitted anew."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.backend.suite import Recorder, cases, reason
from tests.transformer import feeds, transformer
from tinsmith.codegen.target import level, runnable
from tinsmith.graph import Graph, Type
from tinsmith.kernels import memo
from tinsmith.kernels.build import build_phase
from tinsmith.ops import OPS
from tinsmith.plan import planner
from tinsmith.sizes import same


@pytest.fixture
def checked(monkeypatch):
    """Every phase is emitted anew and compared with what the memo gives; yields the hits."""
    memo.forget()
    seen, hits = set(), []

    def both(site, choice, phase, reads, writes, packed, key):
        code = memo.phase_code(site, choice, phase, reads, writes, packed, key)
        fresh = build_phase(site, choice, phase, reads, writes, packed)
        assert code == fresh, f"{site.node}: the key {key} does not tell these two apart"
        hits.append(code.symbol in seen)
        seen.add(code.symbol)
        return code

    monkeypatch.setattr(planner, "phase_code", both)
    yield hits
    memo.forget()


def test_layers_and_shapes_share_code(checked):
    net = ts.compile(ts.load(transformer()), cache=False)
    for shape in [(1, 5), (2, 5), (5, 2), (1, 7)]:
        net(**feeds(*shape))
    assert sum(checked) > len(checked) / 4


def test_node_cases(checked):
    """Many operators, types and attributes on few shapes: where keys collide if they can."""
    wanted = [c for c in cases() if c[0] == "Node" and reason(c[1]) is None][::9]
    for _, _, run in wanted:
        run()
    assert len(checked) > 80
    assert Recorder.last is not None


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("Gather", [np.arange(100) % 7, np.arange(100)[::-1] % 7], {"axis": 0}),
        ("Slice", [np.array([0]), np.array([2])], {}),
        ("Reduce", [np.array([0]), np.array([1])], {"kind": "sum", "keepdims": False}),
    ],
)
def test_integer_constants_are_part_of_the_key(checked, op, inputs, options):
    for second in inputs:
        graph = Graph("g")
        x = graph.input("x", Type("float32", (7, 7)))
        more = [second, second + 3, np.array([0])] if op == "Slice" else [second]
        graph.outputs = [OPS[op](x, *more, **options)]
        a = np.random.default_rng(0).standard_normal((7, 7), np.float32)
        want = ts.compile(graph, backend="numpy")(a)
        np.testing.assert_allclose(ts.compile(graph, cache=False)(a), want, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 64])
def test_layers_of_bytes_share_code(checked, group):
    """Weights and zero points are no part of the code where the zero points are folded into what
    sums begin with, and are where padding has them."""
    graph, rng = Graph("g"), np.random.default_rng(0)
    x, outputs = graph.input("x", Type("uint8", (1, 64, 6, 6))), []
    for zero, pad in ((3, 0), (90, 0), (7, 1), (8, 1), (0, 1)):
        w = rng.integers(-127, 128, (64, 64 // group, 3, 3)).astype(np.int8)
        y = OPS["ConvInteger"](x, w, np.uint8(zero), pad=(pad,) * 4, group=group)
        outputs.append(y)
    graph.outputs = outputs
    a = rng.integers(0, 256, (1, 64, 6, 6)).astype(np.uint8)
    want = ts.compile(graph, backend="numpy").run([a])
    for got, exact in zip(ts.compile(graph, cache=False).run([a]), want, strict=True):
        np.testing.assert_array_equal(got, exact)
    assert any(checked)


def test_scales_and_zero_points_of_results_are_no_part_of_the_code(checked):
    """Layers that differ in these alone are emitted once, and each reads its own numbers."""
    graph, rng = Graph("g"), np.random.default_rng(0)
    x, outputs = graph.input("x", Type("uint8", (1, 40, 64))), []
    for scale, zero in ((0.01, 3), (0.02, 128), (0.005, 77), (0.03, 0)):
        w = rng.integers(-127, 128, (64, 64)).astype(np.int8)
        y = OPS["Mul"](OPS["Cast"](OPS["MatMulInteger"](x, w), to="float32"), np.float32(scale))
        y = OPS["QuantizeLinear"](OPS["Relu"](y), np.float32(0.7), np.uint8(zero))
        outputs.append(y)
    graph.outputs = outputs
    a = rng.integers(0, 256, (1, 40, 64)).astype(np.uint8)
    net = ts.compile(graph, cache=False)
    want = ts.compile(graph, backend="numpy").run([a])
    for got, exact in zip(net.run([a]), want, strict=True):
        assert np.mean(got != exact) < 1e-3 and np.max(np.abs(got - exact.astype(np.int16))) <= 1
    calls = [c.symbol for s in net.program().plan.steps for c in s.calls]
    assert len(calls) == 4 and len(set(calls)) == 2, calls  # a zero point of 0 needs no addition
    assert any(checked)


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
def test_functions_within_kernels_read_each_layers_own_scales(checked, target):
    """Winograd's method finishes results in a function of its own: that of a layer that differs
    in its scale alone is the same code, which gets the table of that layer."""
    if not runnable(level(target)):
        pytest.skip(f"no {target} here")
    graph, rng = Graph("g"), np.random.default_rng(0)
    x, outputs = graph.input("x", Type("float32", (1, 32, 24, 24))), []
    for scale in (0.1, 0.2, 0.05):
        w = rng.standard_normal((32, 32, 3, 3), np.float32) / 17
        y = OPS["Relu"](OPS["Conv"](x, w, pad=(1, 1, 1, 1)))
        outputs.append(OPS["QuantizeLinear"](y, np.float32(scale), np.uint8(3)))
    graph.outputs = outputs
    a = rng.standard_normal((1, 32, 24, 24), np.float32)
    net = ts.compile(graph, cache=False, target=target, kernels={"Conv": "winograd"})
    want = ts.compile(graph, backend="numpy").run([a])
    for got, exact in zip(net.run([a]), want, strict=True):
        assert np.mean(got != exact) < 1e-3 and np.max(np.abs(got - exact.astype(np.int16))) <= 1
    assert any(checked)


def test_programs_for_free_sizes_read_their_own_sizes(monkeypatch):
    """A size in an epilogue fixes no size to the example's number, and is part of the key: that of
    another program is another one, whatever its name."""

    def both(site, choice, phase, reads, writes, packed, key):
        code = memo.phase_code(site, choice, phase, reads, writes, packed, key)
        fresh = build_phase(site, choice, phase, reads, writes, packed)
        assert code.text == fresh.text and same(code.sizes, fresh.sizes), key
        return code

    monkeypatch.setattr(planner, "phase_code", both)
    for _ in range(2):
        graph = Graph("g")
        x, y = graph.input("x", Type("float32", ("h", 3))), graph.input("y", Type("int64", (4,)))
        graph.outputs = [OPS["Mul"](y, OPS["Gather"](OPS["Shape"](x), np.array(0)))]
        net = ts.compile(graph, shapes="free", cache=False, kernels="-conv_plain")
        for n in (5, 7):
            got = net(np.zeros((n, 3), np.float32), np.arange(4))
            np.testing.assert_array_equal(got, n * np.arange(4))
            assert net.program().is_sized


def test_the_memo_is_bounded(monkeypatch):
    memo.forget()
    monkeypatch.setattr(memo.kept, "limit", 20_000)
    for n in range(3, 30):
        graph = Graph("g")
        graph.outputs = [OPS["Softmax"](graph.input("x", Type("float32", (n,))))]
        ts.compile(graph, cache=False)
    assert 0 < memo.kept.size <= 20_000
    assert sum(len(c.text) for c in memo.kept.values.values()) == memo.kept.size
    memo.forget()


def test_an_operator_that_is_defined_anew_is_computed_anew(monkeypatch):
    def computed() -> np.ndarray:
        graph = Graph("g")
        x = graph.input("x", Type(np.dtype("float32"), (8, 16)))
        y = graph.add(OPS["MatMul"], x, graph.const(np.eye(16, dtype=np.float32), "w")).output
        graph.outputs = [graph.add(OPS["Tanh"], y).output]
        return ts.compile(graph, cache=False)(np.ones((8, 16), np.float32))

    first = computed()
    monkeypatch.setattr(OPS["Tanh"], "reference", lambda x: np.tanh(x) * x.dtype.type(2))
    np.testing.assert_allclose(computed(), 2 * first, rtol=1e-5)
