"""A small decoder with a cache, as exporters spell it.

One step takes the new tokens and the keys and values of all tokens before (past.N.key,
past.N.value), and gives those with the new ones joined."""

from __future__ import annotations

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


def empty(batch: int, d: int = 32, heads: int = 4, layers: int = 2) -> dict[str, Any]:
    """A cache of no tokens, by the names of the inputs."""
    none = np.zeros((batch, heads, 0, d // heads), np.float32)
    return {f"past.{n}.{kind}": none for n in range(layers) for kind in ("key", "value")}


def grown(results: dict[str, Any]) -> dict[str, Any]:
    """The cache for the next step, of the results of the last."""
    return {n.replace("present", "past"): v for n, v in results.items() if n != "logits"}
