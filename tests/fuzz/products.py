"""Drawing products, reductions and normalisations."""

from __future__ import annotations

import numpy as np

from tests.fuzz.base import Base, Unfit, Value, need


class Products(Base):
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
