"""Attention with a past, windows, lengths or scores as outputs, and rotary embedding, in parts that
have native kernels: joins, masks, products, elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.manager import Context, register
from tinsmith.records import dataclass
from tinsmith.rewrite import Skip, replace_outputs

NAME = "split-attention"
Add = Callable[..., Value]


@register("machine", name=NAME, devices=("cpu",))
@dataclass(frozen=True)
class SplitAttention:
    """Attention that keeps or shows more than its result, and rotary embedding, become parts."""

    def run(self, graph: Graph, context: Context) -> int:
        changes = 0
        for node in list(graph.nodes):
            split = {"Attention": _attention, "RotaryEmbedding": _rotary}.get(node.op.name)
            if split is None:
                continue
            try:
                if any(
                    v is not None and not v.type.is_static for v in (*node.inputs, *node.outputs)
                ):
                    raise Skip("a shape is not static")
                new = split(node, partial(_add, graph, node))
            except Skip as why:
                context.refuse(NAME, node.name, str(why))
                continue
            if new is not None and replace_outputs(graph, node, new):
                graph.sweep([node])
                changes += 1
        return changes


def _add(graph: Graph, node: Node, op: str, *inputs: Any, **attrs: Any) -> Any:
    """A node at the place of `node`; its output, or the tuple of its outputs."""
    made = graph.add(
        OPS[op], *inputs, name=f"{node.name}/{op}", origin=node.origin, before=node, **attrs
    )
    return made.outputs[0] if len(made.outputs) == 1 else made.outputs


def _ints(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


# ---- attention


def _attention(node: Node, add: Add) -> tuple[Value, ...] | None:
    q, k, v, mask, past_key, past_value, lengths = (*node.inputs, *[None] * 7)[:7]
    assert q is not None and k is not None and v is not None
    windows = node.left_window_size, node.right_window_size
    if (past_key is None and lengths is None and windows == (-1, -1)
            and not node.with_present and not node.with_qk):  # fmt: skip
        return None
    if q.dtype != np.float32:
        raise Skip(f"the operands are {q.dtype}")
    if str(node.softmax_precision or "float32") != "float32":
        raise Skip(f"the softmax is in {node.softmax_precision}")
    if min(x.type.size for x in (q, k, v)) == 0:
        raise Skip("an operand is empty")
    if past_key is not None or node.with_present:
        k, v = (_by_head(add, x, node.kv_num_heads) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = add("Concat", past_key, k, axis=2), add("Concat", past_value, v, axis=2)
    queries, keys = (x.dims[2 if x.rank == 4 else 1] for x in (q, k))
    before = 0 if past_key is None else past_key.dims[2]
    causal = bool(node.is_causal)
    plain = lengths is None and windows == (-1, -1) and not (causal and before)
    if not plain or (causal and node.with_qk):
        seen = _seen(add, queries, keys, before, lengths, (causal, *windows))
        mask, causal = _masked(add, mask, seen, keys), False
    present: tuple[Value, ...] = ()
    if node.with_present:
        present = tuple(x if x.producer is not None and past_key else add("Identity", x)
                        for x in (k, v))  # fmt: skip
    if node.with_qk:
        y, scores = _in_products(node, add, q, k, v, mask)
        return y, *present, scores
    attrs = {n: getattr(node, n) for n in ("scale", "softcap", "q_num_heads", "kv_num_heads")}
    return add("Attention", q, k, v, mask, is_causal=causal, **attrs), *present


def _by_head(add: Add, x: Value, heads: int | None) -> Value:
    """[N,T,H*E] as [N,H,T,E]; rank 4 as it is."""
    if x.rank == 4 or heads is None:
        return x
    n, t, wide = x.dims
    return add("Transpose", add("Reshape", x, _ints(n, t, heads, wide // heads)), perm=(0, 2, 1, 3))


def _seen(
    add: Add, queries: int, keys: int, before: int, lengths: Value | None, limits: Any
) -> Value | np.ndarray[Any, Any] | None:
    """Which keys each query sees, as far as its place says: [Q,K], or [N,1,Q,K] with lengths.
    None where it sees all."""
    causal, left, right = limits
    key, row = np.arange(keys), np.arange(queries)[:, None]
    low = key - row + left if left >= 0 else None  # to be at least the first query's place
    high = key - row if causal else None  # to be at most that
    if right >= 0:
        near = key - row - right
        high = near if high is None else np.maximum(high, near)
    if lengths is None:
        seen = np.ones((queries, keys), bool)
        seen = seen if high is None else seen & (high <= before)
        seen = seen if low is None else seen & (low >= before)
        return None if seen.all() else seen
    length = add("Reshape", lengths, _ints(-1, 1, 1, 1))
    length = add("Cast", length, to="int64") if length.dtype != np.int64 else length
    first = add("Sub", length, np.int64(queries))
    some = add("Less", key.reshape(1, 1, 1, keys), length)
    if high is not None:
        some = add("And", some, add("LessOrEqual", high, first))
    return some if low is None else add("And", some, add("GreaterOrEqual", low, first))


def _masked(
    add: Add, mask: Value | None, seen: Value | np.ndarray[Any, Any] | None, keys: int
) -> Value | np.ndarray[Any, Any] | None:
    """The mask, where also `seen` holds."""
    if mask is None or seen is None:
        return mask if seen is None else seen
    if mask.dims[-1:] not in ((1,), (keys,)):
        raise Skip(f"the mask {mask.dims} does not cover all {keys} keys")
    if mask.dtype == np.bool_:
        return add("And", mask, seen)
    return add("Where", seen, mask, np.array(-np.inf, mask.dtype))


def _in_products(node: Node, add: Add, q: Value, k: Value, v: Value, mask: Any) -> Any:
    """(y, scores): products and a softmax. Rows that see nothing give 0."""
    rank = q.rank
    q = _by_head(add, q, node.q_num_heads)
    k, v = (_by_head(add, x, node.kv_num_heads) for x in (k, v))
    (n, heads, queries, e), (_, groups, keys, f) = q.dims, v.dims
    scale = e**-0.5 if node.scale is None else node.scale
    rows = _ints(n, groups, heads // groups * queries, e)
    scores = add("MatMul", add("Reshape", q, rows), add("Transpose", k, perm=(0, 1, 3, 2)))
    whole = _ints(n, heads, queries, keys)
    scores = add("Reshape", add("Mul", scores, np.float32(scale)), whole)
    shown = [scores]
    if node.softcap > 0:
        cap = np.float32(node.softcap)
        scores = add("Mul", add("Tanh", add("Div", scores, cap)), cap)
    shown.append(scores)
    if mask is None:
        shown.append(scores)
        weights = add("Softmax", scores, axis=-1)
    else:
        mask = add("Identity", mask) if isinstance(mask, np.ndarray) else mask
        if mask.dtype == np.bool_:
            mask = add("Where", mask, np.float32(0), np.float32(-np.inf))
        scores = add("Add", scores, mask)
        shown.append(scores)
        top = add("Reduce", scores, _ints(3), kind="max")
        blind = add("Equal", top, np.float32(-np.inf))
        weights = add("Softmax", add("Where", blind, np.float32(0), scores), axis=-1)
        weights = add("Where", blind, np.float32(0), weights)
    shown.append(weights)
    y = add("MatMul", add("Reshape", weights, _ints(n, groups, -1, keys)), v)
    y = add("Reshape", y, _ints(n, heads, queries, f))
    if rank == 3:
        y = add("Transpose", y, perm=(0, 2, 1, 3))
        y = add("Reshape", y, _ints(n, queries, heads * f))
    return y, shown[node.qk_matmul_output_mode]


# ---- rotary embedding


def _rotary(node: Node, add: Add) -> tuple[Value, ...]:
    x, cos, sin, places = (*node.inputs, None)[:4]
    assert x is not None and cos is not None and sin is not None
    if x.dtype != np.float32 or not x.type.size:
        raise Skip(f"x is {x.type}")
    dims, axis = x.dims, 2  # of the rows: heads lie before them in rank 4, behind them in rank 3
    if x.rank == 3:
        heads = node.num_heads
        x, axis = add("Reshape", x, _ints(*dims[:2], heads, dims[2] // heads)), 1
    width = node.rotary_embedding_dim or x.dims[-1]
    if places is not None:
        cos, sin = (add("Gather", cache, places, axis=0) for cache in (cos, sin))
    cos, sin = (add("Unsqueeze", cache, _ints(3 - axis)) for cache in (cos, sin))
    part = x if width == x.dims[-1] else _cut(add, x, 0, width)
    a, b = _pairs(add, part, node.interleaved)
    first = add("Sub", add("Mul", a, cos), add("Mul", b, sin))
    second = add("Add", add("Mul", a, sin), add("Mul", b, cos))
    if node.interleaved:
        both = (add("Unsqueeze", v, _ints(4)) for v in (first, second))
        y = add("Reshape", add("Concat", *both, axis=4), _ints(*part.dims))
        y = y if part is x else add("Concat", y, _cut(add, x, width, x.dims[-1]), axis=3)
    else:
        rest = () if part is x else (_cut(add, x, width, x.dims[-1]),)
        y = add("Concat", first, second, *rest, axis=3)
    return (y if len(dims) == 4 else add("Reshape", y, _ints(*dims)),)


def _cut(add: Add, x: Value, start: int, end: int) -> Value:
    return add("Slice", x, _ints(start), _ints(end), _ints(len(x.dims) - 1), _ints(1))


def _pairs(add: Add, x: Value, interleaved: bool) -> tuple[Value, Value]:
    """The first and the second elements of all pairs, [..., half] each."""
    *outer, width = x.dims
    if not interleaved:
        return _cut(add, x, 0, width // 2), _cut(add, x, width // 2, width)
    apart = add("Reshape", x, _ints(*outer, width // 2, 2))
    first, second = (_cut(add, apart, i, i + 1) for i in (0, 1))
    shape = _ints(*outer, width // 2)
    return add("Reshape", first, shape), add("Reshape", second, shape)
