"""Drawing elementwise operators, and what changes types."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz.base import Base, Value, need, zeros


class Elementwise(Base):
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
