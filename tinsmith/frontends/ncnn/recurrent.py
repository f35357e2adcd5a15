"""Importers of recurrent layers, attention and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.conv import blocks
from tinsmith.frontends.ncnn.node import Node, Result, layer, rank
from tinsmith.frontends.projection import recurrent_layer
from tinsmith.graph import Array, Value

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 1, 3)}
"""The positions of our gates in ncnn's order (reset, update, new; input, forget, output, new)."""


def _gates(node: Node, name: str, gates: tuple[int, ...], of: int) -> Array:
    """The weight `name` as [directions, gates, of, columns] in our order of gates. `gates` are
    their positions in ncnn's order, `of` is the number of rows of a gate. Weights of int8 are
    divided by their scales."""
    array = node.weight(name)
    if array.dtype == np.int8:
        scales = node.scales(f"{name}_scales")
        array = (array.reshape(scales.size, -1) / scales[:, None]).astype(np.float32)
    return array.reshape(-1, len(gates), of, array.size // (len(gates) * of * _count(node)))[
        :, list(gates)
    ]


def _count(node: Node) -> int:
    return 2 if node.attr("direction") == 2 else 1


@layer("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> Result:
    d, outputs = _count(node), node.attr("num_output")
    node.ignore("weight_data_size", "int8_scale_term", "hidden_size")
    if node.attr("direction") not in (0, 1, 2):
        raise Unsupported(f"its direction {node.attr('direction')} is not known")
    if node.values["int8_scale_term"]:
        node.note("its weights of int8 are computed with as float32")
    gates = GATES[node.type]
    hidden = node.values.get("hidden_size", outputs)
    if min(outputs, hidden) < 1:
        raise Unsupported(f"it has {outputs} outputs and a state of {hidden}")
    w, r = (_gates(node, n, gates, hidden).reshape(d, len(gates) * hidden, -1) for n in "wr")
    b = node.weight("b", d, -1, hidden)
    before = b[:, list(gates)]
    behind = np.zeros_like(before)
    if node.type == "GRU":  # those of the new state apart: before and behind the reset
        behind[:, 2] = b[:, 3]
    b = np.concatenate([before, behind], axis=1).reshape(d, -1)
    sequence, *given = node.alike(*node.present)
    states = [_state(node, v) for v in given]
    direction = DIRECTIONS[node.attr("direction")]
    attrs: dict[str, Any] = {"direction": direction, "layout": 0, "hidden_size": hidden}
    x = node.emit("Transpose", sequence, perm=(1, 0, 2))
    p = node.weight("p", d, outputs, hidden) if hidden != outputs else None
    y, *last = recurrent_layer(node, node.type, x, (w, r, p, b), states, attrs)
    y = node.reshaped(
        node.emit("Transpose", y, perm=(2, 0, 1, 3)), node.dim(node[0], 1), d * outputs
    )
    return y, *(node.emit("Transpose", v, perm=(1, 0, 2)) for v in last)


def _state(node: Node, v: Value) -> Value:
    v = node.emit("Unsqueeze", v, node.ints(1)) if rank(v) == 1 else v
    return node.emit("Transpose", v, perm=(1, 0, 2))


@layer("Embed")
def embed(node: Node) -> Result:
    """Import Embed: rows of a table by index; indexes outside of it give its first or last row."""
    rows, width = node.attr("input_dim"), node.attr("num_output")
    node.ignore("weight_data_size")
    table = node.weight("weight", rows, width).astype(np.float32)
    if node.attr("quantize_term"):
        table = table / node.scales("weight_scale")[0]
    if node.attr("bias_term"):
        table = table + node.weight("bias")
    index = node.emit("Cast", node[0], to="int64")
    inside = node.emit(
        "Min", node.emit("Max", index, node.const(0, np.int64)), node.const(rows - 1, np.int64)
    )
    return node.emit("Gather", node.const(table.astype(np.float32)), inside, axis=0)


# ---- attention


@layer("MultiHeadAttention")
def multi_head_attention(node: Node) -> Result:
    """Import MultiHeadAttention. Caches of keys and values are [heads, past, width of a head], and
    outputs as well. In self-attention new keys and values are appended to them; in cross-attention
    (keys are an input of their own) they hold all already, so these inputs are not read."""
    width, heads = node.attr("embed_dim"), node.attr("num_heads")
    values, kept = node.present, 2 if node.attr("kv_cache") else 0
    mask = values.pop(-1 - kept) if node.attr("attn_mask") else None
    values = [node.for_samples(v, node.inputs) for v in values]
    values, caches = values[: len(values) - kept], values[len(values) - kept :]
    k = values[1] if len(values) > 1 else values[0]
    v = values[2] if len(values) > 2 else k
    node.ignore("kdim", "vdim", "quantize_term", "weight_data_size")
    if mask is not None:
        mask = node.emit("Unsqueeze", mask, node.ints(1)) if rank(mask) == 2 else mask
    attrs = {"scale": node.attr("scale") or 1 / float(np.sqrt(width // heads))}
    q = _projected(node, values[0], "q")
    if caches and len(values) > 1:
        size = node.ints(0, 0, heads, -1)
        q = node.emit("Transpose", node.emit("Reshape", q, size), perm=(0, 2, 1, 3))
        y = node.emit("Attention", q, *caches, mask, **attrs)
        y = node.emit("Reshape", node.emit("Transpose", y, perm=(0, 2, 1, 3)), node.ints(0, 0, -1))
        return _projected(node, y, "out"), *caches
    parts = [_projected(node, k, "k"), _projected(node, v, "v")]
    attrs |= {"q_num_heads": heads, "kv_num_heads": heads, "with_present": bool(caches)}
    y = node.emit("Attention", q, *parts, mask, *caches, **attrs)
    y, *present = y if caches else (y,)
    return _projected(node, y, "out"), *present


def _projected(node: Node, x: Value, name: str) -> Value:
    """The linear layer `name` of an attention ("q", "k", "v" or "out") applied to x."""
    term, width = node.attr("quantize_term"), node.attr("embed_dim")
    size = node.values["weight_data_size"] // width
    rows, columns = {
        "q": (width, size), "k": (width, node.values["kdim"]), "v": (width, node.values["vdim"]),
        "out": (size, width),
    }[name]  # fmt: skip
    w = blocks(node, name, rows, columns, term) if term >= 400 else node.weight(name, rows, columns)
    if w.dtype == np.int8:
        w = (w / node.scales(f"{name}_scales")[:, None]).astype(np.float32)
    if node.has(f"{name}_input"):
        w = w * node.weight(f"{name}_input")
    bias = node.const(node.weight(f"{name}_b"))
    return node.emit("Add", node.emit("MatMul", x, np.ascontiguousarray(w.T)), bias)


@layer("SDPA")
def sdpa(node: Node) -> Result:
    values: list[Any] = list(node.inputs)
    node.ignore("quantize_term")
    past = [values.pop() for _ in range(2)][::-1] if node.attr("kv_cache") else []
    mask = values.pop() if node.attr("attn_mask") else None
    if mask is not None and rank(mask) == 2:
        mask = node.emit("Unsqueeze", mask, node.ints(1))
    attrs: dict[str, Any] = {"scale": node.attr("scale")} if node.attr("scale") else {}
    if len(values) != 3:
        raise Unsupported(f"it has {len(values)} inputs besides its mask and caches, not 3")
    parts = [node.for_samples(v, node.inputs) for v in (*values, *past)]
    return node.emit("Attention", *parts[:3], mask, *parts[3:], with_present=bool(past), **attrs)


@layer("RotaryEmbed")
def rotary(node: Node) -> Result:
    x = node.for_samples(node[0], node.inputs)
    return node.emit(
        "RotaryEmbedding", x, node[1], node[2], interleaved=bool(node.attr("interleaved"))
    )


@layer("ArgMax")
def arg_max(node: Node) -> Result:
    """Import ArgMax: a row of indexes (float32) of the `topk` largest of all elements, with
    `out_max_val` below a row of these elements. Of equal elements the last comes first, as in ncnn.
    """
    flat, k = node.reshaped(node[0], -1), node.attr("topk")
    values, at = node.emit("TopK", node.flipped(flat, 1), node.ints(k), axis=1)
    size: Any = node.dim(flat, 1)
    most = node.ints(size) if isinstance(size, int) else size
    last = node.emit("Sub", most, node.ints(1))
    index = node.emit("Cast", node.emit("Sub", last, at), to="float32")
    rows = [index] if not node.attr("out_max_val") else [values, index]
    return node.emit("Concat", *(node.emit("Unsqueeze", v, node.ints(1)) for v in rows), axis=1)
