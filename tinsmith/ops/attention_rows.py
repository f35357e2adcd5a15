"""RowAttention: attention over rows (heads) that are found in their arrays by tables of offsets.
Passes turn every attention into it, so transposes and reshapes around one become offsets."""

from __future__ import annotations

from math import prod

import numpy as np

from tinsmith.graph import Type
from tinsmith.graph.types import name_of
from tinsmith.ops._op import need, op
from tinsmith.ops.norm import softmax
from tinsmith.ops.precision import widen


@op()
def RowAttention(
    q, k, v, q_rows, k_rows, v_rows, y_rows, bias=None, bias_at=None, mask=None, mask_at=None, *,
    width, value_width, shape, scale=1.0, softcap=0.0, low=None, high=None, zeros=False,
    nans=False, even=False,
):  # fmt: skip
    """y_i = softmax(cap(scale q_i k_i^T) + bias[bias_at[i]] + mask[mask_at[i]]) v_i, of every item

    An item i is one head of one sequence. Row n of q_i is the `width` elements from offset
    q_rows[i, n] on in the flat q; so with k, and, of value_width, v and y, which has the given
    shape and is covered exactly by y_rows. The tables *_rows [items, rows] are integers. cap(s) =
    softcap * tanh(s / softcap), or s where softcap is 0. bias and mask are [slabs, queries or 1,
    keys or 1]: added to scores, or bool: True where a query may attend; bias_at and mask_at [items]
    say which slab. Query n sees the keys from n + low to n + high (None: no bound). A query that
    sees no key gives NaN, or, with `zeros`, 0. With `nans` the weights of a softmax that is NaN are
    0, whatever the reason. With `even` each table is given as a formula, [first, rows, step,
    extent_i, stride_i, ...] (`table_of`; bias_at and mask_at have one row), and bias and mask may
    have several axes that count slabs.
    """
    dtype = q.dtype
    if even:
        q_rows, k_rows, v_rows, y_rows = map(table_of, (q_rows, k_rows, v_rows, y_rows))
        bias_at, mask_at = (None if at is None else table_of(at)[:, 0] for at in (bias_at, mask_at))
        bias, mask = (
            None if x is None else x.reshape(prod(x.shape[:-2]), *x.shape[-2:])
            for x in (bias, mask)
        )

    def rows(x, table, length):
        return widen(x.reshape(-1)[table[:, :, None] + np.arange(length)])

    heads = rows(q, q_rows, width), rows(k, k_rows, width), rows(v, v_rows, value_width)
    scores = np.matmul(heads[0], heads[1].swapaxes(1, 2)) * heads[0].dtype.type(scale)
    if softcap > 0:
        scores = np.tanh(scores / softcap) * scores.dtype.type(softcap)
    place = np.arange(scores.shape[2]) - np.arange(scores.shape[1])[:, None]
    seen = np.ones(place.shape, bool) if low is None else place >= low
    seen = seen if high is None else seen & (place <= high)
    terms = [(seen[None], slice(None)), (bias, bias_at), (mask, mask_at)]
    for term, at in terms:
        if term is not None and term.dtype == np.bool_:
            scores = np.where(term[at], scores, -np.inf)
        elif term is not None:
            scores = scores + widen(term)[at]
    blind = zeros & np.isneginf(scores).all(-1, keepdims=True)
    weights = np.where(blind, 0, softmax(np.where(blind, 0, scores))).astype(heads[2].dtype)
    weights = np.where(nans & np.isnan(weights), 0, weights)
    result = np.matmul(weights, heads[2])
    y = np.zeros(prod(shape), dtype)
    y[y_rows[:, :, None] + np.arange(value_width)] = result.astype(dtype, copy=False)
    return y.reshape(shape)


def items_of(table):
    """The (extent, stride) pairs of the axes of the items in a formula of `table_of`."""
    flat = table.tolist()
    return tuple(zip(flat[3::2], flat[4::2], strict=True))


def table_of(formula):
    """The table [items, rows] of the offsets at which rows begin, from a formula [first, rows,
    step, extent_i, stride_i, extent_j, stride_j, ...]: row r of item (i, j, ...) begins at first +
    i * stride_i + j * stride_j + ... + r * step."""
    first, rows, step = formula[:3].tolist()
    starts = np.full((), first, np.int64)
    for extent, stride in items_of(formula):
        starts = starts[..., None] + np.arange(extent) * stride
    return starts.reshape(-1, 1) + np.arange(rows) * step


def _extents(table, even):
    """The shape (items, rows) of a table Value, or, if `even`, of the table of its formula."""
    if not even:
        return table.dims
    assert table.const is not None, "formulas are constants"
    return prod(extent for extent, _ in items_of(table.const)), table.const[1]


@RowAttention.type
def _(q, k, v, q_rows, k_rows, v_rows, y_rows, bias, bias_at, mask, mask_at, *, shape, even, **_):
    kind = name_of(q.dtype)
    need(q.dtype.kind == "f", f"q must be of a floating-point type, it is {kind}")
    for name, x in (("k", k), ("v", v)):
        need(x.dtype == q.dtype, f"q is {kind}, {name} is {name_of(x.dtype)}")
    for name, table in (("q_rows", q_rows), ("k_rows", k_rows), ("v_rows", v_rows)):
        rank, kind = table.rank, name_of(table.dtype)
        need(table.dtype.kind == "i", f"{name} must be of an integer type, it is {kind}")
        need(rank in (None, 1 if even else 2), f"{name} needs rank {2 - even}, it has {rank}")
        need(not even or (table.const is not None and table.const.size % 2 == 1 < table.const.size),
             f"{name} is no formula")  # fmt: skip
    pairs = (("q", q_rows), ("y", y_rows)), (("k", k_rows), ("v", v_rows))
    for (one, a), (other, b) in pairs:
        fits = even or a.shape == b.shape
        need(fits, f"{one} has rows {a.shape}, {other} has rows {b.shape}")
    need(bias is None or bias_at is not None, "bias needs bias_at")
    need(mask is None or mask_at is not None, "mask needs mask_at")
    return Type(q.dtype, shape)


@RowAttention.cost
def _(q, k, v, q_rows, k_rows, v_rows, y_rows, *_, width, value_width, even, **__):
    items, queries = _extents(q_rows, even)
    return items * queries * _extents(k_rows, even)[1] * (2.0 * width + 2 * value_width + 20)
