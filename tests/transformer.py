"""A small transformer encoder of free batch and sequence length, as exporters spell it: heads are
split by shapes that are computed (Shape, Gather, Concat, Reshape), masks are made of ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and weights; every method returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        out = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attrs))
        return out

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        scale = shape[0] ** -0.5 if len(shape) > 1 else 0.1
        return self.const(self.random.standard_normal(shape) * scale, np.float32)

    def dense(self, x: str, n: int, m: int) -> str:
        return self("Add", self("MatMul", x, self.weight(n, m)), self.weight(m))

    def norm(self, x: str, d: int) -> str:
        """Layer normalisation in primitives."""
        mean = self("ReduceMean", x, self.const([-1]))
        off = self("Sub", x, mean)
        var = self("ReduceMean", self("Mul", off, off), self.const([-1]))
        std = self("Sqrt", self("Add", var, self.const(1e-5, np.float32)))
        return self("Add", self("Mul", self("Div", off, std), self.weight(d)), self.weight(d))

    def size(self, x: str, axis: int) -> str:
        """One dimension of x, as a vector of one element."""
        dim = self("Gather", self("Shape", x), self.const(axis))
        return self("Unsqueeze", dim, self.const([0]))


def transformer(
    d: int = 32, heads: int = 4, layers: int = 2, vocab: int = 50, seed: int = 0
) -> Any:
    """ModelProto: ids [batch, seq] int64, mask [batch, seq] float32 -> hidden, logits."""
    b = Builder(seed)
    x = b("Gather", b.weight(vocab, d), "ids")
    seq = b("Gather", b("Shape", "ids"), b.const(1))
    places = b("Range", b.const(0), seq, b.const(1))
    x = b("Add", x, b("Gather", b.weight(512, d), places))
    bias = b("Mul", b("Sub", b.const(1, np.float32), "mask"), b.const(-1e4, np.float32))
    bias = b("Unsqueeze", bias, b.const([1, 2]))

    def split(y: str) -> str:
        shape = b("Concat", b.size(y, 0), b.size(y, 1), b.const([heads]), b.const([d // heads]),
                  axis=0)  # fmt: skip
        return b("Transpose", b("Reshape", y, shape), perm=[0, 2, 1, 3])

    for _ in range(layers):
        h = b.norm(x, d)
        q, k, v = (split(b.dense(h, d, d)) for _ in range(3))
        scores = b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2]))
        scores = b("Mul", scores, b.const((d // heads) ** -0.5, np.float32))
        weights = b("Softmax", b("Add", scores, bias), axis=-1)
        mixed = b("Transpose", b("MatMul", weights, v), perm=[0, 2, 1, 3])
        shape = b("Concat", b.size(mixed, 0), b.size(mixed, 1), b.const([d]), axis=0)
        x = b("Add", x, b.dense(b("Reshape", mixed, shape), d, d))
        h = b.dense(b.norm(x, d), d, 4 * d)
        half = b("Mul", h, b.const(0.5, np.float32))
        erf = b("Erf", b("Mul", h, b.const(0.5**0.5, np.float32)))
        h = b("Mul", half, b("Add", erf, b.const(1, np.float32)))
        x = b("Add", x, b.dense(h, 4 * d, d))
    b.nodes.append(helper.make_node("Identity", [b.norm(x, d)], ["hidden"]))
    first = b("Gather", "hidden", b.const(0), axis=1)
    b.nodes.append(helper.make_node("Identity", [b.dense(first, d, 10)], ["logits"]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        b.nodes,
        "transformer",
        [
            info("ids", TensorProto.INT64, ["batch", "seq"]),
            info("mask", TensorProto.FLOAT, ["batch", "seq"]),
        ],
        [
            info("hidden", TensorProto.FLOAT, ["batch", "seq", d]),
            info("logits", TensorProto.FLOAT, ["batch", 10]),
        ],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def feeds(batch: int, seq: int, vocab: int = 50, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a shape; the mask hides the tail of every second row."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, seq), np.float32)
    mask[1::2, (seq + 1) // 2 :] = 0
    return {"ids": random.integers(0, vocab, (batch, seq)), "mask": mask}
