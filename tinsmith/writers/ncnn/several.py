"""Claims groups of nodes that are one layer of ncnn: attention with its products, embeddings,
thresholds, repetitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.writers.ncnn.writer import Writer, claims
from tinsmith.writers.rows import Inexpressible, constant, need, need_defaults, numbers, present


def maker(v: Value | None, *ops: str) -> Node:
    """Return the node that computes v. Raises Inexpressible if it is of none of these operators."""
    node = None if v is None else v.producer
    if node is None or node.op.name not in ops:
        raise Inexpressible(f"no {' or '.join(ops)} gives it")
    return node


def source(w: Writer, v: Value | None, *ops: str) -> Node:
    """As `maker`; also raises Inexpressible unless v has exactly one reader and is no output of the
    graph."""
    node = maker(v, *ops)
    need(v is not None and len(v.uses) == 1 and v not in w.graph.outputs, "it is read elsewhere")
    return node


# ---- attention and embeddings


def _product(w: Writer, v: Value | None) -> tuple[Value, Array, Array, list[Node]]:
    """Return (x, a, b, nodes) of v = x a + b (a, b constant), computed by a MatMul and an Add, with
    one reader. Raises Inexpressible for other values."""
    term = source(w, v, "Add")
    made = next((i for i in term.inputs if i is not None and i.const is None), None)
    node = source(w, made, "MatMul")
    x, a = node.inputs
    bias = constant(next((i for i in term.inputs if i is not made), None), "a bias")
    weight = constant(a, "a weight")
    need(weight.ndim == 2 and bias.shape == weight.shape[1:], "no product")
    return present(x, "no product"), weight, bias, [node, term]


@claims("Attention")
def attention(w: Writer, node: Node) -> None:
    """Claim an Attention node, the three products before it and the product after it as a
    MultiHeadAttention layer. Raises Inexpressible for others."""
    heads = node.attrs["q_num_heads"]
    need_defaults(node, "q_num_heads", "kv_num_heads", "scale", "with_present")
    need(heads and heads == node.attrs["kv_num_heads"], "its heads are apart, or in groups")
    caches = list(node.inputs[4:6])
    need(not any(node.inputs[6:]), "it tells how many keys there are")
    need(all(caches) and len(node.outputs) == len(caches) + 1, "it has caches of other kinds")
    parts = [_product(w, v) for v in node.inputs[:3]]
    product = present(w.only_user(node.output, "MatMul"), "no product follows it")
    term = present(w.only_user(product.output, "Add"), "no product follows it")
    back = constant(product.inputs[1], "a weight")
    bias = constant(next(i for i in term.inputs if i is not product.output), "a bias")
    (q, wq, *_), (k, wk, *_), (v, wv, *_) = parts
    width = wq.shape[1]
    need(wk.shape[1] == wv.shape[1] == width and back.shape == wq.shape[::-1], "its widths differ")
    need(bias.size == back.shape[1] and back.ndim == 2, "no product follows it")
    values: list[Value | None] = [q] if q is k is v else [q, k] if k is v else [q, k, v]
    need(not caches or len(values) == 1, "ncnn's caches hold all keys where they are of others")
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    taken = [product, term, *(n for p in parts for n in p[3])]
    if mask is not None:
        need(mask.dtype == np.float32, "its mask is not added")
        inner = mask.producer
        if inner is not None and inner.op.name == "Unsqueeze" and len(mask.uses) == 1:
            need(numbers(inner.inputs[1], "the axes") == (1,), "no mask of heads")
            taken.append(inner)
            mask = inner.inputs[0]
        values.append(mask)
    values += caches
    given: dict[str, Any] = {"embed_dim": width, "num_heads": heads, "weight_data_size": wq.size}
    given |= {"kdim": wk.shape[0], "vdim": wv.shape[0], "attn_mask": int(mask is not None)}
    given["kv_cache"] = int(bool(caches))
    usual = float(1 / np.sqrt(width / heads))
    if node.attrs["scale"] not in (None, usual):
        given["scale"] = float(node.attrs["scale"])
    arrays = {"out": back.T, "out_b": bias}
    for name, (_, weight, added, _) in zip("qkv", parts, strict=True):
        arrays |= {name: weight.T, f"{name}_b": added}
    outputs = [term.output, *node.outputs[1:]]
    kind = "MultiHeadAttention"
    w.claim_as(node, taken, kind, values, outputs, given, node.name, **arrays)


def embedding(w: Writer, node: Node) -> None:
    """Claim a Gather of rows of a table as an Embed layer, with the Max and Min that clip its
    indices to the table, which the layer does itself. Raises Inexpressible for others."""
    table = constant(node.inputs[0], "the table")
    need(table.ndim == 2 and node.attrs["axis"] == 0 and table.dtype == np.float32, "no embedding")
    low = source(w, node.inputs[1], "Min")
    high = source(w, low.inputs[0], "Max")
    cast = source(w, high.inputs[0], "Cast")
    ends = [numbers(n.inputs[1], "an end") for n in (high, low)]
    need(ends == [(0,), (len(table) - 1,)], "its indices are not cut to the table")
    given = {"num_output": table.shape[1], "input_dim": len(table)}
    given["weight_data_size"] = table.size
    taken, x = {low, high, cast}, cast.inputs[0]
    w.claim_as(node, taken, "Embed", [x], [node.output], given, weight=table)


@claims("Greater")
def threshold(w: Writer, node: Node) -> None:
    limit = constant(node.inputs[1], "the threshold")
    user = present(w.only_user(node.output, "Cast"), "it is no threshold")
    need(limit.size == 1, "it is no threshold")
    need(user.output.dtype == np.float32 and limit.ndim <= (user.output.rank or 0), "no threshold")
    given = {"threshold": float(limit.reshape(-1)[0])}
    w.claim_as(node, {user}, "Threshold", node.inputs[:1], [user.output], given)


@claims("Expand")
def samples(w: Writer, node: Node) -> None:
    """Claim an Expand that repeats a value for all samples of the batch, with the nodes that
    compute its shape. In ncnn, which has no batch, it needs no layer. Raises Inexpressible for
    others."""
    x, sizes = node.operands
    if not x.shape or not node.output.shape:
        raise Inexpressible("no samples")
    same = x.shape[0] == 1 and node.output.shape == (w.batch, *x.shape[1:])
    need(same, "it repeats more than samples")
    if sizes.const is None:
        joined = source(w, sizes, "Concat")
        counts = [i for i in joined.inputs if i is not None and i.const is None]
        w.taken |= {joined, *(source(w, v, "Shape") for v in counts)}
    w.claimed[node] = lambda: w.alias(node.output, x)
