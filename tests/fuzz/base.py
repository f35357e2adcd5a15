"""A random ONNX model while it is drawn: values, names, constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
LARGEST = 30_000  # elements of a tensor
CHANNELS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 70]
SIZES = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 17, 19]


@dataclass
class Value:
    name: str
    like: Array  # zeros of its shape, without memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self.like.shape

    @property
    def rank(self) -> int:
        return self.like.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.like.dtype


def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


class Unfit(Exception):
    """The drawn operator does not go with the drawn value."""


def need(condition: Any) -> None:
    if not condition:
        raise Unfit


@dataclass
class Base:
    """A model so far, and the dice."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    count: int = 0

    # ---- drawing

    def one(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def some(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *kinds: str) -> Value:
        kinds = kinds or ("f",)
        fit = [v for v in self.values if v.dtype.kind in "".join(kinds)]
        fit = [v for v in fit if v.dtype.kind != "f" or v.dtype == np.float32 or len(kinds) > 1]
        need(fit)
        return fit[-1] if self.chance(0.5) else self.one(fit)

    # ---- writing

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def node(self, op: str, inputs: list[Any], like: Any, **attrs: Any) -> Value:
        """Append a node; `like` is an array of its result's shape and type."""
        like = zeros(like, np.float32) if isinstance(like, tuple) else like
        need(like.size <= LARGEST)
        result = Value(self.name(), zeros(like.shape, like.dtype))
        attrs = {k: v for k, v in attrs.items() if v is not None}
        names = [i if isinstance(i, str) else i.name for i in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(helper.make_node(op, names, [result.name], f"n{self.count}", **attrs))
        self.values.append(result)
        return result

    def constant(self, array: Any) -> Value:
        array = np.asarray(array)
        name = self.name("c")
        self.weights.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return Value(name, array)

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64))

    def weight(self, *shape: int, fan: int = 1) -> Value:
        array = self.rng.standard_normal(shape).astype(np.float32) / max(1.0, fan) ** 0.5
        return self.constant(array.astype(np.float32))

    def input(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Value:
        value = Value(self.name("x"), zeros(shape, dtype))
        self.inputs.append(value)
        self.values.append(value)
        return value

    def picture(self) -> Value:
        fit = [v for v in self.values if 3 <= v.rank <= 5 and v.dtype == np.float32]
        need(fit)
        return fit[-1] if self.chance(0.6) else self.one(fit)
