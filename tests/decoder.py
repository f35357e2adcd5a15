"""A small decoder with a cache, as exporters spell it.

One step takes the new tokens and the keys and values of all tokens before (past.N.key,
past.N.value), and gives those with the new ones joined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.transformer import Builder, Info


def decoder(
    d: int = 32, heads: int = 4, layers: int = 2, vocab: int = 50, most: int = 256, seed: int = 0
) -> Any:
    """ModelProto: ids [batch, new] int64, past.N.key and past.N.value [batch, heads, past, d /
    heads] -> logits [batch, new, vocab], present.N.key, present.N.value. Token n of `new` is at
    position past + n, and sees all tokens up to itself. Positions are below `most`."""
    b = Builder(seed)
    width = d // heads
    before = b("Gather", b("Shape", "past.0.key"), b.const(2))
    new = b("Gather", b("Shape", "ids"), b.const(1))
    total = b("Add", before, new)
    places = b("Range", before, total, b.const(1))
    x = b("Add", b("Gather", b.weight(vocab, d), "ids"), b("Gather", b.weight(most, d), places))
    keys = b("Range", b.const(0), total, b.const(1))
    later = b("Greater", b("Unsqueeze", keys, b.const([0])), b("Unsqueeze", places, b.const([1])))
    far = np.finfo(np.float32).min
    bias = b("Where", later, b.const(far, np.float32), b.const(0, np.float32))
    bias = b("Unsqueeze", bias, b.const([0, 1]))

    def attend(n: int, q: str, k: str, v: str) -> tuple[str, str]:
        present = [f"present.{n}.{kind}" for kind in ("key", "value")]
        for name, one in zip(present, (k, v), strict=True):
            past = name.replace("present", "past")
            b.nodes.append(helper.make_node("Concat", [past, one], [name], axis=2))
        scores = b("MatMul", q, b("Transpose", present[0], perm=[0, 1, 3, 2]))
        scores = b("Div", scores, b.const(width**0.5, np.float32))
        return b("Softmax", b("Add", scores, bias), axis=-1), present[1]

    for n in range(layers):
        x = b.layer(x, d, heads, partial(attend, n))
    b.nodes.append(helper.make_node("MatMul", [b.norm(x, d), b.weight(d, vocab)], ["logits"]))
    ids = ("ids", TensorProto.INT64, ["batch", "new"])
    logits = ("logits", TensorProto.FLOAT, ["batch", "new", vocab])
    past = _cached("past", layers, "batch", heads, "past", width)
    present = _cached("present", layers, "batch", heads, "total", width)
    return b.model("decoder", [ids, *past], [logits, *present])


def _cached(when: str, layers: int, *dims: Any) -> list[Info]:
    """The keys and values of all layers as inputs ("past") or outputs ("present") of a model."""
    kinds = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    return [(f"{when}.{kind}", TensorProto.FLOAT, list(dims)) for kind in kinds]


@dataclass(frozen=True)
class Grouped:
    """A decoder of GroupQueryAttention, as onnxruntime-genai's builder writes it: ids [batch, new],
    attention_mask [batch, total] and past.N.key, past.N.value [batch, groups, past, width] ->
    logits, present.N.key, present.N.value. With `room` the cache has so many places, and present
    is declared to have as many."""

    width: int = 8
    heads: int = 4
    groups: int = 2
    layers: int = 2
    vocab: int = 50
    most: int = 256
    room: int | None = None
    window: int = -1
    batch: int | str = "batch"

    def cache(self, batch: int, rows: int | None = None) -> dict[str, Any]:
        """A cache of zeros, by the names of the inputs; it has `room`, else no rows."""
        shape = batch, self.groups, rows or self.room or 0, self.width
        return {name: np.zeros(shape, np.float32) for name, *_ in _cached("past", self.layers)}

    def model(self, seed: int = 0) -> Any:
        b, d = Builder(seed), self.heads * self.width
        ones = b("ReduceSum", "attention_mask", b.const([1]), keepdims=0)
        last = b("Cast", b("Sub", ones, b.const(1)), to=TensorProto.INT32)
        total = b("Gather", b("Shape", "attention_mask"), b.const(1))
        total = b("Cast", total, to=TensorProto.INT32)
        angles = np.outer(np.arange(self.most), 10.0 ** -np.linspace(0, 2, self.width // 2))
        tables = [b.const(f(angles).astype(np.float32), np.float32) for f in (np.cos, np.sin)]
        x = b("Gather", b.weight(self.vocab, d), "ids")
        for n in range(self.layers):
            h, side = b.norm(x, d), self.groups * self.width
            q, k, v = b.dense(h, d, d), b.dense(h, d, side), b.dense(h, d, side)
            names = [
                f"{when}.{n}.{kind}" for when in ("past", "present") for kind in ("key", "value")
            ]
            b.nodes.append(
                helper.make_node(
                    "GroupQueryAttention", [q, k, v, *names[:2], last, total, *tables],
                    [f"mixed{n}", *names[2:]], domain="com.microsoft", num_heads=self.heads,
                    kv_num_heads=self.groups, do_rotary=1, local_window_size=self.window,
                )
            )  # fmt: skip
            x = b("Add", x, b.dense(f"mixed{n}", d, d))
            x = b("Add", x, b.dense(b("Tanh", b.dense(b.norm(x, d), d, 2 * d)), 2 * d, d))
        b.nodes.append(
            helper.make_node("MatMul", [b.norm(x, d), b.weight(d, self.vocab)], ["logits"])
        )
        ids = ("ids", TensorProto.INT64, [self.batch, "new"])
        mask = ("attention_mask", TensorProto.INT64, [self.batch, "total"])
        logits = ("logits", TensorProto.FLOAT, [self.batch, "new", self.vocab])
        past, present = (
            _cached(w, self.layers, self.batch, self.groups, self.room or rows, self.width)
            for w, rows in (("past", "past"), ("present", "total"))
        )
        return b.model("grouped", [ids, mask, *past], [logits, *present], "com.microsoft")


def empty(batch: int, d: int = 32, heads: int = 4, layers: int = 2) -> dict[str, Any]:
    """A cache of no tokens, by the names of the inputs."""
    none = np.zeros((batch, heads, 0, d // heads), np.float32)
    return {name: none for name, *_ in _cached("past", layers)}


def grown(results: dict[str, Any]) -> dict[str, Any]:
    """The cache for the next step, of the results of the last."""
    return {n.replace("present", "past"): v for n, v in results.items() if n != "logits"}
