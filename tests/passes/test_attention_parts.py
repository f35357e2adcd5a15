"""Attention with a past, windows, lengths and scores, and rotary embedding, as native parts."""

import itertools

import numpy as np
import pytest

from tests.passes.build import Builder, check, native, ops_of
from tinsmith import ops
from tinsmith.codegen.target import level
from tinsmith.graph import Type
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.trace import make_site
from tinsmith.passes import run_passes

ONLY = "-fuse-elementwise"


def built(g):
    rng = np.random.default_rng(3)
    return [
        rng.standard_normal(v.dims).astype(np.float32)
        if v.dtype.kind == "f"
        else rng.integers(1, 3, v.dims).astype(v.dtype)
        for v in g.inputs
    ]


@pytest.mark.parametrize("queries, before", [(1, 6), (3, 4), (5, 0)])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float32"])
def test_a_past(queries, before, groups, causal, flat, mask):
    b = Builder()
    n, heads, e, f = 2, 4, 8, 12
    shapes = [(n, heads, queries, e), (n, groups, queries, e), (n, groups, queries, f)]
    if flat:
        shapes = [(a, t, h * w) for a, h, t, w in shapes]
    q, k, v = (b.x(*s, name=name) for s, name in zip(shapes, "qkv", strict=True))
    total = before + queries
    given = None if mask is None else b.graph.input("m", Type(np.dtype(mask), (n, 1, 1, total)))
    past = [None, None] if not before else [b.x(n, groups, before, w, name=f"p{w}") for w in (e, f)]
    y = ops.Attention(q, k, v, given, *past, is_causal=causal, with_present=True,
                      q_num_heads=heads, kv_num_heads=groups)  # fmt: skip
    g = b.out(*y)
    native(g, built(g))


@pytest.mark.parametrize("left, right", [(2, -1), (-1, 1), (0, 0), (1, 2)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sized", [False, True])
def test_windows_and_lengths(left, right, causal, sized):
    b = Builder()
    q, k, v = b.x(2, 4, 3, 8, name="q"), b.x(2, 2, 7, 8, name="k"), b.x(2, 2, 7, 8, name="v")
    lengths = b.graph.input("n", Type(np.dtype(np.int64), (2,))) if sized else None
    y = ops.Attention(q, k, v, None, None, None, lengths, is_causal=causal,
                      left_window_size=left, right_window_size=right)  # fmt: skip
    g = b.out(y)
    feeds = built(g)
    if sized:
        feeds[-1] = np.array([7, 4])
    native(g, feeds)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("mask", [None, "bool", "float32"])
@pytest.mark.parametrize("flat, causal, cap", [(0, 0, 0.0), (1, 1, 0.0), (0, 1, 3.0)])
def test_scores(mode, mask, flat, causal, cap):
    b = Builder()
    n, heads, groups = 2, 4, 2
    shapes = [(n, heads, 3, 8), (n, groups, 5, 8), (n, groups, 5, 8)]
    if flat:
        shapes = [(a, t, h * w) for a, h, t, w in shapes]
    q, k, v = (b.x(*s, name=name) for s, name in zip(shapes, "qkv", strict=True))
    given = None if mask is None else b.graph.input("m", Type(np.dtype(mask), (n, 1, 3, 5)))
    y = ops.Attention(q, k, v, given, is_causal=bool(causal), softcap=cap, with_qk=True,
                      qk_matmul_output_mode=mode, q_num_heads=heads,
                      kv_num_heads=groups)  # fmt: skip
    g = b.out(*y)
    feeds = built(g)
    if mask == "bool":
        feeds[-1] = np.arange(30).reshape(n, 1, 3, 5) % 3 > 0
        feeds[-1][0, 0, 1] = False  # a row that sees nothing
    native(g, feeds)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary(flat, width, interleaved, placed):
    b = Builder()
    x = b.x(*((2, 5, 24) if flat else (2, 3, 5, 8)), name="x")
    half = (width or 8) // 2
    caches = [b.w(16, half) if placed else b.x(2, 5, half, name=n) for n in ("cos", "sin")]
    at = b.graph.input("at", Type(np.dtype(np.int64), (2, 5))) if placed else None
    y = ops.RotaryEmbedding(x, *caches, at, interleaved=interleaved, num_heads=3 if flat else None,
                            rotary_embedding_dim=width)  # fmt: skip
    g = b.out(y)
    native(g, built(g))
    check(g, "machine", spec=ONLY)
    assert "RotaryEmbedding" not in ops_of(g)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("queries, keys", [(1, 20), (5, 7), (33, 40)])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("causal, cap", [(False, 0.0), (True, 0.0), (True, 2.0)])
@pytest.mark.parametrize("mask", [None, "bool", "float32"])
def test_attention_alone_is_one_node(groups, queries, keys, flat, causal, cap, mask):
    b = Builder()
    n, heads, e, f = 2, 4, 8, 12
    shapes = [(n, heads, queries, e), (n, groups, keys, e), (n, groups, keys, f)]
    if flat:
        shapes = [(a, t, h * w) for a, h, t, w in shapes]
    q, k, v = (b.x(*s, name=name) for s, name in zip(shapes, "qkv", strict=True))
    given = None if mask is None else b.graph.input("m", Type(np.dtype(mask), (n, 1, 1, keys)))
    g = b.out(ops.Attention(q, k, v, given, is_causal=causal, softcap=cap, q_num_heads=heads,
                            kv_num_heads=groups))  # fmt: skip
    native(g, built(g))
    check(g, "machine", spec=ONLY)
    assert set(ops_of(g)) <= {"RowAttention", "Reshape"}
    found = next(node for node in g.nodes if node.op.name == "RowAttention")
    assert found.inputs[3].dims[0] == n * (heads if causal else groups)


@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("covered", [1, 4, 7])
def test_a_mask_that_lacks_keys(dtype, covered):
    b = Builder()
    q, k, v = (b.x(2, 4, t, 8, name=name) for t, name in zip((3, 7, 7), "qkv", strict=True))
    given = b.graph.input("m", Type(np.dtype(dtype), (4, 3, covered)))
    g = b.out(ops.Attention(q, k, v, given))
    native(g, built(g))


def test_a_mask_of_more_keys_says_so():
    b = Builder()
    q, k, v = (b.x(1, 2, 3, 4, name=n) for n in "qkv")
    g = b.out(ops.Attention(q, k, v, b.x(3, 4, name="m")))
    report = run_passes(g, "machine", spec=ONLY)
    assert any("does not fit" in r.reason for r in report.refusals)
    assert ops_of(g) == ["Attention"]


def test_moves_around_attention_are_gone():
    b = Builder()
    x = b.x(2, 9, 32, name="x")
    wide = ops.MatMul(x, b.w(32, 3 * 32))
    parts = ops.Split(wide, b.i(32, 32, 32), axis=2)
    q, k, v = (ops.Transpose(ops.Reshape(p, b.i(2, 9, 4, 8)), perm=(0, 2, 1, 3)) for p in parts)
    y = ops.Transpose(ops.Attention(q, k, v, is_causal=True), perm=(0, 2, 1, 3))
    g = b.out(ops.MatMul(ops.Reshape(y, b.i(2, 9, 32)), b.w(32, 32)))
    native(g, [x * np.float32(0.1) for x in built(g)])
    check(g, "machine", spec=ONLY)
    assert ops_of(g) == ["MatMul", "RowAttention", "MatMul"]


def test_matrix_registers_are_offered_attention():
    b = Builder()
    q, k, v = (b.x(1, 8, 128, 64, name=n) for n in "qkv")
    g = b.out(ops.Attention(q, k, v, is_causal=True))
    run_passes(g, "machine", spec=ONLY)
    (node,) = g.nodes
    site = make_site(node, level("amx"))
    costs = [KERNELS[name].offer(site)[0].cost for name in ("attention_rows", "attention_amx")]
    assert costs[1] < costs[0]


def test_what_stays_says_why():
    b = Builder("float64")
    q, k, v = (b.x(1, 2, 3, 4, name=n) for n in "qkv")
    y = ops.Attention(q, k, v, with_present=True)
    g = b.out(*y)
    report = check(g, "machine", spec=ONLY)
    assert any("float64" in r.reason for r in report.refusals)
    assert len(list(itertools.chain(y))) == 3
