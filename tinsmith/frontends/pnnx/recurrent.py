"""Importers of recurrent layers and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.importing import Unsupported
from tinsmith.frontends.pnnx.expression import size_of
from tinsmith.frontends.pnnx.layers import linear
from tinsmith.frontends.pnnx.node import PnnxNode, operator
from tinsmith.frontends.projection import recurrent_layer
from tinsmith.graph import Value

GATES = {"nn.LSTM": (0, 3, 1, 2), "nn.GRU": (1, 0, 2), "nn.RNN": (0,)}
"""The positions of our gates (input, output, forget, cell; update, reset, hidden) in PyTorch's
weights."""


@operator("nn.LSTM", "nn.GRU", "nn.RNN")
def recurrent(
    node: PnnxNode, input: Value, *states: Value, input_size: int, hidden_size: int,
    num_layers: int = 1, bias: bool = True, batch_first: bool = False, bidirectional: bool = False,
    proj_size: int = 0, nonlinearity: str = "tanh",
) -> Any:  # fmt: skip
    """Import a recurrent layer of `num_layers`, as one node for each. `states` are the initial
    ones, h (for LSTM h and c), each [num_layers * directions, N, size]. Returns y and, if the file
    names them, the last states in that form. Raises Unsupported for inputs without a batch."""
    if node.rank(input) == 2:
        raise Unsupported("its input has no batch")
    op, ends = node.type[3:], ("", "_reverse")[: 1 + bidirectional]
    x = node.emit("Transpose", input, perm=(1, 0, 2)) if batch_first else input
    attrs: dict[str, Any] = {"hidden_size": hidden_size}
    attrs["direction"] = "bidirectional" if bidirectional else "forward"
    if op == "RNN" and nonlinearity != "tanh":
        attrs["activations"] = (nonlinearity.capitalize(),) * len(ends)
    finals: list[list[Value]] = [[], []]
    for layer in range(num_layers):
        w, r, b = (_weights(node, layer, ends, kind, bias) for kind in ("ih", "hh", "b"))
        at = len(ends) * layer
        starts = [
            s if num_layers == 1 else node.slice(s, node.ints(at), node.ints(at + len(ends)), [0])
            for s in states
        ]
        p = [node.weight(f"weight_hr_l{layer}{end}") for end in ends] if proj_size else None
        weights = w, r, None if p is None else np.stack(p), b
        y, *last = recurrent_layer(node, op, x, weights, starts, attrs)
        for kept, value in zip(finals, last, strict=False):
            kept.append(value)
        if bidirectional:
            y = node.emit("Transpose", y, perm=(0, 2, 1, 3))
            x = node.emit("Reshape", y, node.ints(*node.kept(x, 2), 2 * (proj_size or hidden_size)))
        else:
            x = node.emit("Squeeze", y, node.ints(1))
    y = node.emit("Transpose", x, perm=(1, 0, 2)) if batch_first else x
    ends_of = [
        node.emit("Concat", *f, axis=0) if len(f) > 1 else f[0]
        for f in finals
        if f and len(node.outputs) > 1
    ]
    return y, *ends_of


def _weights(node: PnnxNode, layer: int, ends: tuple[str, ...], kind: str, bias: bool) -> Any:
    """A weight of one layer for all directions, [directions, ...], in our order of gates. `kind` is
    "ih" (w), "hh" (r), or "b" (both biases, one after the other; None without `bias`). `ends` are
    the ends of PyTorch's names for each direction: "", "_reverse"."""
    if kind == "b" and not bias:
        return None
    made = []
    for end in ends:
        names = [f"bias_{n}" for n in ("ih", "hh")] if kind == "b" else [f"weight_{kind}"]
        for name in names:
            whole = node.weight(f"{name}_l{layer}{end}")
            gates = np.split(whole, len(GATES[node.type]))
            made.append(np.concatenate([gates[i] for i in GATES[node.type]]))
    return np.stack(made).reshape(len(ends), -1) if kind == "b" else np.stack(made)


@operator("nn.MultiheadAttention")
def multihead_attention(
    node: PnnxNode, query: Value, key: Any = None, value: Any = None, attn_mask: Any = None, *,
    embed_dim: int, num_heads: int, kdim: Any = None, vdim: Any = None, bias: bool = True,
    add_bias_kv: bool = False, add_zero_attn: bool = False, batch_first: bool = False,
) -> Any:  # fmt: skip
    """Import nn.MultiheadAttention with its linear layers. The second output, if it is read, is the
    attention weights, averaged over heads."""
    if node.rank(query) == 2:
        raise Unsupported("its input has no batch")
    key = query if key is None else key
    value = key if value is None else value
    if "@in_proj_weight" in node.attrs:
        weights = np.split(node.weight("in_proj_weight"), 3)
    else:
        weights = [node.weight(f"{n}_proj_weight") for n in "qkv"]
    biases = np.split(node.weight("in_proj_bias"), 3) if bias else [None] * 3
    xs: list[Value] = []
    for x, weight, shift in zip((query, key, value), weights, biases, strict=True):
        x = x if batch_first else node.emit("Transpose", x, perm=(1, 0, 2))
        xs.append(linear(node, x, weight, shift))
    more = 0
    if add_bias_kv:
        for i, name in ((1, "bias_k"), (2, "bias_v")):
            xs[i] = _and_row(node, xs[i], node.weight(name))
        more += 1
    if add_zero_attn:
        zeros = node.full((1, 1, len(weights[1])), 0, query.dtype)
        xs[1], xs[2] = (_and_row(node, x, zeros) for x in xs[1:])
        more += 1
    mask = _mask(node, attn_mask, num_heads, more, xs[0])
    scores = node.used(1)
    found = node.emit(
        "Attention", *xs, mask, q_num_heads=num_heads, kv_num_heads=num_heads, with_qk=scores,
        qk_matmul_output_mode=3 if scores else 0,
    )  # fmt: skip
    y = linear(
        node,
        found[0] if scores else found,
        node.weight("out_proj.weight"),
        node.weight("out_proj.bias") if bias else None,
    )
    y = y if batch_first else node.emit("Transpose", y, perm=(1, 0, 2))
    return y, node.emit(
        "Reduce", found[1], node.ints(1), kind="mean", keepdims=False
    ) if scores else None


def _and_row(node: PnnxNode, x: Value, row: Any) -> Value:
    """x [N,K,E], keys or values, with `row` [1,1,E] at the end of each sequence: [N,K+1,E]."""
    size = [size_of(node, x, 0), 1, row.shape[-1]]
    return node.emit("Concat", x, node.emit("Expand", row, size), axis=1)


def _mask(node: PnnxNode, mask: Any, heads: int, more: int, query: Value) -> Value | None:
    """PyTorch's mask [Q,K] or [N * heads,Q,K] in the form of our Attention: [Q,K] or [N,heads,Q,K],
    True where a query may attend (in PyTorch: where not), or numbers to add. None for no mask.
    `more` keys were added at the end, which all queries see. A free batch is that of `query`."""
    if mask is None:
        return None
    if mask.dtype.kind == "b":
        mask = node.emit("Not", mask)
    if more:
        filler = node.const(np.array(mask.dtype.kind == "b", mask.dtype))
        mask = node.emit("Pad", mask, node.ints(0, more), filler, node.ints(node.rank(mask) - 1))
    if mask.rank == 3:
        queries, keys = node.size(mask, 1), node.size(mask, 2)
        mask = node.emit("Reshape", mask, node.ints(-1, heads, queries, keys))
        if node.scope.free and query.shape and not isinstance(query.shape[0], int):
            batch = node.emit("Shape", query, start=0, end=1)
            times = node.emit("Div", batch, node.ints(node.size(mask, 0)))
            mask = node.emit("Tile", mask, node.emit("Concat", times, node.ints(1, 1, 1), axis=0))
    return mask


@operator("F.scaled_dot_product_attention")
def scaled_dot_product_attention(
    node: PnnxNode, query: Value, key: Value, value: Value, attn_mask: Any = None, *,
    is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    attrs: dict[str, Any] = {
        "is_causal": is_causal,
        "scale": None if scale is None else float(scale),
    }
    rank = node.rank(query)
    if rank == 3:
        attrs |= {"q_num_heads": 1, "kv_num_heads": 1}
        if attn_mask is not None and attn_mask.rank == 3:
            attn_mask = node.emit("Unsqueeze", attn_mask, node.ints(1))
    elif rank != 4:
        raise Unsupported(f"its query has rank {rank}; 3 and 4 are known")
    return node.emit("Attention", query, key, value, attn_mask, **attrs)
