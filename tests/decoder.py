"""A small decoder with a cache, as exporters spell it.

One step takes the new tokens and the keys and values of all tokens before (past.N.key,
past.N.value), and gives those with the new ones joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.transformer import Builder


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
    results = []

    def split(y: str) -> str:
        shape = b("Concat", b.size(y, 0), b.size(y, 1), b.const([heads]), b.const([width]), axis=0)
        return b("Transpose", b("Reshape", y, shape), perm=[0, 2, 1, 3])

    for n in range(layers):
        h = b.norm(x, d)
        q, k, v = (split(b.dense(h, d, d)) for _ in range(3))
        present = []
        for kind, one in (("key", k), ("value", v)):
            name = f"present.{n}.{kind}"
            b.nodes.append(helper.make_node("Concat", [f"past.{n}.{kind}", one], [name], axis=2))
            present.append(name)
        results += present
        scores = b("MatMul", q, b("Transpose", present[0], perm=[0, 1, 3, 2]))
        scores = b("Div", scores, b.const(width**0.5, np.float32))
        weights = b("Softmax", b("Add", scores, bias), axis=-1)
        mixed = b("Transpose", b("MatMul", weights, present[1]), perm=[0, 2, 1, 3])
        shape = b("Concat", b.size(mixed, 0), b.size(mixed, 1), b.const([d]), axis=0)
        x = b("Add", x, b.dense(b("Reshape", mixed, shape), d, d))
        h = b.dense(b.norm(x, d), d, 4 * d)
        half = b("Mul", h, b.const(0.5, np.float32))
        erf = b("Erf", b("Mul", h, b.const(0.5**0.5, np.float32)))
        x = b("Add", x, b.dense(b("Mul", half, b("Add", erf, b.const(1, np.float32))), 4 * d, d))
    b.nodes.append(helper.make_node("MatMul", [b.norm(x, d), b.weight(d, vocab)], ["logits"]))
    info = helper.make_tensor_value_info
    cache = ["batch", heads, "past", width], ["batch", heads, "total", width]
    kinds = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    graph = helper.make_graph(
        b.nodes,
        "decoder",
        [
            info("ids", TensorProto.INT64, ["batch", "new"]),
            *(info(f"past.{kind}", TensorProto.FLOAT, cache[0]) for kind in kinds),
        ],
        [
            info("logits", TensorProto.FLOAT, ["batch", "new", vocab]),
            *(info(f"present.{kind}", TensorProto.FLOAT, cache[1]) for kind in kinds),
        ],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


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

    @property
    def kinds(self) -> list[str]:
        return [f"{n}.{kind}" for n in range(self.layers) for kind in ("key", "value")]

    def cache(self, batch: int, rows: int | None = None) -> dict[str, Any]:
        """A cache of zeros, by the names of the inputs; it has `room`, else no rows."""
        shape = batch, self.groups, rows or self.room or 0, self.width
        return {f"past.{kind}": np.zeros(shape, np.float32) for kind in self.kinds}

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
        return self._made(b)

    def _made(self, b: Builder) -> Any:
        info, n = helper.make_tensor_value_info, self.batch
        pairs = ("past", self.room or "past"), ("present", self.room or "total")
        past, present = (
            [
                info(f"{w}.{k}", TensorProto.FLOAT, [n, self.groups, r, self.width])
                for k in self.kinds
            ]
            for w, r in pairs
        )
        ids = [info(*t) for t in (("ids", TensorProto.INT64, [n, "new"]),
                                  ("attention_mask", TensorProto.INT64, [n, "total"]))]  # fmt: skip
        logits = info("logits", TensorProto.FLOAT, [n, "new", self.vocab])
        graph = helper.make_graph(b.nodes, "grouped", ids + past, [logits, *present], b.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def empty(batch: int, d: int = 32, heads: int = 4, layers: int = 2) -> dict[str, Any]:
    """A cache of no tokens, by the names of the inputs."""
    none = np.zeros((batch, heads, 0, d // heads), np.float32)
    return {f"past.{n}.{kind}": none for n in range(layers) for kind in ("key", "value")}


def grown(results: dict[str, Any]) -> dict[str, Any]:
    """The cache for the next step, of the results of the last."""
    return {n.replace("present", "past"): v for n, v in results.items() if n != "logits"}
