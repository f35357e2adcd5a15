"""Random ONNX models, made of what goes together badly: the machine code against numpy.

    TINSMITH_FUZZ=2000 python -m pytest tests/test_fuzz.py      2,000 models from seed 0
    TINSMITH_FUZZ=2000:500 ...                                  500 models from seed 2000
    python -m tests.test_fuzz 1234                              one seed, with its model as text

A model is right if the cpu backend computes what the numpy backend does, up to rounding. Rounding
can grow: what a millionth of a change of the inputs does to the result is allowed for.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tinsmith as ts
from tinsmith.codegen.target import level, runnable
from tinsmith.errors import TinsmithError

Array = np.ndarray[Any, Any]
ALONE = 250
LARGEST = 30_000  # elements of a tensor
TARGETS = [t for t in ("host", "avx2", "sse2", "scalar") if runnable(level(t))]
PASSES = ["canonicalise", "fold-constants", "fold-into-conv", "fuse-elementwise", "gather-channels"]
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
class Maker:
    """Draws a model node by node."""

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

    # ---- operators

    def unary(self) -> Value:
        v = self.pick()
        op = self.one(
            [
                "Relu",
                "Relu",
                "Sigmoid",
                "Tanh",
                "HardSwish",
                "HardSigmoid",
                "LeakyRelu",
                "Elu",
                "Selu",
                "Softplus",
                "Softsign",
                "Erf",
                "Abs",
                "Neg",
                "Gelu",
                "Mish",
                "Celu",
                "ThresholdedRelu",
                "Identity",
                "Sin",
                "Cos",
                "Floor",
                "Ceil",
                "Round",
                "Sign",
            ]
        )
        alpha = self.one([None, 0.1, 0.5]) if op in ("LeakyRelu", "Elu", "Celu") else None
        return self.node(op, [v], v.like, alpha=alpha)

    def guarded(self) -> Value:
        """What is defined, or tame, on a part of the numbers only."""
        v = self.pick()
        op = self.one(["Sqrt", "Log", "Exp", "Reciprocal", "Pow", "Acosh"])
        if op == "Exp":
            return self.node("Exp", [self.node("Tanh", [v], v.like)], v.like)
        safe = self.node("Abs", [v], v.like)
        safe = self.node("Add", [safe, self.constant(np.float32(1.25))], v.like)
        if op == "Pow":
            power = self.constant(np.float32(self.one([0.5, 2, 3, -1, 1.7, 0])))
            return self.node("Pow", [safe, power], v.like)
        return self.node(op, [safe], v.like)

    def clip(self) -> Value:
        v = self.pick()
        low = self.constant(np.float32(self.one([-1, 0, 0.5]))) if self.chance(0.7) else ""
        high = self.constant(np.float32(self.one([6, 1, 0.25]))) if self.chance(0.7) else ""
        return self.node("Clip", [v, low, high], v.like)

    def partner(self, v: Value) -> Value:
        """Something that broadcasts with v: another value, or a constant of an odd shape."""
        fit = []
        for w in self.values:
            try:
                np.broadcast_shapes(v.shape, w.shape)
            except ValueError:
                continue
            if w.dtype == v.dtype:
                fit.append(w)
        if fit and self.chance(0.6):
            return self.one(fit)
        shape = [1 if self.chance(0.4) else n for n in v.shape]
        shape = shape[self.some(0, len(shape)) :]
        if self.chance(0.1):
            shape = [1] * (v.rank - len(shape)) + shape
            shape = [self.some(1, 2), *shape]
        if v.dtype == np.bool_:
            return self.constant(self.rng.random(shape) < 0.5)
        if v.dtype.kind in "iu":
            return self.constant(self.rng.integers(1, 5, shape).astype(v.dtype))
        return self.constant(self.rng.standard_normal(shape).astype(v.dtype))

    def binary(self) -> Value:
        v = self.pick()
        w = self.partner(v)
        if self.chance(0.3):
            v, w = w, v
        op = self.one(["Add", "Add", "Add", "Sub", "Mul", "Mul", "Min", "Max", "Div", "PRelu"])
        like = zeros(np.broadcast_shapes(v.shape, w.shape))
        if op == "Div":
            w = self.node("Abs", [w], w.like)
            w = self.node("Add", [w, self.constant(np.float32(0.5))], w.like)
        if op == "PRelu":
            need(like.shape == v.shape)
        return self.node(op, [v, w], like)

    def several(self) -> Value:
        v = self.pick()
        others = [self.partner(v) for _ in range(self.some(0, 3))]
        like = zeros(np.broadcast_shapes(v.shape, *(o.shape for o in others)))
        return self.node(self.one(["Sum", "Mean", "Max", "Min"]), [v, *others], like)

    def where(self) -> Value:
        v = self.pick()
        w, limit = self.partner(v), self.partner(v)
        like = zeros(np.broadcast_shapes(v.shape, limit.shape), np.bool_)
        op = self.one(["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"])
        test = self.node(op, [v, limit], like)
        if self.chance(0.3):
            test = self.node("Not", [test], like)
        like = zeros(np.broadcast_shapes(v.shape, limit.shape, w.shape))
        return self.node("Where", [test, v, w] if self.chance(0.5) else [test, w, v], like)

    def residual(self) -> Value:
        fit = [(a, b) for a in self.values for b in self.values if a.shape == b.shape]
        fit = [(a, b) for a, b in fit if a.dtype == b.dtype == np.float32]
        need(fit)
        a, b = self.one(fit)
        s = self.node(self.one(["Add", "Add", "Mul", "Sub"]), [a, b], a.like)
        return (
            self.node(self.one(["Relu", "Clip", "Sigmoid"]), [s], a.like) if self.chance(0.6) else s
        )

    def casts(self) -> Value:
        v = self.pick("f", "i", "b")
        to = self.one(["float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool"])
        if v.dtype.kind == "f" and to in ("uint8", "int8", "int32", "int64"):
            v = self.node(
                "Clip", [v, self.constant(v.dtype.type(0)), self.constant(v.dtype.type(9))], v.like
            )
        made = self.node(
            "Cast", [v], zeros(v.shape, to), to=helper.np_dtype_to_tensor_dtype(np.dtype(to))
        )
        if self.chance(0.5) and made.dtype != np.float32:
            return self.node("Cast", [made], v.shape, to=1)
        return made

    def other_types(self) -> Value:
        fit = [v for v in self.values if v.dtype not in (np.float32, np.float16)]
        need(fit)
        v = self.one(fit)
        if v.dtype == np.bool_:
            op = self.one(["And", "Or", "Xor", "Not", "Where"])
            if op == "Not":
                return self.node(op, [v], v.like)
            w = self.partner(v)
            return self.node(
                op if op != "Where" else "And",
                [v, w],
                zeros(np.broadcast_shapes(v.shape, w.shape), bool),
            )
        if self.chance(0.3) and v.rank and v.dtype in (np.int32, np.int64, np.float64):
            axis = self.some(-v.rank, v.rank - 1)
            keep = self.some(0, 1)
            op = self.one(["ReduceSum", "ReduceMax", "ReduceMin"])
            like = v.like.sum(axis, keepdims=bool(keep), dtype=v.dtype)
            need(v.like.size)
            return self.node(op, [v, self.ints(axis)], like, keepdims=keep)
        w = self.partner(v)
        op = self.one(["Add", "Sub", "Mul", "Min", "Max"])
        return self.node(op, [v, w], zeros(np.broadcast_shapes(v.shape, w.shape), v.dtype))

    def window(self, sizes: tuple[int, ...], most: int = 5) -> tuple[Any, ...]:
        """kernel, strides, dilations, pads, auto_pad, as they fit; and the shape of the result."""
        n = len(sizes)
        square = self.chance(0.6)
        draw = (lambda f: [f()] * n) if square else (lambda f: [f() for _ in range(n)])
        kernel = draw(lambda: self.one([1, 1, 2, 3, 3, 3, 4, 5, 7, 11][: 5 + most]))
        strides = draw(lambda: self.one([1, 1, 1, 2, 2, 3, 5]))
        dilations = draw(lambda: self.one([1, 1, 1, 1, 2, 3, 9]))
        how = self.one([None, None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID"])
        pads = None
        if how is None:
            half = [k * d // 2 for k, d in zip(kernel, dilations, strict=True)]
            pads = half * 2 if self.chance(0.5) else [self.some(0, k + 1) for k in kernel * 2]
        return kernel, strides, dilations, pads, how

    @staticmethod
    def extent(size, kernel, stride, dilation, low, high, ceil=False) -> int:
        room = size + low + high - (kernel - 1) * dilation - 1
        need(room >= 0)
        if ceil:
            out = -(-room // stride) + 1
            return out - 1 if (out - 1) * stride >= size + low else out
        return room // stride + 1

    def results(self, sizes, kernel, strides, dilations, pads, how, ceil=False) -> tuple[int, ...]:
        n = len(sizes)
        if how in ("SAME_UPPER", "SAME_LOWER"):
            return tuple(-(-s // t) for s, t in zip(sizes, strides, strict=True))
        pads = pads or [0] * 2 * n
        return tuple(
            self.extent(sizes[i], kernel[i], strides[i], dilations[i], pads[i], pads[n + i], ceil)
            for i in range(n)
        )

    def picture(self) -> Value:
        fit = [v for v in self.values if 3 <= v.rank <= 5 and v.dtype == np.float32]
        need(fit)
        return fit[-1] if self.chance(0.6) else self.one(fit)

    def conv(self) -> Value:
        v = self.picture()
        c, sizes = v.shape[1], v.shape[2:]
        need(c and all(sizes))
        groups = [1, 1, 1, c] + [g for g in (2, 3, 4, 5, 8) if c % g == 0]
        group = self.one(groups)
        m = self.one(CHANNELS) if group == 1 else group * self.one([1, 1, 1, 2, 3, 8])
        need(m <= 200)
        kernel, strides, dilations, pads, how = self.window(sizes)
        if how in ("SAME_UPPER", "SAME_LOWER"):
            dilations = [1] * len(sizes)
        out = self.results(sizes, kernel, strides, dilations, pads, how)
        need(m * int(np.prod(out)) * c // group * int(np.prod(kernel)) * v.shape[0] < 8_000_000)
        w = self.weight(m, c // group, *kernel, fan=c // group * int(np.prod(kernel)))
        b = self.weight(m) if self.chance(0.6) else ""
        return self.node(
            "Conv", [v, w, b], (v.shape[0], m, *out), group=group, strides=strides,
            dilations=dilations, pads=pads, auto_pad=how, kernel_shape=kernel,
        )  # fmt: skip

    def conv_then(self) -> Value:
        """A convolution with what is fused into it."""
        v = self.conv()
        for _ in range(self.some(1, 3)):
            kind = self.some(0, 4)
            if kind == 0:
                v = self.norm_of(v)
            elif kind == 1:
                v = self.node(self.one(["Relu", "HardSwish", "Sigmoid", "LeakyRelu"]), [v], v.like)
            elif kind == 2:
                w = self.partner(v)
                need(np.broadcast_shapes(v.shape, w.shape) == v.shape)
                v = self.node(self.one(["Add", "Mul", "Max"]), [v, w], v.like)
            elif kind == 3:
                v = self.node("Mul", [v, self.node("Sigmoid", [v], v.like)], v.like)
            else:
                same = [w for w in self.values if w.shape == v.shape and w.dtype == v.dtype]
                v = self.node("Add", [self.one(same), v], v.like)
        return v

    def conv_transpose(self) -> Value:
        v = self.picture()
        c, sizes = v.shape[1], v.shape[2:]
        need(c)
        group = self.one([1, 1, c] + [g for g in (2, 3) if c % g == 0])
        m = self.one([1, 2, 3, 5, 8, 16, 17])
        kernel = [self.one([1, 2, 3, 4, 5]) for _ in sizes]
        strides = [self.one([1, 2, 2, 3]) for _ in sizes]
        dilations = [self.one([1, 1, 1, 2]) for _ in sizes]
        extra = [
            self.some(0, max(s, d) - 1) if self.chance(0.3) else 0
            for s, d in zip(strides, dilations, strict=True)
        ]
        pads = [self.some(0, (k - 1)) for k in kernel * 2]
        n = len(sizes)
        out = tuple(
            strides[i] * (sizes[i] - 1)
            + extra[i]
            + (kernel[i] - 1) * dilations[i]
            + 1
            - pads[i]
            - pads[n + i]
            for i in range(n)
        )
        need(all(o > 0 for o in out) and all(sizes) and m * group < 150)
        need(m * c * int(np.prod(sizes)) * int(np.prod(kernel)) * v.shape[0] < 4_000_000)
        w = self.weight(c, m, *kernel, fan=c // group * int(np.prod(kernel)))
        b = self.weight(m * group) if self.chance(0.5) else ""
        return self.node(
            "ConvTranspose", [v, w, b], (v.shape[0], m * group, *out), group=group, strides=strides,
            dilations=dilations, pads=pads, output_padding=extra,
        )  # fmt: skip

    def pool(self) -> Value:
        v = self.picture()
        sizes = v.shape[2:]
        op = self.one(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
        kernel, strides, dilations, pads, how = self.window(sizes, 3)
        if how is None:
            pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)]
        else:
            dilations = [1] * len(sizes)
        ceil = int(self.chance(0.35) and how is None)
        out = self.results(sizes, kernel, strides, dilations, pads, how, ceil)
        need(all(sizes) and all(o > 0 for o in out))
        count = self.some(0, 1) if op == "AveragePool" else None
        return self.node(
            op, [v], (*v.shape[:2], *out), kernel_shape=kernel, strides=strides,
            dilations=dilations,
            pads=pads, auto_pad=how, ceil_mode=ceil, count_include_pad=count,
        )  # fmt: skip

    def global_pool(self) -> Value:
        v = self.picture()
        need(v.like.size)
        op = self.one(["GlobalAveragePool", "GlobalMaxPool"])
        return self.node(op, [v], (*v.shape[:2], *[1] * (v.rank - 2)))

    def norm_of(self, v: Value) -> Value:
        c = v.shape[1]
        need(c)
        scale, shift, mean = (self.weight(c) for _ in range(3))
        spread = self.constant((0.5 + self.rng.random(c)).astype(np.float32))
        return self.node("BatchNormalization", [v, scale, shift, mean, spread], v.like)

    def norm(self) -> Value:
        v = self.picture()
        need(v.like.size)
        c = v.shape[1]
        kind = self.some(0, 5)
        if kind == 0:
            return self.norm_of(v)
        if kind == 1:
            need(np.prod(v.shape[2:]) > 4)
            return self.node("InstanceNormalization", [v, self.weight(c), self.weight(c)], v.like)
        if kind == 2:
            return self.node("LRN", [v], v.like, size=self.one([1, 3, 5]), alpha=0.01, bias=1.5)
        if kind == 3:
            need(v.shape[-1] > 4)
            w = v.shape[-1]
            return self.node(
                "LayerNormalization", [v, self.weight(w), self.weight(w)], v.like, axis=-1
            )
        if kind == 4:
            group = self.one([g for g in (1, 2, 3, 4, 8, c) if c % g == 0])
            need(np.prod(v.shape[1:]) // group > 4)
            scale, shift = self.weight(c), self.weight(c)
            return self.node("GroupNormalization", [v, scale, shift], v.like, num_groups=group)
        need(c > 4)
        return self.node("LpNormalization", [v], v.like, axis=1, p=self.some(1, 2))

    def softmax(self) -> Value:
        v = self.pick()
        need(v.rank and v.like.size)
        axis = self.some(-v.rank, v.rank - 1)
        return self.node(self.one(["Softmax", "Softmax", "LogSoftmax"]), [v], v.like, axis=axis)

    def reduce(self) -> Value:
        v = self.pick()
        need(v.rank and v.like.size)
        op = self.one(["Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod"])
        axes = sorted(self.rng.permutation(v.rank)[: self.some(1, v.rank)].tolist())
        need(op != "Prod" or np.prod([v.shape[a] for a in axes]) < 9)
        keep = self.some(0, 1)
        like = v.like.sum(tuple(axes), keepdims=bool(keep), dtype=np.float32)
        shown = [a - v.rank if self.chance(0.3) else a for a in axes]
        return self.node(f"Reduce{op}", [v, self.ints(*shown)], like, keepdims=keep)

    def arg(self) -> Value:
        v = self.pick()
        need(v.rank and v.like.size)
        axis, keep = self.some(0, v.rank - 1), self.some(0, 1)
        like = np.argmax(v.like, axis, keepdims=bool(keep))
        last = self.some(0, 1)
        op = self.one(["ArgMax", "ArgMin"])
        return self.node(op, [v], like, axis=axis, keepdims=keep, select_last_index=last)

    def scan(self) -> Value:
        v = self.pick()
        need(v.rank and v.like.size)
        axis = self.constant(np.int64(self.some(0, v.rank - 1)))
        flags = {"exclusive": self.some(0, 1), "reverse": self.some(0, 1)}
        return self.node("CumSum", [v, axis], v.like, **flags)

    def matmul(self) -> Value:
        v = self.pick()
        need(v.rank)
        k = v.shape[-1]
        if self.chance(0.3):
            fit = [w for w in self.values if w.rank > 1 and w.shape[-2] == k and w.dtype == v.dtype]
            need(fit)
            w = self.one(fit)
        elif self.chance(0.2):
            w = self.weight(k, fan=k)
        else:
            batch = v.shape[:-2] if self.chance(0.3) else ()
            w = self.weight(*batch, k, self.one([1, 2, 3, 5, 8, 16, 17, 33, 64, 100]), fan=k)
        try:
            like = np.matmul(v.like, w.like)
        except ValueError:
            raise Unfit from None
        return self.node("MatMul", [v, w], np.asarray(like, np.float32))

    def gemm(self) -> Value:
        v = self.pick()
        need(v.rank == 2)
        turned, other = self.some(0, 1), self.some(0, 1)
        m, k = v.shape[::-1] if turned else v.shape
        n = self.one([1, 2, 7, 10, 16, 31, 64])
        w = self.weight(*((n, k) if other else (k, n)), fan=k)
        shape = self.one([(), (n,), (1, n), (m, 1), (m, n), (1,)])
        b = self.weight(*shape) if self.chance(0.7) else ""
        return self.node(
            "Gemm", [v, w, b], (m, n), transA=turned, transB=other,
            alpha=self.one([None, 0.5, 1.0]), beta=self.one([None, 2.0, 0.0]),
        )  # fmt: skip

    def attention(self) -> Value:
        fit = [v for v in self.values if v.rank in (3, 4) and v.dtype == np.float32 and v.like.size]
        need(fit)
        q = self.one(fit)
        d = q.shape[-1]
        k = self.node(
            "Transpose",
            [q],
            q.like.swapaxes(-1, -2),
            perm=[*range(q.rank - 2), q.rank - 1, q.rank - 2],
        )
        s = self.node("MatMul", [q, k], (*q.shape[:-1], q.shape[-2]))
        s = self.node("Mul", [s, self.constant(np.float32(d**-0.5))], s.like)
        s = self.node("Softmax", [s], s.like, axis=-1)
        return self.node("MatMul", [s, q], q.like)

    def transpose(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        perm = self.rng.permutation(v.rank).tolist()
        return self.node("Transpose", [v], v.like.transpose(perm), perm=perm)

    def reshape(self) -> Value:
        v = self.pick("f", "i", "b")
        kind = self.some(0, 3)
        if kind == 0:
            axis = self.some(0, v.rank)
            rows = int(np.prod(v.shape[:axis]))
            like = v.like.reshape(rows, int(np.prod(v.shape[axis:])))
            return self.node("Flatten", [v], like, axis=axis)
        if kind == 1:
            axis = self.some(0, v.rank)
            need(v.rank < 6)
            return self.node("Unsqueeze", [v, self.ints(axis)], np.expand_dims(v.like, axis))
        if kind == 2:
            ones = [i for i, n in enumerate(v.shape) if n == 1]
            need(ones)
            return self.node("Squeeze", [v, self.ints(ones[0])], v.like.squeeze(ones[0]))
        sizes, rest = [], v.like.size
        need(rest)
        for _ in range(self.some(0, 4)):
            sizes.append(self.one([d for d in (1, 2, 3, 4, 5, 7, 8, 16, rest) if rest % d == 0]))
            rest //= sizes[-1]
        sizes.append(rest)
        sizes = self.rng.permutation(sizes).tolist()
        shown = list(sizes)
        if self.chance(0.4):
            shown[self.some(0, len(sizes) - 1)] = -1
        return self.node("Reshape", [v, self.ints(*shown)], v.like.reshape(sizes))

    def concat(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        axis = self.some(0, v.rank - 1)
        rest = v.shape[:axis] + v.shape[axis + 1 :]
        fit = [
            w for w in self.values
            if w.rank == v.rank and w.shape[:axis] + w.shape[axis + 1 :] == rest
            and w.dtype == v.dtype
        ]  # fmt: skip
        parts = [v, *(self.one(fit) for _ in range(self.some(0, 3)))]
        if self.chance(0.2) and v.dtype == np.float32:
            parts.append(self.weight(*v.shape[:axis], self.some(1, 3), *v.shape[axis + 1 :]))
        parts = [parts[i] for i in self.rng.permutation(len(parts))]
        like = np.concatenate([p.like for p in parts], axis)
        return self.node("Concat", parts, like, axis=axis - v.rank * self.some(0, 1))

    def split(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        axis = self.some(0, v.rank - 1)
        need(v.shape[axis] > 1)
        cut = self.some(1, v.shape[axis] - 1)
        sizes = [cut, v.shape[axis] - cut]
        parts = np.split(v.like, [cut], axis)
        made = [Value(self.name(), zeros(p.shape, p.dtype)) for p in parts]
        self.nodes.append(
            helper.make_node(
                "Split", [v.name, self.ints(*sizes).name], [m.name for m in made], axis=axis
            )
        )
        self.values += made
        return made[0]

    def slice(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        axes = self.rng.permutation(v.rank)[: self.some(1, v.rank)].tolist()
        starts, ends, steps = [], [], []
        cut = [slice(None)] * v.rank
        for a in axes:
            n = v.shape[a]
            step = self.one([1, 1, 1, 2, 3, -1, -2])
            low, high = sorted((self.some(0, n), self.some(0, n)))
            need(low < high or self.chance(0.05))
            if step < 0:
                starts.append(high - 1 if self.chance(0.7) else -1)
                ends.append(low - 1 if low else -(n + 1))
                cut[a] = slice(starts[-1], ends[-1] if ends[-1] >= 0 else None, step)
                if low:
                    cut[a] = slice(starts[-1], low - 1, step)
            else:
                starts.append(low)
                ends.append(high if self.chance(0.8) else 2**62)
                cut[a] = slice(low, ends[-1], step)
            steps.append(step)
        like = v.like[tuple(cut)]
        need(like.size or self.chance(0.05))
        return self.node(
            "Slice",
            [v, self.ints(*starts), self.ints(*ends), self.ints(*axes), self.ints(*steps)],
            like,
        )

    def pad(self) -> Value:
        v = self.pick()
        need(v.rank and v.like.size)
        mode = self.one(["constant", "constant", "edge", "reflect", "wrap"])
        low, high = [], []
        for n in v.shape:
            most = 2 if mode in ("constant", "edge") else min(2, n - 1)
            least = -1 if mode == "constant" and n > 2 and self.chance(0.3) else 0
            low.append(self.some(least, most) if self.chance(0.5) else 0)
            high.append(self.some(least, most) if self.chance(0.5) else 0)
        shape = tuple(a + n + b for a, n, b in zip(low, v.shape, high, strict=True))
        fill = self.constant(np.float32(self.one([0, 1, -2.5]))) if self.chance(0.4) else ""
        return self.node("Pad", [v, self.ints(*low, *high), fill], shape, mode=mode)

    def resize(self) -> Value:
        v = self.picture()
        need(v.like.size)
        mode = self.one(["nearest", "nearest", "linear", "cubic"])
        how = self.one(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
        out = tuple(
            self.one([n, 2 * n, 3 * n, max(1, n // 2), self.some(1, 20)]) for n in v.shape[2:]
        )
        sizes = self.ints(*v.shape[:2], *out)
        near = self.one([None, "floor", "ceil", "round_prefer_ceil"]) if mode == "nearest" else None
        return self.node(
            "Resize", [v, "", "", sizes], (*v.shape[:2], *out), mode=mode,
            coordinate_transformation_mode=how, nearest_mode=near,
        )  # fmt: skip

    def repeat(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        if self.chance(0.5):
            counts = [self.one([1, 1, 2, 3]) for _ in v.shape]
            return self.node("Tile", [v, self.ints(*counts)], np.tile(v.like, counts))
        shape = tuple(self.some(1, 4) if n == 1 else self.one([n, 1]) for n in v.shape)
        shape = (self.some(1, 2), *shape) if self.chance(0.3) else shape
        like = zeros(np.broadcast_shapes(v.shape, shape), v.dtype)
        return self.node("Expand", [v, self.ints(*shape)], like)

    def gather(self) -> Value:
        v = self.pick("f", "i", "b")
        need(v.rank)
        axis = self.some(0, v.rank - 1)
        n = v.shape[axis]
        need(n)
        shape = self.one([(), (1,), (3,), (2, 2)])
        if self.chance(0.3):
            need(v.like.size)
            places = self.rng.integers(-n, n, v.shape)
            return self.node("GatherElements", [v, self.constant(places)], v.like, axis=axis)
        places = self.rng.integers(-n, n, shape)
        like = np.take(v.like, places % n, axis)
        return self.node("Gather", [v, self.constant(places)], like, axis=axis)

    def blocks(self) -> Value:
        v = self.picture()
        need(v.rank == 4)
        n, c, h, w = v.shape
        b = self.one([2, 3])
        if self.chance(0.5):
            need(c and c % (b * b) == 0)
            mode = self.one(["DCR", "CRD"])
            return self.node(
                "DepthToSpace", [v], (n, c // b // b, h * b, w * b), blocksize=b, mode=mode
            )
        need(h % b == 0 and w % b == 0)
        return self.node("SpaceToDepth", [v], (n, c * b * b, h // b, w // b), blocksize=b)

    def shuffle(self) -> Value:
        v = self.picture()
        need(v.rank == 4 and v.like.size)
        n, c, h, w = v.shape
        group = self.one([g for g in (2, 3, 4) if c % g == 0] or [1])
        a = self.node(
            "Reshape", [v, self.ints(n, group, c // group, h, w)], (n, group, c // group, h, w)
        )
        a = self.node("Transpose", [a], (n, c // group, group, h, w), perm=[0, 2, 1, 3, 4])
        return self.node("Reshape", [a, self.ints(n, c, h, w)], v.like)

    def top(self) -> Value:
        v = self.pick()
        need(v.rank)
        axis = self.some(0, v.rank - 1)
        need(v.shape[axis])
        k = self.some(1, v.shape[axis])
        like = zeros((*v.shape[:axis], k, *v.shape[axis + 1 :]))
        made = Value(self.name(), like), Value(self.name(), zeros(like.shape, np.int64))
        self.nodes.append(
            helper.make_node(
                "TopK",
                [v.name, self.ints(k).name],
                [m.name for m in made],
                axis=axis,
                largest=self.some(0, 1),
            )
        )
        self.values += made
        return made[0]

    def trilu(self) -> Value:
        v = self.pick()
        need(v.rank > 1)
        k = self.constant(np.int64(self.some(-3, 3)))
        return self.node("Trilu", [v, k], v.like, upper=self.some(0, 1))

    def again(self) -> Value:
        """Channels that come, go and come back: concat, split and convolutions on parts."""
        v = self.picture()
        a, b = self.conv_of(v), self.conv_of(v)
        made = self.node(
            "Concat",
            [a, v, b, a],
            (v.shape[0], 2 * a.shape[1] + b.shape[1] + v.shape[1], *v.shape[2:]),
            axis=1,
        )
        return self.conv_of(made) if self.chance(0.6) else made

    def conv_of(self, v: Value) -> Value:
        need(all(v.shape[1:]))
        m, n = self.one(CHANNELS), v.rank - 2
        k = self.one([1, 3])
        w = self.weight(m, v.shape[1], *[k] * n, fan=v.shape[1] * k**n)
        made = self.node("Conv", [v, w], (v.shape[0], m, *v.shape[2:]), pads=[k // 2] * 2 * n)
        return self.node("Relu", [made], made.like) if self.chance(0.5) else made


STEPS = [
    "unary",
    "unary",
    "guarded",
    "clip",
    "binary",
    "binary",
    "binary",
    "several",
    "where",
    "residual",
    "residual",
    "residual",
    "casts",
    "other_types",
    "conv",
    "conv",
    "conv",
    "conv_then",
    "conv_then",
    "conv_then",
    "conv_transpose",
    "pool",
    "pool",
    "global_pool",
    "norm",
    "norm",
    "softmax",
    "reduce",
    "reduce",
    "arg",
    "scan",
    "matmul",
    "matmul",
    "gemm",
    "attention",
    "transpose",
    "transpose",
    "reshape",
    "reshape",
    "concat",
    "concat",
    "split",
    "slice",
    "slice",
    "pad",
    "resize",
    "repeat",
    "gather",
    "blocks",
    "shuffle",
    "top",
    "trilu",
    "again",
    "again",
]


@dataclass
class Case:
    model: onnx.ModelProto
    feeds: dict[str, Array]
    options: dict[str, Any]


def draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    m = Maker(rng)
    for _ in range(m.some(1, 2)):
        batch = m.one([1, 1, 1, 1, 2, 3, 0 if m.chance(0.2) else 1])
        kind = m.some(0, 9)
        if kind < 6:
            m.input((batch, m.one(CHANNELS), m.one(SIZES), m.one(SIZES)))
        elif kind == 6:
            m.input((batch, m.one(CHANNELS), m.one([1, 2, 9, 30, 100])))
        elif kind == 7:
            m.input((batch, m.one([1, 3, 8, 17]), m.some(1, 5), m.some(1, 6), m.some(1, 7)))
        elif kind == 8:
            m.input((m.one([1, 2, 7, 16, 33]), m.one([1, 3, 8, 16, 50, 129])))
        else:
            m.input(tuple(m.some(1, 5) for _ in range(m.some(0, 5))))
    if m.chance(0.1):
        m.input(m.inputs[0].shape, m.one([np.int64, np.int32, np.float64, np.bool_, np.uint8]))
    length, tries = m.some(1, 12), 0
    while len(m.nodes) < length and tries < 200:
        tries += 1
        kept = len(m.nodes), len(m.values), len(m.weights)
        try:
            getattr(m, m.one(STEPS))()
        except (Unfit, ValueError):  # numpy's, where shapes do not go together
            del m.nodes[kept[0] :], m.values[kept[1] :], m.weights[kept[2] :]
    used = {i for n in m.nodes for i in n.input}
    ends = [v for v in m.values if v.name not in used]
    outputs = ends + [v for v in m.values if v.name in used and m.chance(0.1)]
    rng.shuffle(outputs)  # type: ignore[arg-type]

    def info(v: Value, free: float = 0.0) -> Any:
        dims = [f"{v.name}_{i}" if m.chance(free) else n for i, n in enumerate(v.shape)]
        return helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.dtype), dims)

    free = m.one([0.0, 0.0, 0.0, 0.3, 1.0])
    graph = helper.make_graph(
        m.nodes,
        f"fuzz{seed}",
        [info(v, free) for v in m.inputs],
        [info(v) for v in outputs],
        m.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {v.name: sample(rng, v.shape, v.dtype) for v in m.inputs}
    options: dict[str, Any] = {
        "threads": m.one([1, 1, 1, 2, 3]),
        "target": m.one([TARGETS[0], TARGETS[0], *TARGETS]),
        "precision": m.one(["default", "default", "strict"]),
    }
    if m.chance(0.15):
        options["passes"] = "-" + m.one(PASSES)
    return Case(model, feeds, options)


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape), dtype)


def outputs_of(net: Any, feeds: dict[str, Array]) -> dict[str, Array]:
    found = net(**feeds)
    return found if isinstance(found, dict) else {net.output_names[0]: found}


def moved(feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        k: v
        if v.dtype.kind != "f"
        else (v * (1 + 1e-6 * rng.standard_normal(v.shape))).astype(v.dtype)
        for k, v in feeds.items()
    }


def differ(got: Array, want: Array, slack: Array | float = 0.0) -> str:
    """What is wrong with `got`, or ''."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        if want.dtype == np.float16:
            slack = slack + 3e-2
        finite = np.isfinite(b)
        scale = float(np.abs(b[finite]).max(initial=0.0))
        bad = np.abs(a - b) > 2e-4 * scale + 1e-3 * np.abs(b) + 1e-6 + slack
        bad |= np.isfinite(a) != finite
        bad |= ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} wrong, first {where}: {got[where]}, not {want[where]}"


def check(seed: int, options: dict[str, Any] | None = None) -> str:
    """'' where all is well or nothing can be said, else what is wrong."""
    case = draw(seed)
    data = case.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            oracle = ts.compile(ts.load(data), backend="numpy")
            want = outputs_of(oracle, case.feeds)
        except TinsmithError as error:
            return f"not a model: {error}"
        net = ts.compile(ts.load(data), cache=False, **(options or case.options))
        got = [outputs_of(net, case.feeds) for _ in range(2)]
        near = None
        for k, b in want.items():
            wrong = differ(got[0][k], b)
            if wrong:
                near = near or [outputs_of(oracle, moved(case.feeds, i)) for i in range(5)]
                with np.errstate(all="ignore"):
                    spread = [np.abs(n[k].astype(np.float64) - b.astype(np.float64)) for n in near]
                slack = 50 * np.nan_to_num(np.max(spread, axis=0), nan=np.inf)
                if float(np.max(slack, initial=0)) > 1e-2 * max(
                    1.0, float(np.abs(b).max(initial=0))
                ):
                    continue  # a step function, or ill-conditioned: nothing can be said
                wrong = differ(got[0][k], b, slack)
            if wrong:
                return f"{k}: {wrong}"
            if got[0][k].tobytes() != got[1][k].tobytes() and not np.isnan(b.astype(float)).any():
                return f"{k}: a second call gives another result"
    return ""


def seeds() -> list[int]:
    first, _, count = os.environ.get("TINSMITH_FUZZ", "").partition(":")
    if count:
        return list(range(int(first), int(first) + int(count)))
    return list(range(int(first or ALONE)))


@pytest.mark.parametrize("seed", seeds())
def test_random_models_equal_their_reference(seed: int) -> None:
    try:
        wrong = check(seed)
    except TinsmithError as error:
        wrong = f"{type(error).__name__}: {error}"
    assert not wrong, f"seed {seed}: {wrong}"


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        case = draw(seed)
        print(onnx.printer.to_text(case.model), case.options)
        print(seed, check(seed) or "right")
