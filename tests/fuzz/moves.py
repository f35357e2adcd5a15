"""Drawing operators that move, select and repeat elements."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz.base import Base, Value, need, zeros


class Moves(Base):
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
