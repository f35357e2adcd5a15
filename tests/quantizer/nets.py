"""Small graphs to quantise, and data for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS

Array = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)


class Building:
    """A graph of one input, and seeded weights."""

    def __init__(self, *shape: Any, seed: int = 0) -> None:
        self.graph = Graph("small")
        self.rng = np.random.default_rng(seed)
        self.x = self.graph.input("x", Type(F32, shape))

    def weights(self, *shape: int) -> Array:
        fan = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        return (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)

    def conv(self, x: Value, outputs: int, kernel: int = 3, name: str = "", **attrs: Any) -> Value:
        inputs = x.shape[1] // attrs.get("group", 1)  # type: ignore[index, operator]
        w, b = self.weights(outputs, inputs, kernel, kernel), self.weights(outputs, 1)[:, 0]
        attrs.setdefault("pad", (kernel // 2,) * 4)
        return self.graph.add(OPS["Conv"], x, w, b, name=name or None, **attrs).output

    def dense(self, x: Value, outputs: int, name: str = "") -> Value:
        w = self.weights(x.shape[-1], outputs)  # type: ignore[index, arg-type]
        y = self.graph.add(OPS["MatMul"], x, w, name=name or None).output
        return self.emit("Add", y, self.weights(outputs, 1)[:, 0])

    def emit(self, op: str, *inputs: Any, **attrs: Any) -> Value:
        return self.graph.add(OPS[op], *inputs, **attrs).output

    def ends(self, *outputs: Value) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph

    def data(self, count: int = 24, seed: int = 1) -> Array:
        dims = [d if isinstance(d, int) else count for d in self.x.type.shape or ()]
        return np.random.default_rng(seed).standard_normal((count, *dims[1:])).astype(np.float32)


def residual(batch: Any = "N") -> tuple[Graph, Array]:
    """Convolutions with a shortcut, one of them depthwise, pooling, and a dense layer."""
    b = Building(batch, 3, 10, 10)
    x = b.emit("Relu", b.conv(b.x, 8, name="first"))
    x = b.emit("MaxPool", x, kernel=(2, 2), stride=(2, 2))
    y = b.emit("Relu", b.conv(x, 8, name="second", group=8))
    y = b.emit("Relu", b.emit("Add", b.conv(y, 8, 1, name="third"), x))
    z = b.conv(y, 12, 1, name="short", stride=(2, 2))
    y = b.conv(b.emit("Relu", b.conv(y, 12, name="fourth", stride=(2, 2))), 12, name="fifth")
    y = b.emit("Add", y, z)
    y = b.emit("Reshape", b.emit("GlobalPool", b.emit("Relu", y)), np.array([-1, 12]))
    return b.ends(b.dense(y, 5, "dense")), b.data()
