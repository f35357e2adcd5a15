"""Groups of nodes that are one layer of ncnn: recurrent layers, attention between its products,
embeddings, thresholds. They are looked for before nodes are written one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.ncnn.recurrent import DIRECTIONS, GATES
from tinsmith.graph import Node, Value
from tinsmith.ops import OPS
from tinsmith.writers.ncnn.writer import Writer, claims
from tinsmith.writers.rows import (
    Array,
    Inexpressible,
    constant,
    inputs_of,
    need,
    need_defaults,
    numbers,
)

ASIDE = (1, 0, 2)
"""The permutation between the batch in front, as here, and steps or directions in front."""


def maker(v: Value | None, *ops: str) -> Node:
    """The node that gives v. Raises Inexpressible if it is of none of these operators."""
    node = None if v is None else v.producer
    if node is None or node.op.name not in ops:
        raise Inexpressible(f"no {' or '.join(ops)} gives it")
    return node


def source(w: Writer, v: Value | None, *ops: str) -> Node:
    """The node that gives v. Raises Inexpressible if it is of none of these operators, or if
    anything but one node reads v."""
    node = maker(v, *ops)
    need(v is not None and len(v.uses) == 1 and v not in w.graph.outputs, "it is read elsewhere")
    return node


# ---- recurrent layers


@claims("LSTM", "GRU", "RNN")
def recurrent(w: Writer, node: Node) -> None:
    need_defaults(node, "direction", "hidden_size", "linear_before_reset")
    need(node.attrs.get("linear_before_reset", True), "it resets before the product")
    x, _, _, _, lengths, *others = inputs_of(node)
    need(lengths is None and not any(others[2:]), "it has lengths of sequences, or peepholes")
    turned = source(w, x, "Transpose")
    need(turned.attrs["perm"] == ASIDE, "its batch is not in front")
    arrays = _packed(node)
    outputs, taken = _outputs(w, node)
    states = [source(w, v, "Transpose") for v in others[:2] if v is not None]
    need(node.op.name != "LSTM" or len(states) != 1, "it has one of its two states")
    need(all(s.attrs["perm"] == ASIDE for s in states), "the batch of a state is not in front")
    hidden = arrays["r"].shape[-1]
    given = {"num_output": hidden, "weight_data_size": arrays["w"].size}
    given["direction"] = DIRECTIONS.index(node.attrs["direction"])
    w.taken |= {turned, *states, *taken}

    def write() -> None:
        names = [w.blob(n.inputs[0]) for n in (turned, *states)]
        w.layer(node.op.name, node.name, names, outputs, given, **arrays)

    w.claimed[node] = write


def _packed(node: Node) -> dict[str, Array]:
    """The weights "w", "r" and "b" of a recurrent layer in ncnn's order of gates. b is the sum of
    both biases, but for the new state of a GRU, for which both are kept."""
    gates = list(GATES[node.op.name])
    w, r = (constant(node.inputs[i], "a weight") for i in (1, 2))
    d, hidden = r.shape[0], r.shape[2]
    parts = {}
    for name, array in (("w", w), ("r", r)):
        parts[name] = array.reshape(d, len(gates), hidden, -1)[:, np.argsort(gates)]
    b = node.inputs[3] if len(node.inputs) > 3 else None
    both = np.zeros((d, 2 * len(gates) * hidden), np.float32) if b is None else constant(b, "bias")
    before, behind = both.reshape(d, 2, len(gates), hidden)[:, :, np.argsort(gates)].swapaxes(0, 1)
    if "linear_before_reset" in node.attrs:
        rows = before[:, :2] + behind[:, :2], before[:, 2:], behind[:, 2:]
        return parts | {"b": np.concatenate(rows, axis=1)}
    return parts | {"b": before + behind}


def _outputs(w: Writer, node: Node) -> tuple[list[Value], list[Node]]:
    """(outputs, nodes between): the values with the batch in front that the layer of a recurrent
    node gives, y and, if they are read, last states; and the nodes that bring the batch there.
    Raises Inexpressible."""
    found, taken = _behind(w, node)
    lasts = node.outputs[1:]
    if not any(v.uses or v in w.graph.outputs for v in lasts):
        return [found], taken
    outputs = [found]
    for v in lasts:
        user = w.only_user(v, "Transpose")
        need(user is not None and user.attrs["perm"] == ASIDE, "a last state has no batch in front")
        assert user is not None
        outputs.append(user.output)
        taken.append(user)
    if not any(v.uses or v in w.graph.outputs for v in outputs[1:]):
        outputs = [found]
    return outputs, taken


def _behind(w: Writer, node: Node) -> tuple[Value, list[Node]]:
    """(value, nodes): the results of a recurrent node as [N,T,D*H], and the nodes that move them
    there from [T,D,N,H], told by applying these to numbers. Raises Inexpressible if none do."""
    steps, d, batch, hidden = (
        k if isinstance(k, int) else 2 + i for i, k in enumerate(node.output.shape or ())
    )
    numbers = np.arange(steps * d * batch * hidden).reshape(steps, d, batch, hidden)
    wanted = numbers.transpose(2, 0, 1, 3).reshape(batch, steps, d * hidden)
    v, taken = node.outputs[0], list[Node]()
    while numbers.shape != wanted.shape or (numbers != wanted).any():
        user = w.only_user(v, "Transpose", "Reshape", "Squeeze", "Unsqueeze")
        need(user is not None, "its results are not moved to have the batch in front")
        assert user is not None
        more = [None if i is None else constant(i, "a shape") for i in user.inputs[1:]]
        numbers = np.asarray(OPS[user.op.name].evaluate((numbers, *more), user.attrs)[0])
        v = user.output
        taken.append(user)
    return v, taken


# ---- attention and embeddings


def _product(w: Writer, v: Value | None) -> tuple[Value, Array, Array, list[Node]]:
    """(x, a, b, nodes) of v = x a + b, whose nodes are a MatMul and an Add and which one node
    reads. Raises Inexpressible for other values."""
    term = source(w, v, "Add")
    made = next((i for i in term.inputs if i is not None and i.const is None), None)
    node = source(w, made, "MatMul")
    x, a = node.inputs
    bias = constant(next((i for i in term.inputs if i is not made), None), "a bias")
    weight = constant(a, "a weight")
    need(x is not None and weight.ndim == 2 and bias.shape == weight.shape[1:], "no product")
    assert x is not None
    return x, weight, bias, [node, term]


@claims("Attention")
def attention(w: Writer, node: Node) -> None:
    """Claim an Attention node, the three products before it and the product behind it as a
    MultiHeadAttention layer. Raises Inexpressible if they are no such."""
    heads = node.attrs["q_num_heads"]
    need_defaults(node, "q_num_heads", "kv_num_heads", "scale")
    need(heads and heads == node.attrs["kv_num_heads"], "its heads are apart, or in groups")
    need(len(node.outputs) == 1 and not any(node.inputs[4:]), "it has caches")
    parts = [_product(w, v) for v in node.inputs[:3]]
    product = w.only_user(node.output, "MatMul")
    term = None if product is None else w.only_user(product.output, "Add")
    need(product is not None and term is not None, "no product follows it")
    assert product is not None and term is not None
    back = constant(product.inputs[1], "a weight")
    bias = constant(next(i for i in term.inputs if i is not product.output), "a bias")
    (q, wq, *_), (k, wk, *_), (v, wv, *_) = parts
    width = wq.shape[1]
    need(wk.shape[1] == wv.shape[1] == width and back.shape == wq.shape[::-1], "its widths differ")
    need(bias.size == back.shape[1] and back.ndim == 2, "no product follows it")
    values: list[Value | None] = [q] if q is k is v else [q, k] if k is v else [q, k, v]
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
    given: dict[str, Any] = {"embed_dim": width, "num_heads": heads, "weight_data_size": wq.size}
    given |= {"kdim": wk.shape[0], "vdim": wv.shape[0], "attn_mask": int(mask is not None)}
    usual = float(1 / np.sqrt(width / heads))
    if node.attrs["scale"] not in (None, usual):
        given["scale"] = float(node.attrs["scale"])
    arrays = {"out": back.T, "out_b": bias}
    for name, (_, weight, added, _) in zip("qkv", parts, strict=True):
        arrays |= {name: weight.T, f"{name}_b": added}
    w.taken |= set(taken)

    def write() -> None:
        packed = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        names = [w.blob(v) for v in values]
        w.layer("MultiHeadAttention", node.name, names, [term.output], given, **packed)

    w.claimed[node] = write


def embedding(w: Writer, node: Node) -> None:
    """Claim a Gather of rows of a table, by numbers that are cut to its ends, as an Embed layer,
    which cuts them itself. Raises Inexpressible for others."""
    table = constant(node.inputs[0], "the table")
    need(table.ndim == 2 and node.attrs["axis"] == 0 and table.dtype == np.float32, "no embedding")
    low = source(w, node.inputs[1], "Min")
    high = source(w, low.inputs[0], "Max")
    cast = source(w, high.inputs[0], "Cast")
    ends = [numbers(n.inputs[1], "an end") for n in (high, low)]
    need(ends == [(0,), (len(table) - 1,)], "its indices are not cut to the table")
    x = cast.inputs[0]
    given = {"num_output": table.shape[1], "input_dim": len(table)}
    given["weight_data_size"] = table.size
    w.taken |= {low, high, cast}
    name = node.name
    w.claimed[node] = lambda: w.layer(
        "Embed", name, [w.blob(x)], [node.output], given, weight=table
    )


@claims("Greater")
def threshold(w: Writer, node: Node) -> None:
    limit = constant(node.inputs[1], "the threshold")
    user = w.only_user(node.output, "Cast")
    need(limit.size == 1 and user is not None, "it is no threshold")
    assert user is not None
    need(user.output.dtype == np.float32 and limit.ndim <= (user.output.rank or 0), "no threshold")
    given = {"threshold": float(limit.reshape(-1)[0])}
    w.taken.add(user)
    w.claimed[node] = lambda: w.layer(
        "Threshold", node.name, [w.blob(node.inputs[0])], [user.output], given
    )


@claims("Expand")
def samples(w: Writer, node: Node) -> None:
    """Claim an Expand that repeats a value for all samples, which ncnn does without, together with
    the nodes that compute how many there are. Raises Inexpressible for others."""
    x, sizes = node.inputs
    need(x is not None and sizes is not None and x.shape and node.output.shape, "no samples")
    assert x is not None and sizes is not None and x.shape and node.output.shape
    same = x.shape[0] == 1 and node.output.shape == (w.batch, *x.shape[1:])
    need(same, "it repeats more than samples")
    if sizes.const is None:
        joined = source(w, sizes, "Concat")
        counts = [i for i in joined.inputs if i is not None and i.const is None]
        w.taken |= {joined, *(source(w, v, "Shape") for v in counts)}
    w.claimed[node] = lambda: w.alias(node.output, x)
