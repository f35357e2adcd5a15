"""Drawing convolutions and pooling, and what goes around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.base import CHANNELS, Base, Value, need


class Windows(Base):
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
