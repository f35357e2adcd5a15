"""A small transformer encoder of free batch and sequence length, as exporters spell it: heads are
split by shapes that are computed (Shape, Gather, Concat, Reshape), masks are made of ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Attend = Callable[[str, str, str], tuple[str, str]]
"""Queries, keys and values of all heads -> the weights of attention, and the values that they are
for."""
Info = tuple[str, int, list[Any]]
"""The name, element type and dims of an input or output."""


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

    def layer(self, x: str, d: int, heads: int, attend: Attend) -> str:
        """A layer of a transformer, norms first, with a GELU in primitives."""

        def split(y: str) -> str:
            dims = (self.size(y, 0), self.size(y, 1), self.const([heads]), self.const([d // heads]))
            shape = self("Concat", *dims, axis=0)
            return self("Transpose", self("Reshape", y, shape), perm=[0, 2, 1, 3])

        h = self.norm(x, d)
        q, k, v = (split(self.dense(h, d, d)) for _ in range(3))
        weights, v = attend(q, k, v)
        mixed = self("Transpose", self("MatMul", weights, v), perm=[0, 2, 1, 3])
        shape = self("Concat", self.size(mixed, 0), self.size(mixed, 1), self.const([d]), axis=0)
        x = self("Add", x, self.dense(self("Reshape", mixed, shape), d, d))
        h = self.dense(self.norm(x, d), d, 4 * d)
        half = self("Mul", h, self.const(0.5, np.float32))
        erf = self("Erf", self("Mul", h, self.const(0.5**0.5, np.float32)))
        h = self("Mul", half, self("Add", erf, self.const(1, np.float32)))
        return self("Add", x, self.dense(h, 4 * d, d))

    def model(
        self, name: str, inputs: Iterable[Info], outputs: Iterable[Info], *domains: str
    ) -> Any:
        """The ModelProto of all nodes, of opset 18, and of version 1 of other domains."""
        values = ([helper.make_tensor_value_info(*v) for v in some] for some in (inputs, outputs))
        graph = helper.make_graph(self.nodes, name, *values, self.weights)
        opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(model)
        return model


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

    def attend(q: str, k: str, v: str) -> tuple[str, str]:
        scores = b("MatMul", q, b("Transpose", k, perm=[0, 1, 3, 2]))
        scores = b("Mul", scores, b.const((d // heads) ** -0.5, np.float32))
        return b("Softmax", b("Add", scores, bias), axis=-1), v

    for _ in range(layers):
        x = b.layer(x, d, heads, attend)
    b.nodes.append(helper.make_node("Identity", [b.norm(x, d)], ["hidden"]))
    first = b("Gather", "hidden", b.const(0), axis=1)
    b.nodes.append(helper.make_node("Identity", [b.dense(first, d, 10)], ["logits"]))
    text = ["batch", "seq"]
    return b.model(
        "transformer",
        [("ids", TensorProto.INT64, text), ("mask", TensorProto.FLOAT, text)],
        [("hidden", TensorProto.FLOAT, [*text, d]), ("logits", TensorProto.FLOAT, ["batch", 10])],
    )


def feeds(batch: int, seq: int, vocab: int = 50, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a shape; the mask hides the tail of every second row."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, seq), np.float32)
    mask[1::2, (seq + 1) // 2 :] = 0
    return {"ids": random.integers(0, vocab, (batch, seq)), "mask": mask}
