"""The Attention operator as RowAttention, with concatenations and masks before it. Where that is
not possible, as when the scores are an output, it becomes products and a softmax (`lower`)."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from tinsmith.graph import Graph, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.attention import term_of
from tinsmith.passes.facts import i64
from tinsmith.passes.manager import register
from tinsmith.passes.positions import counted, rows_at
from tinsmith.passes.strides import dense, formula, merged
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, p
from tinsmith.sizes import Number, Size, same

rules = RuleSet("split-attention", "Attention becomes attention over rows.", tolerance=1e-5)
register("machine", devices=("cpu",))(rules)


# ---- attention


@dataclass(frozen=True)
class _Heads:
    """Sizes of an attention.

    batch    images or sentences, N
    groups   heads of keys and values
    shared   heads of queries that share one head of keys
    queries  of each head, Q
    keys     of each head, those of the past included, K
    """

    batch: int
    groups: int
    shared: int
    queries: int
    keys: int


@rules.rule(
    p.Attention("q", "k", "v", ...).named("node"),
    q=(2, 2, 3, 4),
    k=(2, 2, 5, 4),
    v=(2, 2, 5, 6),
    node={"is_causal": True},
)
def attention(node: Node) -> tuple[Value, ...]:
    """attention(q, k, v) -> row_attention(q, k, v), which reads the rows of heads where they lie;
    keys and values of the past are joined before, masks are added to the scores. For float32 of
    static shapes, if the scores are no output."""
    if not node.is_static:
        raise Skip("a shape is not static")
    q, k, v = map(node.operand, range(3))
    mask, past_key, past_value, lengths = (*node.inputs[3:], *[None] * 4)[:4]
    if q.dtype != np.float32 or node.with_qk:
        raise Skip(f"the operands are {q.dtype}, or its scores are wanted")
    if str(node.softmax_precision or "float32") != "float32":
        raise Skip(f"the softmax is in {node.softmax_precision}")
    if any(x.type.size == 0 for x in (q, k, v)):
        raise Skip("an operand is empty")
    before = 0 if past_key is None else past_key.dims[2]
    heads = q.dims[1] if q.rank == 4 else node.q_num_heads
    groups = k.dims[1] if k.rank == 4 else node.kv_num_heads
    of = _Heads(q.dims[0], groups, heads // groups, q.dims[-2], before + k.dims[-2])
    terms: list[Any] = [] if mask is None else [_covering(mask, of)]
    if past_key is not None or node.with_present:
        k, v = (_by_head(x, groups) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = OPS["Concat"](past_key, k, axis=2), OPS["Concat"](past_value, v, axis=2)
    low, high = _window(node, before)
    if lengths is not None:
        terms.append(_seen(of, lengths, low, high))
        low = high = None
    low = low if low is not None and low + of.queries > 1 else None
    high = high if high is not None and high + 1 < of.keys else None
    present: tuple[Value, ...] = ()
    if node.with_present:
        present = tuple(x if x.producer is not None and past_key else OPS["Identity"](x)
                        for x in (k, v))  # fmt: skip
    return _over_rows(node, (q, k, v), of, terms, low, high), *present


def _covering(mask: Value, of: _Heads) -> Value:
    """`mask`, of bool or float32, as one that broadcasts to the scores [N, heads, Q, K]: if it has
    fewer keys than K but more than 1, it is extended by keys that no query sees. Raises Skip if it
    does not fit."""
    if mask.dtype.name not in ("bool", "float32"):
        raise Skip(f"the mask is {mask.dtype}")
    *outer, keys = mask.dims
    whole = of.batch, of.groups * of.shared, of.queries
    lead = (1,) * (3 - len(outer)) + tuple(outer)
    if (
        keys > of.keys
        or len(lead) > 3
        or any(d not in (1, w) for d, w in zip(lead, whole, strict=True))
    ):
        raise Skip(f"the mask {mask.dims} does not fit scores {(*whole, of.keys)}")
    if keys in (1, of.keys):
        return mask
    unseen = False if mask.dtype == np.bool_ else -np.inf
    return OPS["Concat"](mask, np.full((*outer, of.keys - keys), unseen, mask.dtype), axis=-1)


def _window(node: Node, before: int) -> tuple[int | None, int | None]:
    """The bounds that an Attention's attributes (window, causal) set: (first, last), where query n
    sees the keys n + first to n + last. `before`: keys of the past. None: no bound."""
    left, right = node.left_window_size, node.right_window_size
    ahead = [right] * (right >= 0) + [0] * bool(node.is_causal)
    return before - left if left >= 0 else None, before + min(ahead) if ahead else None


def _seen(of: _Heads, lengths: Value, low: int | None, high: int | None) -> Value:
    """A bool mask of the keys that each query sees, [N,1,Q,K], or [N,1,1,K] without bounds: of
    batch element i the first lengths[i] keys. The queries stand at the last of these, so that query
    q has the position n = lengths[i] - Q + q; of all keys it sees those from n + low to n + high
    (None: no bound)."""
    length = OPS["Reshape"](lengths, i64(-1, 1, 1, 1))
    length = OPS["Cast"](length, to="int64") if length.dtype != np.int64 else length
    graph = lengths.graph
    seen = OPS["Less"](_count(graph, of.keys), length)
    for bound, relation in ((high, "LessOrEqual"), (low, "GreaterOrEqual")):
        if bound is not None:  # query n is at place length - queries + n
            steps = _steps(graph, of, bound - of.queries)
            seen = OPS["And"](seen, OPS[relation](steps, length))
    return seen


def _count(graph: Graph, count: Number) -> Any:
    """The vector 0, 1, ..., count - 1: an array, or for a free size the result of a Range node."""
    if not isinstance(count, Size):
        return np.arange(count)
    return OPS["Range"](graph.const(np.int64(0)), np.array(count, object), np.int64(1))


def _steps(graph: Graph, of: _Heads, less: Number) -> Any:
    """The matrix [Q, K] of integers k - q - less, for query q and key k: an array, or for free
    sizes the result of added nodes."""
    if not any(isinstance(n, Size) for n in (of.keys, of.queries, less)):
        return np.arange(of.keys) - np.arange(of.queries)[:, None] - less
    rows = OPS["Reshape"](_count(graph, of.queries), i64(-1, 1))
    return OPS["Sub"](OPS["Sub"](_count(graph, of.keys), rows), i64(less))


def _over_rows(
    node: Node, operands: tuple[Value, Value, Value], of: _Heads, terms: list[Any],
    low: int | None, high: int | None,
) -> Value:  # fmt: skip
    """The result of an Attention, computed by a RowAttention. `terms` are masks that broadcast to
    the scores, `low` and `high` the bounds of `_window`. Each item of the RowAttention is one head
    of queries, or all heads that share one head of keys where no mask differs between these."""
    q, k, v = operands
    together = low is None and high is None and all(d == 1 for t in terms for d in t.dims[-3:-1])
    even = any(v is not None and v.type.is_free for v in (*operands, *terms, *node.inputs))
    if even:  # the queries of heads that share keys are rows with one stride only where one is 1
        together = together and (same(of.shared, 1) or same(of.queries, 1))
    lead = (of.batch, of.groups, of.shared)[: 2 if together else 3]
    items = of.groups if together else of.groups * of.shared
    rows = of.queries * of.shared if together else of.queries
    keyed, heads = (of.batch, of.groups, 1)[: len(lead)], of.groups * of.shared
    parts = [(q.dims, heads, lead), (k.dims, of.groups, keyed), (v.dims, of.groups, keyed),
             (node.outputs[0].dims, heads, lead)]  # fmt: skip
    added = [term_of(t, (of.batch, items, rows, of.keys), 1.0) for t in terms]
    width, value_width = (x.dims[-1] if x.rank == 4 else x.dims[-1] // h
                          for x, h in ((q, heads), (v, of.groups)))  # fmt: skip
    at = partial(_formula, of, together) if even else _table
    return OPS["RowAttention"](
        q, k, v, *(at(*part, lead) for part in parts), *chain(*added), even=even,
        width=width, value_width=value_width, shape=node.outputs[0].dims,
        scale=width**-0.5 if node.scale is None else node.scale, softcap=node.softcap,
        low=low, high=high, zeros=True,
    )  # fmt: skip


def _formula(
    of: _Heads, together: bool, dims: tuple[Any, ...], heads: int, own: tuple[Any, ...],
    lead: tuple[Any, ...],
) -> np.ndarray[Any, Any]:  # fmt: skip
    """The table that `_table` gives for the last four parameters, as a `strides.formula`: for free
    sizes. `together`: an item is all heads of queries that share one head of keys."""
    if len(dims) == 3:
        dims = (*dims[:2], heads, dims[2] // heads)
        batch, row, head, _ = dense(dims)
    else:
        batch, head, row, _ = dense(dims)
    shared = of.shared if same(heads, of.groups * of.shared) else 1
    group, inner = (of.groups, head[1] * shared), (shared, head[1])
    if together and not same(shared, 1):
        row = inner
    items = [batch, group]
    if not together:
        items.append(inner if shared == of.shared else (of.shared, 0))
    return formula(0, row[0], [row], merged(items))


@lru_cache(maxsize=64)
def _table(
    dims: tuple[int, ...], heads: int, own: tuple[int, ...], lead: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """The table [items, rows] of an operand of a RowAttention: at which element each row begins.

    dims   those of the operand: [N,H,T,E] or [N,T,H*E]
    heads  H
    own    the extents of its items: (N, key heads, heads that share one), 1 where it has none
    lead   the extents of all items, to which `own` is broadcast
    """
    at = counted(dims)
    if len(dims) == 3:
        at = at.reshape(*dims[:2], heads, -1).swapaxes(1, 2)
    return rows_at(at.reshape(*own, -1, at.shape[-1]), lead)


def _by_head(x: Value, heads: int | None) -> Value:
    """x [N,T,H*E] as [N,H,T,E], `heads` being H; x itself if its rank is 4 or `heads` is None."""
    if x.rank == 4 or heads is None:
        return x
    n, t, wide = x.dims
    if 1 in (t, heads):
        return OPS["Reshape"](x, i64(n, heads, t, wide // heads))
    return OPS["Transpose"](OPS["Reshape"](x, i64(n, t, heads, wide // heads)), perm=(0, 2, 1, 3))
