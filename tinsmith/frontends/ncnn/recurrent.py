"""Importers of recurrent layers, attention and embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.ncnn.node import Array, Node, Result, layer, rank
from tinsmith.graph import Value

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 1, 3)}
"""Where our gates are in ncnn's order: reset, update, new; input, forget, output, new."""


def _gates(node: Node, name: str, gates: tuple[int, ...], of: int) -> Array:
    """A weight [directions, gates, rows...] in our order of gates."""
    array = node.weight(name)
    if array.dtype == np.int8:
        scales = node.weight("w_scales" if name == "w" else "r_scales")
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
    if hidden != outputs:
        raise Unsupported(f"a projection of {hidden} states to {outputs} outputs")
    w = _gates(node, "w", gates, outputs).reshape(d, len(gates) * outputs, -1)
    r = _gates(node, "r", gates, outputs).reshape(d, len(gates) * outputs, -1)
    b = node.weight("b", d, -1, outputs)
    if node.type == "GRU":  # those of the new state apart: before and behind the reset
        more = np.zeros_like(b[:, :3])
        more[:, 2] = b[:, 3]
        b = np.concatenate([b[:, list(gates)], more], axis=1)
    else:
        b = np.concatenate([b[:, list(gates)], np.zeros_like(b)], axis=1)
    states = [_state(node, v) for v in node.inputs[1:] if v is not None]
    attrs: dict[str, Any] = {"direction": DIRECTIONS[node.attr("direction")], "layout": 0}
    attrs["hidden_size"] = outputs
    if node.type == "GRU":
        attrs["linear_before_reset"] = True
    x = node.emit("Transpose", node[0], perm=(1, 0, 2))
    y, *last = node.emit(node.type, x, w, r, b.reshape(d, -1), None, *states, **attrs)
    y = node.reshaped(
        node.emit("Transpose", y, perm=(2, 0, 1, 3)), node.dim(node[0], 1), d * outputs
    )
    return y, *(node.emit("Transpose", v, perm=(1, 0, 2)) for v in last)


def _state(node: Node, v: Value) -> Value:
    v = node.emit("Unsqueeze", v, node.ints(1)) if rank(v) == 1 else v
    return node.emit("Transpose", v, perm=(1, 0, 2))


@layer("Embed")
def embed(node: Node) -> Result:
    """Rows of a table; indices outside of it are its ends."""
    rows, width = node.attr("input_dim"), node.attr("num_output")
    node.ignore("weight_data_size")
    table = node.weight("weight", rows, width).astype(np.float32)
    if node.attr("quantize_term"):
        table = table / node.weight("scale")[0]
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
    width, heads = node.attr("embed_dim"), node.attr("num_heads")
    term, size = node.attr("quantize_term"), node.attr("weight_data_size")
    if term >= 400 or node.attr("kv_cache"):
        raise Unsupported("weights in blocks and caches of keys are not supported here")
    values: list[Any] = list(node.inputs)
    mask = values.pop() if node.attr("attn_mask") else None
    q = values[0]
    k = values[1] if len(values) > 1 else q
    v = values[2] if len(values) > 2 else k
    scale = node.attr("scale") or 1 / np.sqrt(width / heads)
    node.ignore("kdim", "vdim")
    shapes = {"q": (width, size // width), "k": (width, -1), "v": (width, -1), "out": (-1, width)}

    def projected(x: Value, name: str) -> Value:
        w = node.weight(name, *shapes[name])
        if w.dtype == np.int8:
            by = node.weight(f"{name}_s")
            w = (w / (by[:, None] if by.size > 1 else by)).astype(np.float32)
        return node.emit(
            "Add", node.emit("MatMul", x, w.T.copy()), node.const(node.weight(f"{name}_b"))
        )

    parts = [projected(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    if mask is not None:
        mask = node.emit("Unsqueeze", mask, node.ints(1)) if rank(mask) == 2 else mask
    y = node.emit(
        "Attention", *parts, mask, q_num_heads=heads, kv_num_heads=heads, scale=float(scale)
    )
    return projected(y, "out")


@layer("SDPA")
def sdpa(node: Node) -> Result:
    values: list[Any] = list(node.inputs)
    node.ignore("quantize_term")
    past = [values.pop() for _ in range(2)][::-1] if node.attr("kv_cache") else [None, None]
    mask = values.pop() if node.attr("attn_mask") else None
    if mask is not None and rank(mask) == 2:
        mask = node.emit("Unsqueeze", mask, node.ints(1))
    attrs: dict[str, Any] = {"scale": node.attr("scale")} if node.attr("scale") else {}
    keeps = past[0] is not None
    return node.emit("Attention", *values, mask, *past, with_present=keeps, **attrs)


@layer("RotaryEmbed")
def rotary(node: Node) -> Result:
    return node.emit(
        "RotaryEmbedding", *(node[i] for i in range(3)), interleaved=bool(node.attr("interleaved"))
    )


@layer("ArgMax")
def arg_max(node: Node) -> Result:
    """The largest of all elements, the last of equal ones first: searched from behind."""
    flat, k = node.reshaped(node[0], -1), node.attr("topk")
    back = node.ints(-1), node.ints(np.iinfo(np.int64).min + 1), node.ints(1), node.ints(-1)
    values, at = node.emit("TopK", node.emit("Slice", flat, *back), node.ints(k), axis=1)
    size: Any = node.dim(flat, 1)
    most = node.ints(size) if isinstance(size, int) else size
    last = node.emit("Sub", most, node.ints(1))
    index = node.emit("Cast", node.emit("Sub", last, at), to="float32")
    rows = [index] if not node.attr("out_max_val") else [values, index]
    return node.emit("Concat", *(node.emit("Unsqueeze", v, node.ints(1)) for v in rows), axis=1)
