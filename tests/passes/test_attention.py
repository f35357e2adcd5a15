"""Attention is found in the forms that exporters write, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.passes.build import Builder, check, feeds_of, ops_of
from tinsmith.ops import OPS
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes

O = OPS  # noqa: E741
MOVES = {"Transpose", "Slice", "Concat", "Gather", "Split"}


def dense(b, x, n, name="w"):
    return O["Add"](O["MatMul"](x, b.w(x.dims[-1], n, name=name)), b.w(n))


def heads(b, x, count):
    """[B,N,H*D] -> [B,H,N,D]."""
    batch, n, wide = x.dims
    split = O["Reshape"](x, b.i(batch, n, count, wide // count))
    return O["Transpose"](split, perm=(0, 2, 1, 3))


def joined(b, y):
    """[B,H,N,D] -> [B,N,H*D]."""
    batch, h, n, d = y.dims
    return O["Reshape"](O["Transpose"](y, perm=(0, 2, 1, 3)), b.i(batch, n, h * d))


def turned(x):
    rank = x.rank
    return O["Transpose"](x, perm=(*range(rank - 2), rank - 1, rank - 2))


def scores(b, q, k, scale=0.25):
    return O["Mul"](O["MatMul"](q, turned(k)), b.c(scale))


def three(b, x, count=2):
    """Three products, as BERT has them."""
    wide = x.dims[-1]
    return [heads(b, dense(b, x, wide, n), count) for n in "qkv"]


def packed(b, x, how, count=2):
    """One product whose columns are q, k and v."""
    batch, n, wide = x.dims
    y = O["Reshape"](dense(b, x, 3 * wide), b.i(batch, n, 3, count, wide // count))
    y = O["Transpose"](y, perm=(2, 0, 3, 1, 4))
    if how == "gather":
        return [O["Gather"](y, b.c(i, np.int64), axis=0) for i in range(3)]
    parts = O["Split"](y, b.i(1, 1, 1), axis=0)
    return [O["Squeeze"](v, b.i(0)) for v in parts]


def finish(b, s, v):
    return dense(b, joined(b, O["MatMul"](O["Softmax"](s, axis=-1), v)), 16)


def run(graph, stage="machine"):
    check(graph, stage)
    return ops_of(graph)


@pytest.mark.parametrize("how", ["gather", "split", "three"])
@pytest.mark.parametrize("factor", ["after", "before", "both", "divided", "none"])
def test_exporters(how, factor):
    b = Builder()
    x = b.x(2, 9, 16)
    q, k, v = three(b, x) if how == "three" else packed(b, x, how)
    if factor in ("before", "both"):
        q = O["Mul"](q, b.c(0.5))
    kt = turned(k)
    if factor == "both":
        kt = O["Mul"](kt, b.c(0.5))
    s = O["MatMul"](q, kt)
    if factor == "after":
        s = O["Mul"](s, b.c(0.25))
    if factor == "divided":
        s = O["Div"](s, b.c(4.0))
    graph = b.out(finish(b, s, v))
    check(graph, "portable", "machine")
    ops = ops_of(graph)
    assert ops.count("RowAttention") == 1 and not MOVES & set(ops), ops
    node = next(n for n in graph.nodes if n.op.name == "RowAttention")
    assert node.scale == pytest.approx(
        1 if factor == "none" else 0.5 if factor == "before" else 0.25
    )


@pytest.mark.parametrize(
    "shape", [(9, 9), (1, 9), (9, 1), (2, 9, 9), (3, 1, 9, 9), (3, 2, 9, 9), (1,)], ids=str
)
@pytest.mark.parametrize("constant", [True, False])
def test_bias(shape, constant):
    b = Builder()
    q, k, v = three(b, b.x(3, 9, 16))
    bias = b.w(*shape) if constant else b.x(*shape, name="bias")
    ops = run(b.out(finish(b, O["Add"](bias, scores(b, q, k)), v)))
    assert "RowAttention" in ops and "Softmax" not in ops


def test_a_factor_after_a_constant_bias_scales_it():
    b = Builder()
    q, k, v = three(b, b.x(1, 9, 16))
    s = O["Mul"](O["Add"](O["MatMul"](q, turned(k)), b.w(9, 9)), b.c(0.3))
    assert "RowAttention" in run(b.out(finish(b, s, v)))


def test_three_constant_terms_become_two():
    b = Builder()
    q, k, v = three(b, b.x(3, 9, 16))
    s = scores(b, q, k)
    for shape in ((9, 9), (3, 1, 9, 9), (2, 1, 9)):
        s = O["Add"](s, b.w(*shape))
    assert "RowAttention" in run(b.out(finish(b, s, v)))


@pytest.mark.parametrize("values", [(2, 3, 7, 5), (1, 3, 7, 5), (7, 5)])
@pytest.mark.parametrize("shapes", ["fixed", "free"])
def test_scores_whose_heads_are_parted(values, shapes):
    b = Builder()
    n = 7 if shapes == "fixed" else "n"
    q, k = b.x(6, n, 5), b.x(6, 5, n, name="k")
    v = b.x(*values[:-2], n, 5, name="v")
    s = O["MatMul"](q, k)
    size = O["Slice"](O["Shape"](s), b.i(1), b.i(3))
    y = O["MatMul"](O["Softmax"](O["Reshape"](s, O["Concat"](b.i(2, 3), size, axis=0))), v)
    feeds = feeds_of(b.out(y), {"n": 7})
    want = run_graph(b.graph, feeds)
    net = ts.compile(b.graph, cache=False, shapes=shapes)
    np.testing.assert_allclose(net.run(feeds)[0], want[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shapes", ["fixed", "free"])
def test_weights_that_are_not_numbers_are_cleared(shapes):
    """where(isnan(w), 0, w) clears all weights of a query that sees no key, or whose scores are no
    numbers."""
    b = Builder()
    queries = 5 if shapes == "fixed" else "queries"
    q, k, v = b.x(1, queries, 8, name="q"), b.x(1, 7, 8, name="k"), b.x(1, 7, 8, name="v")
    mask = b.x(queries, 7, name="mask")
    w = O["Softmax"](O["Add"](O["MatMul"](q, turned(k)), mask), axis=-1)
    b.out(O["MatMul"](O["Where"](O["IsNaN"](w), b.c(0), w), v))
    feeds = feeds_of(b.graph, {"queries": 5})
    feeds[0][0, 0, 2], feeds[0][0, 2, 2], feeds[3][1], feeds[3][4, 3] = np.nan, np.inf, -np.inf, 1e9
    with np.errstate(invalid="ignore"):
        (want,) = run_graph(b.graph, feeds)
    assert np.isfinite(want).all() and not want[0, :3].any() and want[0, 3:].all()
    net = ts.compile(b.graph, cache=False, shapes=shapes)
    np.testing.assert_allclose(net(*feeds), want, rtol=1e-5, atol=1e-6)
    assert "attention_rows" in net.explain()


def test_shared_keys():
    """One head of keys and values for all heads of queries."""
    b = Builder()
    x = b.x(2, 9, 16)
    q = heads(b, dense(b, x, 32), 4)
    k, v = heads(b, dense(b, x, 8), 1), heads(b, dense(b, x, 8), 1)
    y = O["MatMul"](O["Softmax"](scores(b, q, k), axis=-1), v)
    assert "RowAttention" in run(b.out(dense(b, joined(b, y), 16)))


def roll(b, x, by):
    for axis in (1, 2):
        far = 2**62
        first = O["Slice"](x, b.i(by), b.i(far), b.i(axis))
        x = O["Concat"](first, O["Slice"](x, b.i(0), b.i(by), b.i(axis)), axis=axis)
    return x


def windows(b, x, size):
    n, h, w, c = x.dims
    y = O["Reshape"](x, b.i(n, h // size, size, w // size, size, c))
    y = O["Transpose"](y, perm=(0, 1, 3, 2, 4, 5))
    return O["Reshape"](y, b.i(n * (h // size) * (w // size), size * size, c))


def unwindowed(b, y, dims, size):
    n, h, w, _ = dims
    y = O["Reshape"](y, b.i(n, h // size, w // size, size, size, y.dims[-1]))
    y = O["Transpose"](y, perm=(0, 1, 3, 2, 4, 5))
    return O["Reshape"](y, b.i(n, h, w, y.dims[-1]))


def swin(b, shift, residual=True, extra=None):
    x = b.x(2, 6, 6, 16)
    moved = windows(b, roll(b, x, shift) if shift else x, 3)
    if extra:
        extra(moved)
    q, k, v = packed(b, moved, "gather")
    s = O["Add"](scores(b, q, k), b.w(1, 2, 9, 9))
    if shift:
        wide = O["Reshape"](s, b.i(2, 4, 2, 9, 9))
        s = O["Reshape"](O["Add"](wide, b.w(1, 4, 1, 9, 9)), b.i(8, 2, 9, 9))
    y = unwindowed(b, finish(b, s, v), x.dims, 3)
    if shift:
        y = roll(b, y, -shift)
    return b.out(O["Add"](x, y) if residual else y)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("residual", [True, False])
def test_windows(shift, residual):
    ops = run(swin(Builder(), shift, residual))
    assert "RowAttention" in ops and not MOVES & set(ops), ops


def test_moves_that_others_read_stay():
    b = Builder()
    kept = []
    ops = run(swin(b, 1, extra=lambda v: kept.append(b.out(O["Relu"](v)))))
    assert "RowAttention" in ops and "Concat" in ops


def test_a_result_of_moves_that_is_an_output_stays():
    b = Builder()
    q, k, v = three(b, b.x(2, 9, 16))
    y = O["MatMul"](O["Softmax"](scores(b, q, k), axis=-1), v)
    ops = run(b.out(joined(b, y), y))
    assert "RowAttention" in ops and "Transpose" in ops


def test_columns_that_are_not_contiguous_are_copied():
    """Heads cut from the channels of an image: positions are contiguous, not elements."""
    b = Builder()
    x = b.x(2, 16, 3, 3)
    flat = [O["Reshape"](O["Conv"](x, b.w(16, 16, 1, 1)), b.i(2, 2, 8, 9)) for _ in range(3)]
    q, k, v = (turned(f) for f in flat)
    y = O["MatMul"](O["Softmax"](scores(b, q, k), axis=-1), v)
    ops = run(b.out(O["Reshape"](turned(y), b.i(2, 16, 3, 3))))
    assert "RowAttention" in ops and "Softmax" not in ops


def test_constant_queries():
    b = Builder()
    x = b.x(2, 9, 16)
    k, v = heads(b, dense(b, x, 16), 2), heads(b, dense(b, x, 16), 2)
    y = O["MatMul"](O["Softmax"](scores(b, b.w(2, 5, 8), k), axis=-1), v)
    assert "RowAttention" in run(b.out(joined(b, y)))


# ---- near misses


def plain(b):
    q, k, v = three(b, b.x(2, 9, 16))
    return q, k, v, scores(b, q, k)


def another_axis(b):
    *_, v, s = plain(b)
    return [finish_with(b, O["Softmax"](s, axis=-2), v)]


def finish_with(b, weights, v):
    return dense(b, joined(b, O["MatMul"](weights, v)), 16)


def factor_at_run_time(b):
    q, k, v = three(b, b.x(2, 9, 16))
    s = O["Mul"](O["MatMul"](q, turned(k)), b.x(1, name="factor"))
    return [finish(b, s, v)]


def factor_of_each_head(b):
    q, k, v = three(b, b.x(2, 9, 16))
    return [finish(b, O["Mul"](O["MatMul"](q, turned(k)), b.w(2, 1, 1)), v)]


def term_that_stretches(b):
    *_, v, s = plain(b)
    return [O["MatMul"](O["Softmax"](O["Add"](s, b.w(3, 1, 1, 9, 9)), axis=-1), v)]


def weights_are_read_twice(b):
    *_, v, s = plain(b)
    weights = O["Softmax"](s, axis=-1)
    return [finish_with(b, weights, v), O["Relu"](weights)]


def weights_are_an_output(b):
    *_, v, s = plain(b)
    weights = O["Softmax"](s, axis=-1)
    return [finish_with(b, weights, v), weights]


def scores_are_an_output(b):
    *_, v, s = plain(b)
    return [finish(b, s, v), s]


def scores_are_read_twice(b):
    *_, v, s = plain(b)
    return [finish(b, s, v), O["Relu"](s)]


def no_product_before(b):
    *_, v, s = plain(b)
    return [finish(b, O["Tanh"](s), v)]


def weights_on_the_right(b):
    *_, v, s = plain(b)
    return [O["MatMul"](turned(v), O["Softmax"](s, axis=-1))]


def factor_after_a_term_at_run_time(b):
    q, k, v = three(b, b.x(2, 9, 16))
    s = O["Mul"](O["Add"](O["MatMul"](q, turned(k)), b.x(9, 9, name="t")), b.c(0.3))
    return [finish(b, s, v)]


def too_many_terms_at_run_time(b):
    *_, v, s = plain(b)
    for i in range(3):
        s = O["Add"](s, b.x(9, 9, name=f"t{i}"))
    return [finish(b, s, v)]


@pytest.mark.parametrize(
    "build",
    [
        another_axis, factor_at_run_time, factor_of_each_head, term_that_stretches,
        weights_are_read_twice, weights_are_an_output, scores_are_an_output, scores_are_read_twice,
        no_product_before, weights_on_the_right, factor_after_a_term_at_run_time,
        too_many_terms_at_run_time,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_near_misses(build):
    b = Builder()
    graph = b.out(*build(b))
    report = check(graph, "machine")
    assert "Softmax" in ops_of(graph) and "RowAttention" not in ops_of(graph)
    assert any(r.rule == "lower-attention" for r in report.refusals)


def test_unknown_shapes_are_left_alone():
    b = Builder()
    x = b.x("N", 9, 16)
    q, k, v = (O["MatMul"](x, b.w(16, 16)) for _ in range(3))
    graph = b.out(O["MatMul"](O["Softmax"](scores(b, q, k), axis=-1), v))
    check(graph, "machine", sizes={"N": 2})
    assert "RowAttention" not in ops_of(graph)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_are_left_alone(dtype):
    b = Builder(dtype)
    q, k, v = three(b, b.x(2, 9, 16))
    graph = b.out(finish(b, scores(b, q, k), v))
    run_passes(graph, "machine")
    assert "RowAttention" not in ops_of(graph)


def test_more_keys_than_the_option_allows():
    b = Builder()
    q, k, v = three(b, b.x(2, 9, 16))
    graph = b.out(finish(b, scores(b, q, k), v))
    run_passes(graph, "machine", spec="lower-attention{max-keys=8}")
    assert "RowAttention" not in ops_of(graph)
