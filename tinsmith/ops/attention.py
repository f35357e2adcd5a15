"""Scaled dot-product attention with caches and masks, and rotary position embedding."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinsmith.graph import Dim, Type, Value, agree, dtype_of
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import OPS, need, op
from tinsmith.ops._rules import Tensor, as_dtype, cut, in_float32_of, need_data, need_float
from tinsmith.ops.precision import is_float
from tinsmith.sizes import NUMBER


@op("composed")
def Attention(
    q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, scale=None,
    is_causal=False, q_num_heads=None, kv_num_heads=None, softcap=0.0, qk_matmul_output_mode=0,
    softmax_precision=None, left_window_size=-1, right_window_size=-1, with_present=False,
    with_qk=False,
):  # fmt: skip
    """y = softmax(cap(scale * q k^T) + bias) v, for every head; cap(s) = softcap * tanh(s/softcap)

    q [N,H,Q,E], k [N,G,K,E], v [N,G,K,F], or [N,Q,H*E] and so on with the numbers of heads given;
    query head h reads key head h * G // H. past_key and past_value come before k and v. The bias is
    attn_mask (bool: True where a query may attend; else added to scores), and -inf for keys that a
    short mask (not of 1 key) lacks, from nonpad_kv_seqlen [N] on, after the query (is_causal), or
    more than left (right) window size before (after) it, unless that is -1; query 0 is at the first
    key after the past, or the last query at key nonpad_kv_seqlen - 1. A query that may attend to no
    key gives 0. scale is 1 / sqrt(E) by default; softmax_precision names the softmax's dtype.
    with_present adds the whole k and v to the outputs, with_qk the scores at the stage
    qk_matmul_output_mode: 0 scaled products, 1 capped, 2 with bias, 3 after softmax.
    """
    given = (q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    shapes = [t.shape for t in given if t is not None]
    known = all(s is not None and all(isinstance(d, int) for d in s) for s in shapes)
    need(known, "sizes are known only in the call")
    dtype, rank, batches = q.dtype, len(q.shape), [a.shape[0] for a in (q, k, v)]
    need_data(len(set(batches)) == 1, f"q, k and v have batches of {batches}")
    q, k, v = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = OPS["Concat"](past_key, k, axis=2), OPS["Concat"](past_value, v, axis=2)
    elif with_present:
        k, v = OPS["Identity"](k), OPS["Identity"](v)
    present = k, v
    q, k, v = (in_float32_of(x) for x in (q, k, v))
    (n, heads, queries, e), (_, groups, keys, f) = q.shape, (*k.shape[:3], v.shape[3])
    rows, real = heads // groups * queries, q.dtype.type
    scores = OPS["Reshape"](q, [n, groups, rows, e])
    scores = OPS["MatMul"](scores, OPS["Transpose"](k, perm=(0, 1, 3, 2)))
    factor = real(e**-0.5 if scale is None else scale)
    scores = OPS["Reshape"](OPS["Mul"](scores, factor), [n, heads, queries, keys])
    shown = [scores]
    if softcap > 0:
        scores = OPS["Mul"](OPS["Tanh"](OPS["Div"](scores, real(softcap))), real(softcap))
    shown.append(scores)
    limits = is_causal, left_window_size, right_window_size
    terms = _terms(attn_mask, nonpad_kv_seqlen, limits, (before, queries, keys))
    for term in terms:
        if term.dtype == np.bool_:
            scores = OPS["Where"](term, scores, real(-np.inf))
        else:
            scores = OPS["Add"](scores, as_dtype(term, q.dtype))
    shown.append(scores)
    if softmax_precision is not None:
        scores = in_float32_of(as_dtype(scores, dtype_of(softmax_precision)))
    weights = _weights(scores, bool(terms) and keys > 0, v.dtype)
    shown.append(weights)
    y = OPS["MatMul"](OPS["Reshape"](weights, [n, groups, rows, keys]), v)
    y = OPS["Reshape"](y, [n, heads, queries, f])
    if rank == 3:
        y = OPS["Reshape"](OPS["Transpose"](y, perm=(0, 2, 1, 3)), [n, queries, heads * f])
    outputs = [as_dtype(y, dtype), *(present if with_present else ())]
    if with_qk:
        outputs.append(as_dtype(shown[qk_matmul_output_mode], dtype))
    return tuple(outputs)


def _heads(x: Tensor, count: int | None) -> Tensor:
    """[N,T,H*E] as [N,H,T,E], for `count` = H heads; a tensor of rank 4 as it is."""
    if len(x.shape) == 4:
        return x
    assert count is not None
    apart = OPS["Reshape"](x, [*x.shape[:2], count, x.shape[2] // count])
    return OPS["Transpose"](apart, perm=(0, 2, 1, 3))


def _terms(
    mask: Tensor, lengths: Tensor, limits: tuple[bool, int, int], sizes: tuple[int, int, int]
) -> list[Tensor]:
    """The masks of an Attention, which broadcast to the scores [N,H,Q,K]: bool, True where a query
    may attend to a key, or numbers that are added to the scores.

    mask     the caller's, or None; keys that are missing at the end of its last axis are masked,
             unless that has the length 1, which is broadcast
    lengths  [N], the number of valid keys of each sequence, or None: all. Query i of sequence n has
             the place of key lengths[n] - Q + i
    limits   (causal, left window, right window); a window of -1 has no bound
    sizes    (keys before the first query if there are no lengths, queries Q, keys K)
    """
    (causal, left, right), (before, queries, keys) = limits, sizes
    found: list[Tensor] = []
    if mask is not None:
        unseen = False if mask.dtype == np.bool_ else -np.inf
        have = mask.shape[-1]
        if 1 != have < keys:
            more = np.full((*mask.shape[:-1], keys - have), unseen, mask.dtype)
            mask = OPS["Concat"](mask, more, axis=-1)
        found.append(mask)
    key, place = np.arange(keys), np.arange(before, before + queries)[:, None]
    if lengths is not None:
        length = as_dtype(OPS["Reshape"](lengths, [-1, 1, 1, 1]), key.dtype)
        found.append(OPS["Less"](key, length))
        place = OPS["Add"](length, np.arange(-queries, 0)[:, None])
    if left >= 0:
        found.append(OPS["GreaterOrEqual"](key, OPS["Sub"](place, np.int64(left))))
    if causal:
        found.append(OPS["LessOrEqual"](key, place))
    if right >= 0:
        found.append(OPS["LessOrEqual"](key, OPS["Add"](place, np.int64(right))))
    return found


def _weights(scores: Tensor, masked: bool, dtype: np.dtype[Any]) -> Tensor:
    """The softmax of scores along the last axis, converted to `dtype`. With `masked`, rows of -inf
    only give 0 instead of NaN."""
    if not masked:
        return as_dtype(OPS["Softmax"](scores, axis=-1), dtype)
    real = scores.dtype.type
    blind = OPS["Equal"](OPS["Reduce"](scores, [3], kind="max"), real(-np.inf))
    weights = OPS["Softmax"](OPS["Where"](blind, real(0), scores), axis=-1)
    return as_dtype(OPS["Where"](blind, real(0), weights), dtype)


def _split(v: Value, heads: int | None, name: str) -> tuple[Dim, Dim, Dim, Dim]:
    """The dims (N, H, T, E) of the operand `name`, [N,H,T,E] or [N,T,H*E]; new symbols for unknown
    ones. `heads` is H, needed for rank 3. Raises TypeRuleError if it is missing, or does not divide
    the width."""
    if v.shape is None:
        return fresh(), heads if heads is not None else fresh(), fresh(), fresh()
    need(len(v.shape) in (3, 4), f"{name} needs rank 3 or 4, it has {len(v.shape)}")
    if len(v.shape) == 4:
        n, h, t, e = v.shape
        return n, h, t, e
    need(heads is not None, f"{name} has rank 3, so q_num_heads and kv_num_heads are needed")
    assert heads is not None
    n, t, wide = v.shape
    if isinstance(wide, str):
        return n, heads, t, fresh()
    need(heads > 0 and wide % heads == 0, f"{heads} heads do not divide the {wide} of {name}")
    return n, heads, t, wide // heads


@Attention.type
def _(
    q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, q_num_heads,
    kv_num_heads, qk_matmul_output_mode, left_window_size, right_window_size, with_present, with_qk,
    **_,
):  # fmt: skip
    need_float(q, "q")
    need(k.dtype == q.dtype, f"q is {q.dtype}, k is {k.dtype}")
    both = (past_key is None) == (past_value is None)
    need(both, "past_key and past_value are given together or not at all")
    need(
        past_key is None or nonpad_kv_seqlen is None,
        "nonpad_kv_seqlen describes an external cache, so past_key must be absent",
    )
    need(qk_matmul_output_mode in range(4), "qk_matmul_output_mode must be 0, 1, 2 or 3")
    need(min(left_window_size, right_window_size) >= -1, "window sizes must be -1 or more")
    n, heads, queries, e = _split(q, q_num_heads, "q")
    key_batch, groups, keys, width = _split(k, kv_num_heads, "k")
    value_batch, value_groups, values, f = _split(v, kv_num_heads, "v")
    for name, batch in (("k", key_batch), ("v", value_batch)):
        need(agree(n, batch), f"q has a batch of {n}, {name} of {batch}")
    need(agree(e, width), f"the heads of q have {e} elements, those of k {width}")
    need(agree(groups, value_groups), f"k has {groups} heads, v has {value_groups}")
    need(agree(keys, values), f"k has {keys} keys, v has {values} values")
    if isinstance(heads, NUMBER) and isinstance(groups, NUMBER):
        need(heads % groups == 0, f"{groups} key heads do not divide {heads} query heads")
    total = keys
    if past_key is not None:
        past = past_key.shape[2] if past_key.shape else None
        total = past + keys if isinstance(past, NUMBER) and isinstance(keys, NUMBER) else fresh()
    if attn_mask is not None:
        ok = attn_mask.dtype == np.bool_ or is_float(attn_mask.dtype)
        need(ok, f"attn_mask must be bool or a float type, it is {attn_mask.dtype}")
    rank = q.rank
    if rank is None:
        y: Any = None
    elif rank == 4:
        y = (n, heads, queries, f)
    else:
        wide = heads * f if isinstance(heads, NUMBER) and isinstance(f, NUMBER) else fresh()
        y = (n, queries, wide)
    outputs = [Type(q.dtype, y)]
    if with_present:
        outputs.append(Type(k.dtype, (n, groups, total, width)))
        outputs.append(Type(v.dtype, (n, groups, total, f)))
    if with_qk:
        outputs.append(Type(q.dtype, (n, heads, queries, total)))
    return tuple(outputs)


@Attention.cost
def _(q, k, v, attn_mask=None, past_key=None, *_, q_num_heads, kv_num_heads, **__):
    n, heads, queries, e = (int(d) for d in _split(q, q_num_heads, "q"))
    keys = int(_split(k, kv_num_heads, "k")[2]) + (0 if past_key is None else past_key.dims[2])
    f = int(_split(v, kv_num_heads, "v")[3])
    return prod((n, heads, queries, keys)) * (2.0 * e + 2 * f + 20)


# ---- rotary embedding


@op("composed")
def RotaryEmbedding(
    x, cos_cache, sin_cache, position_ids=None, *, interleaved=False, num_heads=None,
    rotary_embedding_dim=0,
):  # fmt: skip
    """(a, b) -> (a cos - b sin, a sin + b cos) for pairs of the first rotary_embedding_dim elements

    of a head; others stay. x [N,H,T,E] or [N,T,H*E] (num_heads given). Pairs are neighbours if
    interleaved, else elements i and i + half, half = rotary_embedding_dim / 2. The caches are
    [positions, half] with position_ids [N,T], else [N,T,half]; rotary_embedding_dim 0: all of E.
    """
    dtype, rank, wide = x.dtype, len(x.shape), x.shape[-1]
    x, axis = in_float32_of(x), 2  # of the rows: heads lie before them in rank 4, behind in rank 3
    if rank == 3:
        need(isinstance(wide, NUMBER), "the width of x is not known")
        x, axis = OPS["Reshape"](x, [0, 0, num_heads, wide // num_heads]), 1
    width = rotary_embedding_dim or x.shape[-1]
    need(isinstance(width, NUMBER), "the width of x is not known")
    if position_ids is not None:
        cos_cache, sin_cache = (
            OPS["Gather"](cache, position_ids, axis=0) for cache in (cos_cache, sin_cache)
        )
    cos, sin = (OPS["Unsqueeze"](in_float32_of(v), [3 - axis]) for v in (cos_cache, sin_cache))
    rest = [] if width == x.shape[-1] else [cut(x, width, x.shape[-1], 3)]
    a, b = _pairs(cut(x, 0, width, 3) if rest else x, width, interleaved)
    both = [
        OPS["Sub"](OPS["Mul"](a, cos), OPS["Mul"](b, sin)),
        OPS["Add"](OPS["Mul"](a, sin), OPS["Mul"](b, cos)),
    ]
    if interleaved:
        both = [OPS["Unsqueeze"](v, [4]) for v in both]
        both = [OPS["Reshape"](OPS["Concat"](*both, axis=4), [0, 0, 0, width])]
    y = OPS["Concat"](*both, *rest, axis=3) if len(both) + len(rest) > 1 else both[0]
    return as_dtype(y if rank == 4 else OPS["Reshape"](y, [0, 0, wide]), dtype)


def _pairs(x: Tensor, width: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The first and the second elements of all pairs of x [.,.,.,width], [.,.,.,width / 2] each. A
    pair is two neighbours if `interleaved`, else element i of both halves."""
    half = width // 2
    if not interleaved:
        return cut(x, 0, half, 3), cut(x, half, width, 3)
    apart = OPS["Reshape"](x, [0, 0, 0, half, 2])
    first, second = (OPS["Reshape"](cut(apart, i, i + 1, 4), [0, 0, 0, half]) for i in (0, 1))
    return first, second


@RotaryEmbedding.type
def _(x, cos_cache, sin_cache, position_ids=None, *, interleaved, num_heads, rotary_embedding_dim):
    need_float(x, "x")
    _, _, _, e = _split(x, num_heads or None, "x")
    width: Dim = rotary_embedding_dim or e
    if isinstance(width, NUMBER):
        need(width % 2 == 0, f"pairs are rotated, but {width} elements are odd")
        need(isinstance(e, str) or width <= e, f"rotary_embedding_dim {width} exceeds the {e} of x")
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        if cache.shape is None:
            continue
        wants = 3 if position_ids is None else 2
        need(len(cache.shape) == wants, f"{name} needs rank {wants}, it has {len(cache.shape)}")
        have = cache.shape[-1]
        if isinstance(have, NUMBER) and isinstance(width, NUMBER):
            need(have * 2 == width, f"{name} has {have} columns, {width // 2} are needed")
    return x.type


RotaryEmbedding.cost(lambda x, *_, **__: 3 * x.type.size)
