"""Generic code: layers of other sizes share it, and it computes each of them right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinsmith as ts
from tests.kernels.harness import check, one_node, site_of
from tinsmith.codegen.target import level
from tinsmith.graph import Graph, Type
from tinsmith.kernels import memo
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.build import build_generic, build_phase
from tinsmith.kernels.generic import outline
from tinsmith.kernels.layout import PLAIN, Layout, spec_of
from tinsmith.ops import OPS

TABLE = np.arange(256, dtype=np.uint8)[::-1].copy()


def symbol(op, arrays, layout, consts=(), pick=0):
    site = site_of(one_node(op, arrays, consts=consts), level("avx512vnni"))
    site.layouts = {v: Layout(layout.block) for v in site.operands if v is not None}
    choice = KERNELS["byte_table" if consts else "elementwise"].offer(site)[pick]
    reads = [
        None if v.const is not None else spec_of(v.dtype, v.dims, layout) for v in site.operands
    ]
    packed = [p.make().dtype for p in choice.packed]
    return build_phase(site, choice, 0, reads, [spec_of(site.out.dtype, site.out.dims, layout)],
                       packed)  # fmt: skip


def test_layers_of_other_sizes_have_equal_code():
    """But for layers that are one tile, or one part of a plane."""
    wide = [(1, 32, 7, 9), (1, 160, 12, 11), (1, 48, 56, 56), (1, 16, 80, 40)]
    for layout in (PLAIN, Layout(16), Layout(16, ((1, 1), (2, 0)))):
        pick = int(layout.block > 0)
        adds = {symbol("Add", [np.zeros(d, np.float32)] * 2, layout, pick=pick) for d in wide}
        assert len({code.text for code in adds}) <= 2 and len({c.sizes for c in adds}) == len(wide)
        tables = [symbol("ByteTable", [np.zeros(d, np.uint8), TABLE], layout, [1], pick)
                  for d in wide]  # fmt: skip
        assert len({code.symbol for code in tables}) <= 2
        assert all(isinstance(n, int) for code in tables for n in code.sizes)


def test_code_that_decides_by_a_number_is_not_shared_beyond_it():
    """Channels that fill no whole block are masked."""
    whole, masked = ([np.zeros((1, c, 7, 7), np.float32)] for c in (32, 33))
    assert symbol("Exp", whole, Layout(16), pick=1) != symbol("Exp", masked, Layout(16), pick=1)
    memo.forget()
    graph = Graph("g")
    for c in (32, 64, 33, 40, 17, 16):
        x = graph.input(f"x{c}", Type("float32", (1, c, 7, 7)))
        w = np.full((c, 1, 3, 3), 0.1, np.float32)
        y = OPS["Exp"](OPS["Softmax"](OPS["Conv"](x, w, group=c, pad=(1, 1, 1, 1)), axis=3))
        graph.outputs = [*graph.outputs, y]
    feeds = {v.name: np.random.default_rng(3).standard_normal(v.dims, np.float32)
             for v in graph.inputs}  # fmt: skip
    got, want = (ts.compile(graph, cache=False, backend=b).run(feeds) for b in ("cpu", "numpy"))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


LAYERS = [
    ((1, 32, 9, 8), 3, 1, {}),
    ((1, 64, 12, 12), 3, 1, {}),
    ((2, 64, 9, 11), 3, 2, {}),
    ((1, 32, 8, 8), 1, 1, {}),
    ((1, 96, 7, 9), 1, 1, {}),
    ((1, 64, 7, 9), 1, 2, {}),
    ((1, 128, 6, 7), 5, 1, {"dilation": (2, 1)}),
    ((1, 64, 10, 9), 3, 2, {"dilation": (1, 2)}),
    ((2, 40, 6, 6), 2, 1, {"pad": (0, 1, 2, 0)}),
]
"""Convolutions of bytes: extents of the input, taps along each axis, stride, attributes."""


@pytest.mark.parametrize("kernel", ["conv_integer", "conv_integer_saturating"])
def test_convolutions_of_bytes_share_what_packs(kernel, monkeypatch):
    """And what sums the products by the rest of split weights; results stay exact."""
    memo.forget()
    made = []
    monkeypatch.setattr(memo, "build_generic", lambda *a: made.append(1) or build_generic(*a))
    graph, rng = Graph("g"), np.random.default_rng(5)
    for i, (dims, k, stride, attrs) in enumerate(LAYERS * 2):
        channels = dims[1] * (1 + i // len(LAYERS))
        x = graph.input(f"x{i}", Type("uint8", (dims[0], channels, *dims[2:])))
        w = np.clip(rng.standard_normal((40, channels, k, k)) * 30, -127, 127).astype(np.int8)
        attrs = {"pad": (k // 2,) * 4, "stride": (stride, stride)} | attrs
        y = OPS["ConvInteger"](x, w, np.uint8(3 + i), **attrs)
        graph.outputs = [*graph.outputs, y]
    feeds = {v.name: rng.integers(0, 256, v.dims).astype(np.uint8) for v in graph.inputs}
    net = ts.compile(graph, cache=False, target="avx2", kernels={"ConvInteger": kernel})
    want = ts.compile(graph, cache=False, backend="numpy").run(feeds)
    for a, b in zip(net.run(feeds), want, strict=True):
        np.testing.assert_array_equal(a, b)
    phases = 1 + kernel.endswith("saturating")
    assert 0 < len(made) <= phases * len(LAYERS)


def test_products_by_split_weights_share_what_transposes_rows(monkeypatch):
    memo.forget()
    made = []
    monkeypatch.setattr(memo, "build_generic", lambda *a: made.append(1) or build_generic(*a))
    graph, rng = Graph("g"), np.random.default_rng(5)
    shapes = [(197, 96, 64), (197, 192, 32), (170, 64, 96), (98, 128, 48), (9, 64, 32)]
    for i, (m, k, n) in enumerate(shapes):
        x = graph.input(f"x{i}", Type("uint8", (m, k)))
        w = np.clip(rng.standard_normal((k, n)) * 30, -127, 127).astype(np.int8)
        graph.outputs = [*graph.outputs, OPS["MatMulInteger"](x, w, np.uint8(3 + i))]
    feeds = {v.name: rng.integers(0, 256, v.dims).astype(np.uint8) for v in graph.inputs}
    kernel = {"MatMulInteger": "matmul_integer_saturating"}
    net = ts.compile(graph, cache=False, target="avx2", kernels=kernel)
    want = ts.compile(graph, cache=False, backend="numpy").run(feeds)
    for a, b in zip(net.run(feeds), want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert 0 < len(made) < len(shapes)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_outlines_keep_where_elements_lie(data):
    """With the numbers in their places again, extents and strides are those of the specs."""
    sizes = st.integers(1, 5)
    dims = tuple(data.draw(st.lists(sizes, min_size=2, max_size=4)))
    halo = tuple(data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in dims[2:])
    layout = data.draw(st.sampled_from([PLAIN, Layout(4), Layout(4, halo)]))
    part = spec_of(np.float32, dims, layout)
    gaps = tuple(s * data.draw(st.integers(1, 3)) for s in part.strides)
    specs = [part, None, part.__class__(part.dtype, dims, layout, gaps)]
    found = outline(specs, (data.draw(sizes), 1, 7))
    made, more, symbols = found.sized()
    assert [s.value for s in symbols] == list(found.numbers) and min(found.numbers, default=2) > 1
    for spec, again in zip(specs, made, strict=True):
        if spec is not None:
            assert tuple(map(int, again.dims)) == spec.dims
            assert tuple(map(int, again.strides)) == spec.strides
            assert (again.layout, again.lane, again.dtype) == (layout, 1, spec.dtype)
    assert list(map(int, more))[1:] == [1, 7]


@pytest.mark.parametrize("op", ["Add", "Where"])
def test_shapes_that_came_before_change_nothing(op):
    """Broadcast operands, single rows and elements, in turns, by the code that is kept."""
    rng = np.random.default_rng(5)
    for dims, other in [((3, 5), (5,)), ((3, 5), (3, 1)), ((1, 5), (5,)), ((64, 7), (1,)),
                        ((2, 3, 40), (3, 1)), ((2, 3, 41), (3, 1)), ((1, 1), (1,))]:  # fmt: skip
        arrays = [rng.standard_normal(d, np.float32) for d in (dims, other)]
        test = [rng.standard_normal(dims) > 0] if op == "Where" else []
        check(op, [*test, *arrays], kernel="elementwise")
