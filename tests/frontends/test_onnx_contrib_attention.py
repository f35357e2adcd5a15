"""com.microsoft's attentions, rotary and embedding operators against their formulas in numpy.

The formulas go head by head and query by query; what they give agrees with onnxruntime 1.31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.frontends.models import check, floats, run
from tests.frontends.models import contrib as one
from tinsmith.errors import DataError, ImportFailed, TinsmithError

N, S, H, E = 2, 5, 4, 8
D = H * E
Array = np.ndarray[Any, Any]


def heads(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def attend(
    q: Array, k: Array, v: Array, bias: Any = 0.0, scale: float | None = None, cap: float = 0.0
) -> Array:
    """q [N,H,S,E], k [N,G,T,E], v [N,G,T,F], bias broadcast to [N,H,S,T] -> [N,S,H*F]."""
    n, h, s, e = q.shape
    g, t = k.shape[1:3]
    bias = np.broadcast_to(bias, (n, h, s, t))
    y = np.zeros((n, s, h, v.shape[3]))
    for b, i, r in np.ndindex(n, h, s):
        key, value = k[b, i * g // h].astype(np.float64), v[b, i * g // h].astype(np.float64)
        score = key @ q[b, i, r] * (e**-0.5 if scale is None else scale)
        score = cap * np.tanh(score / cap) if cap else score
        score = score + bias[b, i, r]
        weight = np.exp(score - score.max())
        y[b, r, i] = weight / weight.sum() @ value
    return y.reshape(n, s, -1).astype(np.float32)


def causal(queries: int, keys: int) -> Array:
    before = keys - queries
    return np.where(np.arange(keys) <= np.arange(queries)[:, None] + before, 0, -np.inf)


# ---- Attention and MultiHeadAttention

X, W, B = floats(N, S, D), floats(D, 3 * D, seed=1) * np.float32(0.2), floats(3 * D, seed=2)
LENGTHS = np.array([5, 3], np.int32)
KEPT = (np.arange(S) < LENGTHS[:, None]).astype(np.int32)
MASKS = {
    "none": (None, np.zeros((N, S))),
    "lengths": (LENGTHS, np.where(KEPT, 0, -10000.0)),
    "rows": (KEPT, np.where(KEPT, 0, -10000.0)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask: str, unidirectional: int) -> None:
    given, bias = MASKS[mask]
    q, k, v = (heads(t, H) for t in np.split(X @ W + B, 3, axis=2))
    bias = bias[:, None, None] + (causal(S, S) if unidirectional else 0)
    proto, feeds = one("Attention", X, W, B, given, num_heads=H, unidirectional=unidirectional)
    check(proto, feeds, expected=[attend(q, k, v, bias)], rtol=1e-4)


def test_attention_with_a_mask_for_each_query() -> None:
    mask = np.tril(np.ones((S, S), np.int32))[None] * KEPT[:, None]
    q, k, v = (heads(t, H) for t in np.split(X @ W, 3, axis=2))
    want = attend(q, k, v, np.where(mask, 0, -500.0)[:, None], scale=0.3)
    attrs = {"num_heads": H, "scale": 0.3, "mask_filter_value": -500.0}
    check(*one("Attention", X, W, None, mask, **attrs), expected=[want], rtol=1e-4)


def test_attention_of_other_value_sizes() -> None:
    w = floats(D, 2 * D + 16, seed=3) * np.float32(0.2)
    q, k, v = (heads(t, H) for t in np.split(X @ w, [D, 2 * D], axis=2))
    proto, feeds = one("Attention", X, w, num_heads=H, qkv_hidden_sizes=[D, D, 16])
    check(proto, feeds, expected=[attend(q, k, v)], rtol=1e-4)


def test_attention_with_a_past() -> None:
    past, added = floats(2, N, H, 3, E, seed=4), floats(1, H, S, 3 + S, seed=5)
    q, k, v = (heads(t, H) for t in np.split(X @ W + B, 3, axis=2))
    k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    want = [attend(q, k, v, added + causal(S, 3 + S)), np.stack([k, v])]
    proto, feeds = one(
        "Attention", X, W, B, None, past, added, outs=2, num_heads=H, unidirectional=1
    )
    check(proto, feeds, expected=want, rtol=1e-4)


K, V = floats(N, 7, D, seed=6), floats(N, 7, D, seed=7)


@pytest.mark.parametrize("bias", [None, B], ids=["", "bias"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("added", [None, floats(1, H, S, 7, seed=8)], ids=["", "added"])
def test_multi_head_attention(bias: Any, padded: bool, added: Any) -> None:
    kept = (np.arange(7) < np.array([[7], [4]])).astype(np.int32)
    parts = [X, K, V]
    if bias is not None:
        parts = [x + b for x, b in zip(parts, np.split(bias, 3), strict=True)]
    total = (0 if added is None else added) + (
        np.where(kept, 0, -10000.0)[:, None, None] if padded else 0
    )
    want = attend(*(heads(p, H) for p in parts), total)
    inputs = (X, K, V, bias, kept if padded else None, added)
    check(*one("MultiHeadAttention", *inputs, num_heads=H), expected=[want], rtol=1e-4)


def test_multi_head_attention_with_a_past() -> None:
    past = [floats(N, H, 3, E, seed=i) for i in (1, 2)]
    k, v = (np.concatenate([p, heads(x[:, :S], H)], 2) for p, x in zip(past, (K, V), strict=True))
    want = [attend(heads(X, H), k, v, causal(S, 3 + S)), k, v]
    inputs = (X, K[:, :S].copy(), V[:, :S].copy(), None, None, None, *past)
    proto, feeds = one("MultiHeadAttention", *inputs, outs=3, num_heads=H, unidirectional=1)
    check(proto, feeds, expected=want, rtol=1e-4)


def test_multi_head_attention_of_packed_and_of_cached_operands() -> None:
    want = attend(*(heads(p, H) for p in (X, K, V)))
    pair = np.stack([K.reshape(N, 7, H, E), V.reshape(N, 7, H, E)], axis=3)
    check(*one("MultiHeadAttention", X, pair, num_heads=H), expected=[want], rtol=1e-4)
    cached = (np.ascontiguousarray(heads(x, H)) for x in (K, V))
    check(*one("MultiHeadAttention", X, *cached, num_heads=H), expected=[want], rtol=1e-4)
    parts = (X, K[:, :S], V[:, :S])
    triple = np.stack([p.reshape(N, S, H, E) for p in parts], axis=3)
    want = attend(*(heads(p, H) for p in parts))
    check(*one("MultiHeadAttention", triple, num_heads=H), expected=[want], rtol=1e-4)


# ---- rotary embedding, grouped queries

PLACES = np.arange(32)[:, None] * 1e4 ** (-np.arange(E // 2) / (E // 2))
COS, SIN = np.cos(PLACES).astype(np.float32), np.sin(PLACES).astype(np.float32)


def rotated(x: Array, at: Array, interleaved: bool = False) -> Array:
    """x [N,H,T,E] by the angles of the places [N,T]: pairs are complex numbers."""
    half = COS.shape[1]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = (first + 1j * second) * (COS + 1j * SIN)[at][:, None]
    y = np.empty_like(x)
    if interleaved:
        y[..., ::2], y[..., 1::2] = turned.real, turned.imag
    else:
        y[..., :half], y[..., half:] = turned.real, turned.imag
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    at = np.stack([np.arange(S), np.arange(S) + 3]).astype(np.int64)
    wide = rotated(heads(X, H), at, bool(interleaved))
    flat = wide.transpose(0, 2, 1, 3).reshape(N, S, D)
    attrs = {"interleaved": interleaved}
    proto, feeds = one("RotaryEmbedding", X, at, COS, SIN, num_heads=H, **attrs)
    check(proto, feeds, expected=[flat], rtol=1e-5)
    x4 = np.ascontiguousarray(heads(X, H))
    check(*one("RotaryEmbedding", x4, at, COS, SIN, **attrs), expected=[wide], rtol=1e-5)
    at = np.broadcast_to(np.arange(S) + 4, (N, S))
    flat = rotated(heads(X, H), at, bool(interleaved)).transpose(0, 2, 1, 3).reshape(N, S, D)
    first = np.array([4], np.int64)
    check(*one("RotaryEmbedding", X, first, COS, SIN, **attrs), expected=[flat], rtol=1e-5)


G = 2
GROUPED: list[tuple[Any, ...]] = [
    # new keys, held before by each sequence, room of the past, attributes
    (5, [0, 0], 0, {}),
    (1, [6, 6], 6, {}),
    (1, [6, 3], 6, {}),
    (1, [4, 2], 9, {}),
    (3, [6, 6], 6, {}),
    (1, [6, 6], 6, {"rotary_interleaved": 1}),
    (5, [0, 0], 0, {"local_window_size": 2}),
    (1, [6, 4], 6, {"local_window_size": 3, "softcap": 2.0}),
    (2, [5, 5], 5, {"scale": 0.2, "do_rotary": 0, "rotary_interleaved": 1}),
]


def grouped(
    q: Array, k: Array, v: Array, past: Any, before: Any, attrs: Any, added: Any = 0
) -> Any:
    """Output and present of each sequence by itself."""
    results = []
    for n, held in enumerate(before):
        at = np.arange(q.shape[1])[None] + held
        turn = (lambda x: x) if not attrs.get("do_rotary", 1) else (
            lambda x, at=at: rotated(x, at, bool(attrs.get("rotary_interleaved", 0))))  # fmt: skip
        mine = [turn(heads(q[n : n + 1], H)), turn(heads(k[n : n + 1], G)), heads(v[n : n + 1], G)]
        keys, values = (np.concatenate([p[n : n + 1, :, :held], x], axis=2)
                        for p, x in zip(past, mine[1:], strict=True))  # fmt: skip
        bias = causal(q.shape[1], keys.shape[2]) + added
        if (window := attrs.get("local_window_size", -1)) >= 0:
            near = np.arange(keys.shape[2]) > at[0][:, None] - window
            bias = np.where(near, bias, -np.inf)
        y = attend(mine[0], keys, values, bias, attrs.get("scale"), attrs.get("softcap", 0.0))
        results.append((y[0], keys[0], values[0]))
    return results


@pytest.mark.filterwarnings("error::tinsmith.errors.ModelWarning")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("new, before, room, attrs", GROUPED)
def test_group_query_attention(new: int, before: Any, room: int, attrs: Any, packed: bool) -> None:
    q, k, v = floats(N, new, D), floats(N, new, G * E, seed=1), floats(N, new, G * E, seed=2)
    past = [floats(N, G, room, E, seed=i) for i in (3, 4)]
    attrs = {"do_rotary": 1, **attrs}
    last = np.array([b + new - 1 for b in before], np.int32)
    total = np.array(max(last) + 1, np.int32)
    operands = (np.concatenate([q, k, v], axis=2), None, None) if packed else (q, k, v)
    proto, feeds = one("GroupQueryAttention", *operands, *past, last, total, COS, SIN, outs=3,
                       num_heads=H, kv_num_heads=G, **attrs)  # fmt: skip
    got = run(proto, feeds)
    assert got[1].shape == (N, G, max(room, total), E)
    for n, (y, keys, values) in enumerate(grouped(q, k, v, past, before, attrs)):
        held = before[n] + new
        np.testing.assert_allclose(got[0][n], y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[1][n, :, :held], keys, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[2][n, :, :held], values)


LIES = [
    # new keys, room of the past, seqlens_k, total_sequence_length; None: without a past
    (1, 6, [-1, 6], 7),
    (1, 6, [6, -5], 7),
    (1, 6, [7, 6], 7),
    (1, 6, [2**31 - 1, 0], 7),
    (1, 6, [6, 4], 6),
    (1, 6, [9, 9], 10),
    (1, 6, [5, 5], 8),
    (1, 6, [3, 3], 1),
    (1, 6, [0, 0], 0),
    (1, 6, [0, 0], -5),
    (3, 6, [1, 6], 7),
    (3, 6, [1, 1], 2),
    (3, 6, [3, 3], 3),
    (3, 0, [2, 4], 5),
    (3, None, [4, 4], 5),
    (3, None, [3, 2], 3),
    (1, 6, [6], 7),
    (1, 6, [6, 6, 6], 7),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("new, room, last, total", LIES)
def test_lengths_that_contradict_each_other_are_refused(
    new: int, room: int | None, last: list[int], total: int, known: bool
) -> None:
    """ONNX Runtime 1.32 refuses most of these, and reads what no key was written to in others."""
    q, k = floats(N, new, D), floats(N, new, G * E)
    past = [None, None] if room is None else [floats(N, G, room, E)] * 2
    lengths = np.array(last, np.int32), np.array(total, np.int32)
    proto, feeds = one("GroupQueryAttention", q, k, k, *past, *lengths, outs=3, num_heads=H,
                       kv_num_heads=G, weights=(5, 6) if known else ())  # fmt: skip
    wanted = "seqlens_k" if known or len(last) == N else "Reshape"
    for backend in ("cpu", "numpy"):
        with pytest.raises(ImportFailed if known else TinsmithError, match=wanted) as caught:
            ts.compile(ts.load(proto), backend=backend)(**feeds)
        assert known or len(last) != N or isinstance(caught.value, DataError)


@pytest.mark.parametrize("new, room, last, total", [(3, 6, [1, 2], 3), (1, 6, [0, 3], 6)])
def test_lengths_at_their_limits(new: int, room: int, last: list[int], total: int) -> None:
    q, k = floats(N, new, D), floats(N, new, G * E)
    past = [floats(N, G, room, E)] * 2
    proto, feeds = one("GroupQueryAttention", q, k, k, *past, np.array(last, np.int32),
                       np.array(total, np.int32), outs=3, num_heads=H, kv_num_heads=G)  # fmt: skip
    before = [0 if total == new else n + 1 - new for n in last]
    for n, (y, *_) in enumerate(grouped(q, k, k, past, before, {"do_rotary": 0})):
        np.testing.assert_allclose(run(proto, feeds)[0][n], y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("room", [6, 11])
def test_group_query_attention_with_a_bias_and_positions(room: int) -> None:
    q, k, v = floats(N, 1, D), floats(N, 1, G * E, seed=1), floats(N, 1, G * E, seed=2)
    past, added = [floats(N, G, room, E, seed=i) for i in (3, 4)], floats(1, 1, 1, 7, seed=5)
    last, total = np.full(N, 6, np.int32), np.array(7, np.int32)
    at = np.full((N, 1), 6, np.int64)
    proto, feeds = one("GroupQueryAttention", q, k, v, *past, last, total, COS, SIN, at, added,
                       outs=3, num_heads=H, kv_num_heads=G, do_rotary=1)  # fmt: skip
    got = run(proto, feeds)
    for n, (y, *_) in enumerate(grouped(q, k, v, past, [6, 6], {}, added)):
        np.testing.assert_allclose(got[0][n], y, rtol=1e-4, atol=1e-5)


def test_what_is_not_supported_says_why() -> None:
    q, k = floats(N, 1, D), floats(N, 1, G * E)
    last, total = np.zeros(N, np.int32), np.array(1, np.int32)
    inputs = (q, k, k, None, None, last, total)
    proto, _ = one("GroupQueryAttention", *inputs, num_heads=H, kv_num_heads=G, smooth_softmax=1)
    with pytest.raises(ImportFailed, match="smooth_softmax"):
        run(proto, {})
    proto, _ = one("Attention", X, W, B, np.ones((N, 1, S, S), np.int32), num_heads=H)
    with pytest.raises(ImportFailed, match="a mask of rank 4"):
        run(proto, {})


# ---- embeddings


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_embed_layer_normalization(segmented: bool, placed: bool) -> None:
    rng = np.random.default_rng(9)
    ids, segments = (rng.integers(0, n, (N, S)).astype(np.int32) for n in (20, 2))
    words, places, kinds = floats(20, D, seed=1), floats(16, D, seed=2), floats(2, D, seed=3)
    scale, shift, at = floats(D, seed=4), floats(D, seed=5), rng.integers(0, 16, (N, S))
    total = words[ids] + (places[at] if placed else places[:S])
    total = total + kinds[segments] if segmented else total
    mean, var = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    want = (total - mean) / np.sqrt(var + 1e-5) * scale + shift
    proto, feeds = one(
        "EmbedLayerNormalization", ids, segments if segmented else None, words, places,
        kinds if segmented else None, scale, shift, KEPT, at.astype(np.int32) if placed else None,
        outs=3, epsilon=1e-5,
    )  # fmt: skip
    check(proto, feeds, expected=[want, LENGTHS, total], rtol=1e-4)
