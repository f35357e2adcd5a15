"""Importers of com.microsoft's attention operators, and of its rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tinsmith.frontends.onnx.arithmetic import cast
from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.graph import Value

_MS = "com.microsoft."


@importer(_MS + "Attention")
def attention(call: Call) -> Result:
    """Import Attention. Inputs: x, the weights of q, k and v side by side, their bias, mask, past,
    attention bias."""
    total = call.emit("MatMul", call[0], call[1])
    if call.arg(2) is not None:
        total = call.emit("Add", total, call[2])
    return packed_attention(call, total, call.arg(3), call.arg(4), call.arg(5))


def packed_attention(
    call: Call, total: Value, mask: Value | None, past: Value | None, added: Value | None
) -> Result:
    """Import attention over `total` [N,T,Q+K+V], q, k and v side by side. `mask` and `added` are as
    in `_bias`; `past` [2,N,H,P,E] are keys, then values. The second output, if the node names it,
    is past and new keys and values together. Raises Unsupported for do_rotary, a shared buffer, or
    an unknown width of `total`."""
    heads = call.required("num_heads")
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0):
        raise Unsupported("do_rotary and past_present_share_buffer are not supported")
    call.ignore("rotary_embedding_dim")
    width = total.shape[-1] if total.shape else None
    if not isinstance(width, int):
        raise Unsupported("its weights need a known shape")
    sizes = call.attr("qkv_hidden_sizes") or [width // 3] * 3
    q, k, v = call.emit("Split", total, call.ints(*sizes), axis=-1)
    both: list[Value | None] = [None, None]
    if past is not None:
        parts = call.emit("Split", past, call.ints(1, 1), axis=0)
        both = [call.emit("Squeeze", p, call.ints(0)) for p in parts]
    bias = _bias(call, mask, added, total, _keys(call, k, both[0]))
    y = _attend(call, (q, k, v), bias, both, heads, call.wants(1))
    if not call.wants(1):
        return y
    y, *present = y
    pair = [call.emit("Unsqueeze", p, call.ints(0)) for p in present]
    return y, call.emit("Concat", *pair, axis=0)


@importer(_MS + "MultiHeadAttention")
def multi_head_attention(call: Call) -> Result:
    """Import MultiHeadAttention. Inputs: q, k, v (or all packed in q, or k and v in k), bias,
    padding mask of the keys, attention bias, past k, past v."""
    heads = call.required("num_heads")
    if call.arg(8) is not None or call.arg(9) is not None:
        raise Unsupported("a shared buffer of keys and beams is not supported")
    if call.wants(3):
        raise Unsupported("its scores as an output are not supported")
    q, k, v = _parted(call)
    if call.arg(3) is not None:
        q, k, v = _with_bias(call, q, k, v, call[3])
    past = [call.arg(6), call.arg(7)]
    mask = _bias(call, call.arg(4), call.arg(5), q, _keys(call, k, past[0]))
    return _attend(call, (q, k, v), mask, past, heads, call.wants(1) or call.wants(2))


def _parted(call: Call) -> tuple[Value, Value, Value]:
    """q, k and v of a MultiHeadAttention, each [N,T,H*E] or [N,H,T,E]. Packed ones are split: q
    [N,T,H,3,E] has all three, k [N,T,H,2,E] has v too. Raises Unsupported if one is missing."""
    q, k, v = call[0], call.arg(1), call.arg(2)
    if q.rank == 5:
        q, k, v = _unpacked(call, q, 3)
    elif k is not None and k.rank == 5:
        k, v = _unpacked(call, k, 2)
    if k is None or v is None:
        raise Unsupported("it lacks a key or a value")
    return q, k, v


def _unpacked(call: Call, x: Value, count: int) -> list[Value]:
    """x [N,T,H,count,E] split into `count` tensors [N,T,H*E]."""
    parts = call.emit("Split", x, call.ints(*[1] * count), axis=3)
    return [call.emit("Reshape", p, call.ints(0, 0, -1)) for p in parts]


def _with_bias(call: Call, q: Value, k: Value, v: Value, bias: Value) -> tuple[Value, Value, Value]:
    """q, k and v plus their biases, which `bias` has one after the other; k and v of rank 4 have
    theirs already. Raises Unsupported for unknown widths."""
    width = q.shape[-1] if q.shape else None
    total = bias.shape[0] if bias.shape else None
    if not isinstance(width, int) or not isinstance(total, int):
        raise Unsupported("its bias needs widths that are known")
    parts = call.emit("Split", bias, call.ints(width, width, total - 2 * width), axis=0)
    q = call.emit("Add", q, parts[0])
    if k.rank == 3:
        k, v = call.emit("Add", k, parts[1]), call.emit("Add", v, parts[2])
    return q, k, v


def _keys(call: Call, k: Value, past: Value | None) -> Value:
    """Int64 [1]: how many keys k, [N,K,H*E] or [N,H,K,E], and `past` [N,H,P,E] have together."""
    axis = 2 if k.rank == 4 else 1
    count = call.emit("Shape", k, start=axis, end=axis + 1)
    if past is None:
        return count
    return call.emit("Add", count, call.emit("Shape", past, start=2, end=3))


def _range(call: Call, count: Value) -> Value:
    """The int64 vector 0, 1, ..., count - 1; `count` is int64 [1]."""
    zero, one = call.const(np.int64(0)), call.const(np.int64(1))
    return call.emit("Range", zero, call.emit("Squeeze", count, call.ints(0)), one)


def _bias(
    call: Call, mask: Value | None, added: Value | None, like: Value, keys: Value
) -> Value | None:
    """The numbers that our Attention adds to scores: `added`, plus the attribute
    `mask_filter_value` where `mask` hides a key. None where both are None. Raises Unsupported for
    another mask.

    mask  [N,K] or [N,Q,K], 0 for a hidden key; or [N], the number of visible keys of each sequence
    like  a value with the element type and the batch of q
    keys  the number of keys, int64 [1]
    """
    least = call.attr("mask_filter_value", -10000.0)
    if mask is None:
        return added
    if mask.rank == 1:
        if mask.shape is None or like.shape is None or mask.shape[0] != like.shape[0]:
            raise Unsupported("a mask of rank 1 must have one length for each element of the batch")
        lengths = call.emit("Unsqueeze", cast(call, mask, "int64"), call.ints(1))
        allowed = call.emit("Less", _range(call, keys), lengths)
    elif mask.rank in (2, 3):
        allowed = call.emit("Greater", mask, call.number(0, mask))
    else:
        raise Unsupported(f"a mask of rank {mask.rank} is not supported")
    axes = (1,) if mask.rank == 3 else (1, 2)
    allowed = call.emit("Unsqueeze", allowed, call.ints(*axes))
    bias = call.emit("Where", allowed, call.number(0, like), call.number(least, like))
    return bias if added is None else call.emit("Add", bias, added)


def _attend(
    call: Call, qkv: Sequence[Value], mask: Value | None, past: list[Value | None], heads: int,
    present: bool,
) -> Any:  # fmt: skip
    """Emit our Attention of `heads` heads over q, k and v (`qkv`), with `mask` (from `_bias`) added
    to scores, and `past` k and v before the new ones (None: none). The attributes `scale` (0 or
    absent: 1 / sqrt(width of a head)) and `unidirectional` of `call` hold. Returns y; with
    `present` (y, keys, values), past and new ones together."""
    call.ignore("mask_filter_value")
    scale = call.attr("scale", 0.0)
    return call.emit(
        "Attention", *qkv, mask, *past,
        scale=scale or None, is_causal=bool(call.attr("unidirectional", 0)),
        q_num_heads=heads, kv_num_heads=heads, with_present=present,
    )  # fmt: skip


# ---- grouped queries


@importer(_MS + "GroupQueryAttention")
def group_query_attention(call: Call) -> Result:
    """Import GroupQueryAttention. Inputs: q, k, v, past k, past v, (length of each sequence) - 1,
    the largest length, caches of cosines and of sines, positions, attention bias. Outputs: y,
    present k and present v (as long as `_rows` says)."""
    for at, what in ((11, "head_sink"), (12, "k_scale"), (13, "v_scale")):
        if call.arg(at) is not None:
            raise Unsupported(f"its input {what} is not supported")
    if call.attr("smooth_softmax", 0) == 1 or call.wants(3):
        raise Unsupported("smooth_softmax and an output of scores are not supported")
    interleaved = bool(call.attr("rotary_interleaved", 0))
    heads, groups = call.required("num_heads"), call.required("kv_num_heads")
    q, k, v = _packed(call, heads, groups)
    count = call.emit("Shape", q, start=1, end=2)
    before = _before(call, q, count)
    place = call.emit("Add", before, _range(call, count))  # [N,S]
    if call.attr("do_rotary", 0):
        at = place if call.arg(9) is None else cast(call, call[9], "int64")
        q = _rotated(call, q, at, call[7], call[8], interleaved, heads)
        k = _rotated(call, k, at, call[7], call[8], interleaved, groups)
    pairs = [(call.arg(3 + i), _by_head(call, x, groups)) for i, x in enumerate((k, v))]
    rows = _rows(call, *pairs[0])
    keys = [_written(call, *pair, before, rows) for pair in pairs]
    mask = _visible(call, keys[0], place, q)
    y = call.emit(
        "Attention", q, *keys, mask, scale=call.attr("scale", 0.0) or None,
        softcap=call.attr("softcap", 0.0), q_num_heads=heads, kv_num_heads=groups,
    )  # fmt: skip
    return y, *keys


def _packed(call: Call, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """q, k and v of a GroupQueryAttention. Without k or v, q has all side by side, `heads` and
    twice `groups` heads, and is split. Raises Unsupported for an unknown width."""
    q, k, v = call[0], call.arg(1), call.arg(2)
    if k is not None and v is not None:
        return q, k, v
    width = q.shape[-1] if q.shape else None
    if not isinstance(width, int):
        raise Unsupported("q, k and v packed in one need a known width")
    e = width // (heads + 2 * groups)
    return call.emit("Split", q, call.ints(heads * e, groups * e, groups * e), axis=-1)


def _before(call: Call, q: Value, count: Value) -> Value:
    """[N,1], or [1,1] without a past: how many keys each sequence has before its `count` new ones;
    0 where all are new. Adds a check: a run with impossible lengths raises DataError. If they are
    constants, raises Unsupported here."""
    batch = call.emit("Shape", q, start=0, end=1)
    shape = call.emit("Concat", batch, call.ints(1), axis=0)
    last = call.emit("Reshape", cast(call, call[5], "int64"), shape)
    total = call.emit("Reshape", cast(call, call[6], "int64"), call.ints(1))
    held = call.emit("Sub", call.emit("Add", last, call.ints(1)), count)
    first = call.emit("Equal", total, count)
    past = call.arg(3)
    room = call.ints(0) if past is None else call.emit("Shape", past, start=2, end=3)
    within = [
        call.emit("LessOrEqual", count, total),
        call.emit("LessOrEqual", total, call.emit("Add", room, count)),
        call.emit("LessOrEqual", call.ints(0), last),
        call.emit("Less", last, total),
        call.emit("Or", first, call.emit("LessOrEqual", call.ints(0), held)),
    ]
    _check_known(call, q, past)
    fits = reduce(lambda a, b: call.emit("And", a, b), within)
    fits = call.emit("Required", fits, message=_LENGTHS)
    if past is None:
        return call.const(np.zeros((1, 1), np.int64))
    new = call.emit("Or", first, call.emit("Not", fits))  # nothing is written before it is checked
    return call.emit("Where", new, call.ints(0), held)


def _check_known(call: Call, q: Value, past: Value | None) -> None:
    """Raise Unsupported if inputs 5 and 6, the lengths, are constants that contradict each other,
    or that contradict the known sizes of q and `past`."""
    last, total = call[5].const, call[6].const
    batch, count = q.shape[:2] if q.shape else (None, None)
    room = 0 if past is None else past.shape[2] if past.shape else None
    if last is not None and isinstance(batch, int) and last.size != batch:
        raise Unsupported(f"seqlens_k has {last.size} elements, there are {batch} sequences")
    if last is None or total is None or not isinstance(count, int):
        return
    most = total + 1 if not isinstance(room, int) else room + count
    new = bool(np.all(total == count))
    fits = np.all((count <= total) & (total <= most)) and np.all((last >= 0) & (last < total))
    if not fits or not (new or np.all(last >= count - 1)):
        raise Unsupported(_LENGTHS)


_LENGTHS = (
    "seqlens_k or total_sequence_length is out of range: with S new keys, total_sequence_length "
    "must lie in [S, S + length of past_key], and each of seqlens_k, which is the length of a "
    "sequence - 1, in [S - 1, total_sequence_length), or in [0, S) where all keys are new"
)


def _by_head(call: Call, x: Value, heads: int) -> Value:
    """[N,T,H*E] as [N,H,T,E]."""
    apart = call.emit("Reshape", x, call.ints(0, 0, heads, -1))
    return call.emit("Transpose", apart, perm=(0, 2, 1, 3))


def _rows(call: Call, past: Value | None, new: Value) -> Value:
    """The length of present_key and present_value, int64 [1]. Without a past: that of `new`
    [N,H,S,E]. That of the past, if the model declares the same for present_key (then a run with
    more keys raises DataError), or if all keys fit; else the largest length (input 6)."""
    if past is None:
        return call.emit("Shape", new, start=2, end=3)
    room = call.emit("Shape", past, start=2, end=3)
    total = call.emit("Reshape", cast(call, call[6], "int64"), call.ints(1))
    told = call.scope.declared.get(call.proto.output[1]) if call.wants(1) else None
    if told is not None and told.shape and past.shape and told.shape[2:3] == past.shape[2:3]:
        shared = call.emit("LessOrEqual", total, room)
        call.emit("Required", shared, message="present has no room for total_sequence_length keys")
        return room
    fits = call.emit("Equal", call.emit("Max", total, room), room)
    return call.emit("Where", fits, room, total)


def _written(call: Call, past: Value | None, new: Value, before: Value, rows: Value) -> Value:
    """present_key or present_value: the past, padded with zeros to the length `rows`; the new keys
    or values of sequence n begin at before[n]. Without a past, `new` itself."""
    if past is None:
        return new
    outer, width = (call.emit("Shape", past, start=i, end=j) for i, j in ((0, 2), (3, 4)))
    more = call.emit("Sub", rows, call.emit("Shape", past, start=2, end=3))
    zeros = call.emit(
        "ConstantOfShape", call.emit("Concat", outer, more, width, axis=0), dtype=past.dtype.name
    )
    room = call.emit("Concat", past, zeros, axis=2)
    return call.emit(
        "TensorScatter", room, new, call.emit("Reshape", before, call.ints(-1)), axis=2
    )


def _visible(call: Call, k: Value, place: Value, q: Value) -> Value:
    """The mask of a GroupQueryAttention, for keys k [N,H,T,E] and queries at `place` [N,S]: bool
    [N,1,S,T], true for keys up to the query's place, within the local window. With an attention
    bias, numbers in the type of q: the bias for these keys, -inf for others."""
    added, window = call.arg(10), call.attr("local_window_size", -1)
    key = _range(call, call.emit("Shape", k, start=2, end=3))
    at = call.emit("Unsqueeze", place, call.ints(1, 3))
    seen = call.emit("LessOrEqual", key, at)
    if window >= 0:
        near = call.emit("Greater", key, call.emit("Sub", at, call.ints(window)))
        seen = call.emit("And", seen, near)
    if added is None:
        return seen
    places, width = (call.emit("Shape", x, start=i, end=i + 1) for x, i in ((k, 2), (added, 3)))
    more = call.emit("Concat", call.ints(*[0] * 7), call.emit("Sub", places, width), axis=0)
    added = call.emit("Pad", added, more)
    return call.emit("Where", seen, added, call.number(-np.inf, q))


# ---- rotary embedding


def _rotated(
    call: Call, x: Value, at: Value, cos: Value, sin: Value, interleaved: bool, heads: int | None
) -> Value:
    """The rotary embedding of x, [N,T,heads*E] (`heads` is then needed) or [N,H,T,E], at the
    positions `at` [N,T]: the first 2 * half elements of each head are rotated, by caches
    [positions, half]. Raises Unsupported if `half` is unknown."""
    half = cos.shape[1] if cos.shape else None
    if not isinstance(half, int):
        raise Unsupported("its cache of cosines needs a known shape")
    return call.emit(
        "RotaryEmbedding", x, cos, sin, at,
        interleaved=interleaved, num_heads=heads, rotary_embedding_dim=2 * half,
    )  # fmt: skip


@importer(_MS + "RotaryEmbedding")
def rotary_embedding(call: Call) -> Result:
    """Import RotaryEmbedding. Inputs: x, positions [N,S] or the first position [1], caches of
    cosines and of sines."""
    if call.attr("is_packed_batching", 0) or call.attr("scale", 1.0) != 1.0:
        raise Unsupported("is_packed_batching and a scale are not supported")
    call.ignore("rotary_embedding_dim")
    x, at = call[0], cast(call, call[1], "int64")
    heads = call.attr("num_heads", 0) or None
    if x.rank not in (3, 4):
        raise Unsupported("its input needs a known rank")
    if at.rank == 1:
        count = call.emit("Shape", x, start=x.rank - 2, end=x.rank - 1)
        at = call.emit("Unsqueeze", call.emit("Add", at, _range(call, count)), call.ints(0))
    width = x.shape[-1] if x.shape else None
    if x.rank == 3 and heads is None:
        half = call[2].shape[1] if call[2].shape else None
        if not isinstance(width, int) or not isinstance(half, int):
            raise Unsupported("without num_heads it needs a known width")
        heads = width // (2 * half)
    return _rotated(call, x, at, call[2], call[3], bool(call.attr("interleaved", 0)), heads)
